import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort } from './ports.ts'
import { PATIENCE_MS } from './time.ts'

/** Why tests on etcd are skipped; undefined where it is installed. */
export const NO_ETCD =
  spawnSync('etcd', ['--version']).status === 0
    ? undefined
    : 'etcd is not installed, so NOTHING of the etcd store is tested here (Debian: apt-get install etcd-server)'
// Loud, since a test that does not run proves nothing.
if (NO_ETCD !== undefined && process.env['NODE_TEST_CONTEXT'] !== undefined)
  console.log(`SKIPPED: ${NO_ETCD}`)

const live = new Set<ChildProcess>()
const directories: string[] = []
process.on('exit', () => {
  for (const child of live) child.kill('SIGKILL')
  // A member that is being killed may still write.
  for (const directory of directories)
    rmSync(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 })
})

// As a test that takes too long is ended: without this no "exit" comes, and members stay.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1))

async function portOf(server: Server): Promise<number> {
  if (!server.listening) await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  return address.port
}

/**
 * What a proxy does: pass all on, refuse connections, swallow all that comes, or swallow answers
 * alone and then end the connection.
 */
export type ProxyMode = 'pass' | 'refuse' | 'hang' | 'drop-answers'

/** A TCP proxy that can get in the way. Connections that are open follow the mode as well. */
export class Proxy {
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  readonly port: number
  /** Answers that were dropped. */
  dropped = 0
  #mode: ProxyMode = 'pass'

  private constructor(server: Server, port: number) {
    this.#server = server
    this.port = port
  }

