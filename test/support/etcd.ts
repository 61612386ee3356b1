import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { type IncomingMessage, request } from 'node:http'
import { request as tlsRequest } from 'node:https'
import { join } from 'node:path'
import { json } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import type { SecureContextOptions } from 'node:tls'
import { temporaryDirectorySync } from './directories.ts'
import { Proxy } from './etcd-proxy.ts'
import { environment, exitOnSignals } from './launch.ts'
import { freePort } from './ports.ts'
import { PATIENCE_MS } from './time.ts'

/** Why tests of etcd are skipped; undefined if it is installed. */
export const NO_ETCD =
  spawnSync('etcd', ['--version']).status === 0
    ? undefined
    : 'etcd is not installed, so NOTHING of the etcd store is tested here ' +
      '(Debian: apt-get install etcd-server)'
// Loud: a test that does not run proves nothing.
if (NO_ETCD !== undefined && process.env['NODE_TEST_CONTEXT'] !== undefined)
  console.log(`SKIPPED: ${NO_ETCD}`)

const running = new Set<ChildProcess>()
// First, so that no member writes into a directory that is being removed.
process.prependListener('exit', () => running.forEach((child) => child.kill('SIGKILL')))
// A test that takes too long is ended by a signal. Without this there is no "exit" event.
exitOnSignals()

export interface ClusterOptions {
  /** How etcd is run. */
  readonly command?: readonly string[]
  readonly flags?: readonly string[]
  /** What a client needs, if the members serve https. */
  readonly tls?: SecureContextOptions
  /** True if members reach each other through proxies. */
  readonly apart?: boolean
  /** Spares the disk and the processor. Not where speed is measured, or the machine may end. */
  readonly cheap?: boolean
}

/** One etcd process. It can be ended, stopped, and started again on its data. */
export class Member {
  readonly name: string
  readonly endpoint: string
  readonly peerUrl: string
  /** Between this member and the others, with the option `apart`. */
  readonly proxy: Proxy | undefined
  readonly #command: readonly string[]
  readonly #env: Readonly<Record<string, string>>
  readonly #directory: string
  #child: ChildProcess | undefined
  /** The last lines that it wrote. */
  output = ''

  private constructor(
    name: string,
    ports: { readonly client: number; readonly peer: number },
    directory: string,
    { command = ['etcd'], flags = [], tls, cheap = false }: ClusterOptions,
    proxy: Proxy | undefined,
  ) {
    this.name = name
    this.proxy = proxy
    this.endpoint = `${tls ? 'https' : 'http'}://127.0.0.1:${ports.client}`
    this.#directory = join(directory, name)
    const peerListener = `http://127.0.0.1:${ports.peer}`
    this.peerUrl = proxy?.endpoint ?? peerListener
    this.#command = [
      ...command,
      ...['--name', name, '--data-dir', this.#directory],
      ...['--logger', 'zap', '--log-level', 'error'],
      ...['--listen-client-urls', this.endpoint, '--advertise-client-urls', this.endpoint],
      ...['--listen-peer-urls', peerListener, '--initial-advertise-peer-urls', this.peerUrl],
      ...(cheap ? ['--unsafe-no-fsync', '--bcrypt-cost', '4'] : []),
      ...flags,
    ]
    // Go's collector takes a third of the time of small calls.
    this.#env = environment(cheap ? { GOGC: '400' } : {})
  }

  static async create(name: string, directory: string, options: ClusterOptions): Promise<Member> {
    const ports = { client: await freePort(), peer: await freePort() }
    const proxy = options.apart === true ? await Proxy.start(() => ports.peer) : undefined
    return new Member(name, ports, directory, options, proxy)
  }

  get port(): number {
    return Number(new URL(this.endpoint).port)
  }

  get pid(): number | undefined {
    return this.#child?.pid
  }

