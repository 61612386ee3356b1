import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'

/**
 * Pass everything on, refuse connections, discard everything, or discard answers and then end the
 * connection.
 */
export type ProxyMode = 'pass' | 'refuse' | 'hang' | 'drop-answers'

/** A TCP proxy that can break connections. Open connections follow the mode too. */
export class Proxy {
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  readonly port: number
  /** Answers that were dropped. */
  dropped = 0
  /** Transactions that came with more than one plant, and the largest one. */
  groups = 0
  largestGroup = 0
  #mode: ProxyMode = 'pass'

  private constructor(server: Server) {
    this.#server = server
    // It listens on TCP.
    this.port = (server.address() as AddressInfo).port
  }

  /** The target is asked for with each connection, so it may start later. */
  static async start(targetPort: () => number): Promise<Proxy> {
    const server = createServer().listen(0, '127.0.0.1')
    // If its target never starts, no test closes it.
    server.unref()
    await once(server, 'listening')
    const proxy = new Proxy(server)
    server.on('connection', (client) => proxy.#join(client, targetPort()))
    return proxy
  }

  get endpoint(): string {
    return `http://127.0.0.1:${this.port}`
  }

  set mode(mode: ProxyMode) {
    this.#mode = mode
    if (mode === 'refuse' || mode === 'pass') this.#destroyAll()
  }

  close(): void {
    this.#server.close()
    this.#destroyAll()
  }

  #destroyAll(): void {
    for (const socket of this.#sockets) socket.destroy()
  }

  #join(client: Socket, port: number): void {
    if (this.#mode === 'refuse') {
      client.destroy()
      return
    }
    const server = connect(port, '127.0.0.1')
    this.#passOn(client, server, (bytes) => {
      this.#count(bytes)
      return this.#mode !== 'hang'
    })
    this.#passOn(server, client, () => {
      if (this.#mode !== 'drop-answers') return this.#mode !== 'hang'
      this.dropped += 1
      client.destroy()
      return false
    })
  }

  /** A group is one write of the service, and mostly one read here. Keys and values are base64. */
  #count(bytes: Buffer): void {
    const plants = bytes.toString('latin1').split('"target":"CREATE","result":"EQUAL"').length - 1
    if (plants > 1) this.groups += 1
    this.largestGroup = Math.max(this.largestGroup, plants)
  }

  #passOn(from: Socket, to: Socket, passes: (bytes: Buffer) => boolean): void {
    this.#sockets.add(from)
    from.setNoDelay(true)
    from.on('data', (bytes: Buffer) => {
      if (!passes(bytes) || to.write(bytes)) return
      from.pause()
      to.once('drain', () => from.resume())
    })
    from.on('error', () => {})
    from.on('close', () => {
      this.#sockets.delete(from)
      to.destroy()
    })
  }
}