  /** Begins with a target that may come later. */
  static async start(target: () => number): Promise<Proxy> {
    const server = createServer({ allowHalfOpen: false }).listen(0, '127.0.0.1')
    const proxy = new Proxy(server, await portOf(server))
    // Where what it stands before did not even start, nobody closes it.
    server.unref()
    server.on('connection', (client) => proxy.#join(client, target()))
    return proxy
  }

  set mode(mode: ProxyMode) {
    this.#mode = mode
    if (mode === 'refuse' || mode === 'pass') for (const socket of this.#sockets) socket.destroy()
  }

  #join(client: Socket, port: number): void {
    if (this.#mode === 'refuse') {
      client.destroy()
      return
    }
    const server = connect(port, '127.0.0.1')
    for (const [from, to] of [
      [client, server],
      [server, client],
    ] as const) {
      this.#sockets.add(from)
      from.setNoDelay(true)
      from.on('data', (bytes: Buffer) => {
        if (this.#mode === 'hang') return
        if (this.#mode === 'drop-answers' && from === server) {
          this.dropped += 1
          client.destroy()
        } else if (!to.write(bytes)) {
          from.pause()
          to.once('drain', () => from.resume())
        }
      })
      from.on('error', () => {})
      from.on('close', () => {
        this.#sockets.delete(from)
        to.destroy()
      })
    }
  }

  close(): void {
    this.#server.close()
    for (const socket of this.#sockets) socket.destroy()
  }
}

/** One etcd, which can be ended, stopped and started again on its data. */
export class Member {
  readonly name: string
  readonly port: number
  readonly peerPort: number
  /** Where other members reach it, if not at its own port. */
  readonly peers: Proxy | undefined
  readonly #args: readonly string[]
  readonly #scheme: string
  readonly #command: readonly [string, ...string[]]
  #child: ChildProcess | undefined
  output = ''

  constructor(
    name: string,
    port: number,
    peerPort: number,
    peers: Proxy | undefined,
    directory: string,
    { scheme = 'http', flags = [], command = ['etcd'] }: ClusterOptions,
  ) {
    this.name = name
    this.port = port
    this.peerPort = peerPort
    this.peers = peers
    this.#scheme = scheme
    this.#command = command
    const client = `${scheme}://127.0.0.1:${port}`
    this.#args = [
      '--name',
      name,
      '--data-dir',
      join(directory, name),
      '--logger',
      'zap',
      '--log-level',
      'error',
      '--listen-client-urls',
      client,
      '--advertise-client-urls',
      client,
      '--listen-peer-urls',
      `http://127.0.0.1:${peerPort}`,
      '--initial-advertise-peer-urls',
      this.peerUrl,
      ...flags,
    ]
  }

  get endpoint(): string {
    return `${this.#scheme}://127.0.0.1:${this.port}`
  }

  get peerUrl(): string {
    return `http://127.0.0.1:${this.peers?.port ?? this.peerPort}`
  }

  get pid(): number | undefined {
    return this.#child?.pid
  }

  start(initialCluster: string): void {
    const [command, ...args] = this.#command
    const child = spawn(command, [...args, ...this.#args, '--initial-cluster', initialCluster], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: process.env['PATH'] ?? '' },
    })
    this.#child = child
    live.add(child)
    for (const stream of [child.stdout, child.stderr])
      stream
        .setEncoding('utf8')
        .on('data', (text: string) => (this.output = (this.output + text).slice(-4000)))
    child.once('exit', () => live.delete(child))
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal)
  }

  /** Resolves when the process is gone, whoever ended it. */
  async ended(): Promise<void> {
    const child = this.#child
    if (child && child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  }

  async end(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    const child = this.#child
    if (!child) return
    child.kill(signal)
    // A stopped process takes no other signal.
    child.kill('SIGCONT')
    await this.ended()
  }
}

export interface ClusterOptions {
  /** How etcd is run. */
  readonly command?: readonly [string, ...string[]]
  readonly flags?: readonly string[]
  readonly scheme?: 'http' | 'https'
  /** Whether members reach each other through proxies. */
  readonly apart?: boolean
}

/** A call of the gateway, as curl would make it. */
export async function gateway(
  endpoint: string,
  path: string,
  message: unknown,
  timeoutMs = 5000,
): Promise<{ readonly status: number; readonly body: unknown }> {
  const res = await fetch(`${endpoint}${path}`, {
    method: 'POST',
    body: JSON.stringify(message),
    signal: AbortSignal.timeout(timeoutMs),
  })
  return { status: res.status, body: await res.json() }
}

export class Cluster {
  readonly members: readonly Member[]
  readonly #initial: string

  private constructor(members: readonly Member[]) {
    this.members = members
    this.#initial = members.map(({ name, peerUrl }) => `${name}=${peerUrl}`).join(',')
  }

  static async start(count: number, options: ClusterOptions = {}): Promise<Cluster> {
    const directory = mkdtempSync(join(tmpdir(), 'plant-store-etcd-'))
    directories.push(directory)
    const members: Member[] = []
    for (let i = 1; i <= count; i++) {
      const [port, peerPort] = [await freePort(), await freePort()]
      members.push(
        new Member(
          `m${i}`,
          port,
          peerPort,
          options.apart === true ? await Proxy.start(() => peerPort) : undefined,
          directory,
          options,
        ),
      )
    }
    const cluster = new Cluster(members)
    for (const member of members) cluster.startMember(member)
    if (options.scheme !== 'https') await cluster.ready()
    return cluster
  }

  get endpoints(): readonly string[] {
    return this.members.map(({ endpoint }) => endpoint)
  }

  startMember(member: Member): void {
    member.start(this.#initial)
  }

  /** Resolves when every member that is given answers a linearizable read. */
  async ready(members: readonly Member[] = this.members): Promise<void> {
    const deadline = performance.now() + PATIENCE_MS
    for (const { endpoint, output } of members) {
      for (;;) {
        const { status } = await gateway(endpoint, '/v3/kv/range', { key: 'AA==' }, 2000).catch(
          () => ({ status: 0 }),
        )
        if (status === 200) break
        if (performance.now() > deadline)
          throw new Error(`${endpoint} did not become ready: ${output}`)
        await sleep(50)
      }
    }
  }

  async leader(): Promise<Member | undefined> {
    for (const member of this.members) {
      const { body } = await gateway(member.endpoint, '/v3/maintenance/status', {}, 1000).catch(
        () => ({ body: undefined }),
      )
      // etcd's own answer.
      const { header, leader } = (body ?? {}) as {
        readonly header?: { readonly member_id?: string }
        readonly leader?: string
      }
      if (leader !== undefined && header?.member_id === leader) return member
    }
    return undefined
  }

  async close(): Promise<void> {
    await Promise.all(this.members.map((member) => member.end()))
    for (const { peers } of this.members) peers?.close()
  }
}