  start(initialCluster: string): void {
    const [program = '', ...args] = this.#command
    const child = spawn(program, [...args, '--initial-cluster', initialCluster], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: this.#env,
    })
    this.#child = child
    running.add(child)
    child.once('exit', () => running.delete(child))
    const keep = (text: string): string => (this.output = (this.output + text).slice(-4000))
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', keep)
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal)
  }

  /** Resolves when the process has ended, by whatever cause. */
  async ended(): Promise<void> {
    if (this.#child && running.has(this.#child)) await once(this.#child, 'exit')
  }

  async end(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    this.signal(signal)
    // A stopped process handles no other signal.
    this.signal('SIGCONT')
    await this.ended()
  }

  /** Removes the data of a member that has ended. */
  wipe(): void {
    rmSync(this.#directory, { recursive: true })
  }
}

interface GatewayOptions {
  readonly timeoutMs?: number
  readonly tls?: SecureContextOptions | undefined
  readonly token?: string | undefined
}

/** A call of etcd's HTTP/JSON gateway, not made by the service. */
export async function gateway(
  endpoint: string,
  path: string,
  message: unknown,
  { timeoutMs: timeout = 5000, tls, token }: GatewayOptions = {},
): Promise<{ readonly status: number; readonly body: unknown }> {
  const headers = { accept: 'application/json', ...(token ? { authorization: token } : {}) }
  const options = { method: 'POST', headers, timeout, ...tls }
  const req = (tls ? tlsRequest : request)(`${endpoint}${path}`, options)
  req.on('timeout', () => req.destroy(new Error('the gateway did not answer in time')))
  req.end(JSON.stringify(message))
  // The event's only argument.
  const [res] = (await once(req, 'response')) as [IncomingMessage]
  return { status: res.statusCode ?? 0, body: await json(res) }
}

export class Cluster {
  readonly members: readonly Member[]
  readonly #tls: SecureContextOptions | undefined

  private constructor(members: readonly Member[], tls: SecureContextOptions | undefined) {
    this.members = members
    this.#tls = tls
  }

  /** Resolves when every member is ready. */
  static async start(count: number, options: ClusterOptions = {}): Promise<Cluster> {
    const directory = temporaryDirectorySync()
    const names = Array.from({ length: count }, (_, i) => `m${i + 1}`)
    const members = names.map((name) => Member.create(name, directory, options))
    const cluster = new Cluster(await Promise.all(members), options.tls)
    for (const member of cluster.members) cluster.startMember(member)
    await cluster.ready()
    return cluster
  }

  get endpoints(): readonly string[] {
    return this.members.map(({ endpoint }) => endpoint)
  }

  startMember(member: Member): void {
    member.start(this.members.map(({ name, peerUrl }) => `${name}=${peerUrl}`).join())
  }

  /** A call of the first member, which must succeed. Resolves with the body of the answer. */
  async ask(path: string, message: object, token?: string): Promise<unknown> {
    const options = { timeoutMs: PATIENCE_MS, tls: this.#tls, token }
    const { status, body } = await gateway(this.endpoints[0] ?? '', path, message, options)
    if (status === 200) return body
    throw new Error(`${path}: ${status} ${JSON.stringify(body)}`)
  }

  /** Resolves when every member answers a linearizable read, or after one asks for a user. */
  async ready(): Promise<void> {
    const deadline = performance.now() + PATIENCE_MS
    const options = { timeoutMs: 2000, tls: this.#tls }
    for (const member of this.members) {
      const reads = (): Promise<boolean> =>
        gateway(member.endpoint, '/v3/kv/range', { key: 'AA==' }, options).then(
          ({ status }) => status === 200 || status === 400,
          () => false,
        )
      while (!(await reads())) {
        if (performance.now() > deadline)
          throw new Error(`${member.endpoint} did not become ready: ${member.output}`)
        await sleep(50)
      }
    }
  }

  async leader(): Promise<Member | undefined> {
    for (const member of this.members) {
      const asked = gateway(member.endpoint, '/v3/maintenance/status', {}, { timeoutMs: 1000 })
      // etcd's own answer.
      const status = (await asked.catch(() => undefined))?.body as
        | { readonly header: { readonly member_id: string }; readonly leader?: string }
        | undefined
      if (status?.leader !== undefined && status.header.member_id === status.leader) return member
    }
    return undefined
  }

  async close(): Promise<void> {
    await Promise.all(this.members.map((member) => member.end()))
    for (const { proxy } of this.members) proxy?.close()
  }
}
