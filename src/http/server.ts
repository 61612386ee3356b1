/* The service's own HTTP server: its connections, its limits of time, and how it stops. */

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { Server, ServerOptions } from 'node:http'
import type { Socket } from 'node:net'
import { setImmediate as yieldTick, setTimeout as sleep } from 'node:timers/promises'
import { type Condition, errorCodeOf, HttpError } from '../errors.ts'
import { Connection } from './connection.ts'
import { Exchange, HEADERS_MAX_COUNT, type Responder } from './exchange.ts'
import { cutOff } from './send.ts'

/** Request line and headers together. Node counts their bytes without the separators. */
const HEADERS_MAX_BYTES = 16 * 1024
/** Node stops reading a body that no code takes after this much and what one read brings. */
const STREAM_BUFFER_BYTES = 4 * 1024
/** How often a stop looks for connections that it can close. */
export const DRAIN_CHECK_MS = 25
/** How long a stop waits for what clients have just sent on idle connections. */
const DRAIN_IDLE_MS = 200

/** What proxies and clients send to a port that they take for another one, in latin1. */
const OTHER_PROTOCOLS = [
  ['PROXY ', 'it begins like PROXY protocol v1'],
  ['\r\n\r\n\0\r\nQUIT\n', 'it begins like PROXY protocol v2'],
  ['\x16\x03', 'it begins like TLS'],
  ['PRI * HTTP/2', 'it begins like HTTP/2'],
] as const

/** Node documents the last read, and its types do not have it. */
type ClientError = Error & { readonly rawPacket?: Buffer }

export class HttpServer {
  /** Node's own. It does not listen yet. */
  readonly server: Server
  readonly #connections = new Map<Socket, Connection>()
  /** Connections that were refused because there were too many. */
  refused = 0
  #accepted = 0

  /**
   * `inactiveMs` is for a request without any byte in either direction: the service or the reader
   * is stuck. The other limits of time are in `options`; Node measures all.
   */
  constructor(responder: Responder, inactiveMs: number, options: ServerOptions) {
    const server = createServer({
      // How often Node looks for late requests.
      connectionsCheckingInterval: 1000,
      ...options,
      maxHeaderSize: HEADERS_MAX_BYTES,
      highWaterMark: STREAM_BUFFER_BYTES,
      // Not left to NODE_OPTIONS: a lenient parser lets requests be smuggled.
      insecureHTTPParser: false,
      // Checked by the router, which answers in the Error shape.
      requireHostHeader: false,
    })
    this.server = server
    server.timeout = inactiveMs
    // In memory tiny headers take thirty times their bytes, also before the last one has come.
    server.maxHeadersCount = HEADERS_MAX_COUNT
    // A client that has sent its requests and ended its side still gets the responses. Node's
    // documentation and types do not have the property.
    Object.assign(server, { httpAllowHalfOpen: true })
    server.on('connection', (socket: Socket) => {
      this.#accepted++
      this.#connections.set(socket, new Connection(socket, responder))
      socket.once('close', () => this.#connections.delete(socket))
    })
    server.on('drop', () => this.refused++)
    server.on('timeout', (socket: Socket) => this.#connections.get(socket)?.timedOut())
    for (const event of ['request', 'checkContinue', 'checkExpectation'])
      server.on(event, (req: IncomingMessage, res: ServerResponse) => {
        // After a cut Node parses the rest of what it has read: thousands of short requests.
        if (req.socket.destroyed) return
        const exchange = new Exchange(req, res)
        if (event === 'checkContinue') exchange.body.sendContinue = () => res.writeContinue()
        this.#connections.get(req.socket)?.enter(exchange)
      })
    server.on('connect', (req) => this.#connections.get(req.socket)?.refuseConnect(req))
    server.on('clientError', (error: ClientError, socket: Socket) => {
      const condition = conditionOf(errorCodeOf(error))
      // Without a condition the connection itself has failed.
      if (condition && socket.bytesRead > 0)
        this.#connections.get(socket)?.fail(new HttpError(condition, [], causeOf(error, socket)))
      else socket.destroy()
    })
  }

  /** Of all open connections; that of the oldest is first. */
  get sockets(): readonly Socket[] {
    return [...this.#connections.keys()]
  }

  /** Requests that are being answered or wait. */
  get active(): number {
    return [...this.#connections.values()].reduce((sum, { active }) => sum + active, 0)
  }

  /**
   * Waits until all connections that clients have made are accepted (one a tick). Closing the
   * listener would reset them. It ends after the timeout: clients may make new ones all the time.
   */
  async acceptAll(timeoutMs: number): Promise<void> {
    const startMs = performance.now()
    let before = -1
    while (before < this.#accepted && performance.now() < startMs + timeoutMs) {
      before = this.#accepted
      await yieldTick()
      await yieldTick()
    }
  }

  /** Closes each connection once it is answered, the rest at the deadline; returns their number. */
  async drain(timeoutMs: number): Promise<number> {
    const startMs = performance.now()
    while (this.#connections.size > 0 && performance.now() < startMs + timeoutMs) {
      await sleep(DRAIN_CHECK_MS)
      // After a long tick, timers run before the data is read that has come in meanwhile.
      await yieldTick()
      if (performance.now() < startMs + DRAIN_IDLE_MS) continue
      const all = [...this.#connections.values()]
      for (const connection of all) connection.endIfUnused()
      // Node takes a connection for idle before the end of its last response has left.
      if (!all.some(({ isFlushing }) => isFlushing)) this.server.closeIdleConnections()
    }
    for (const socket of this.#connections.keys()) cutOff(socket)
    return this.#connections.size
  }
}

/** What a client is told of an error of Node's server. */
function conditionOf(code = ''): Condition | undefined {
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return 'requestTimeout'
  if (code === 'HPE_HEADER_OVERFLOW') return 'headersTooLarge'
  return code.startsWith('HPE_') ? 'malformedRequest' : undefined
}

/** For the log. The parser's messages are constant: they hold no byte of the client. */
function causeOf({ message, rawPacket }: ClientError, { bytesRead }: Socket): string {
  // Only the first read of a connection shows how it begins; the longest beginning has 12 bytes.
  const start = rawPacket?.length === bytesRead ? rawPacket.toString('latin1', 0, 12) : ''
  return OTHER_PROTOCOLS.find(([beginning]) => start.startsWith(beginning))?.[1] ?? message
}
