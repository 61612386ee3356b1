import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { type IncomingMessage, request } from 'node:http'
import { request as tlsRequest } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { json } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import type { SecureContextOptions } from 'node:tls'
import { Proxy } from './etcd-proxy.ts'
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
const directories: string[] = []
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL')
  // A member that is being killed may still write.
  for (const directory of directories)
    rmSync(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 })
})
// A test that takes too long is ended by a signal. Without this there is no "exit" event.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1))

export interface ClusterOptions {
  /** How etcd is run. */
  readonly command?: readonly [string, ...string[]]
  readonly flags?: readonly string[]
  readonly scheme?: 'http' | 'https'
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
  readonly #command: readonly [string, ...string[]]
  readonly #env: Readonly<Record<string, string>>
  #child: ChildProcess | undefined
  /** The last lines that it wrote. */
  output = ''

  private constructor(
    name: string,
    ports: { readonly client: number; readonly peer: number },
    directory: string,
    {
      scheme = 'http',
      flags = [],
      command: [program, ...args] = ['etcd'],
      cheap = false,
    }: ClusterOptions,
    proxy: Proxy | undefined,
  ) {
    this.name = name
    this.proxy = proxy
    this.endpoint = `${scheme}://127.0.0.1:${ports.client}`
    const peerListener = `http://127.0.0.1:${ports.peer}`
    this.peerUrl = proxy?.endpoint ?? peerListener
    this.#command = [
      program,
      ...args,
      ...['--name', name, '--data-dir', join(directory, name)],
      ...['--logger', 'zap', '--log-level', 'error'],
      ...['--listen-client-urls', this.endpoint, '--advertise-client-urls', this.endpoint],
      ...['--listen-peer-urls', peerListener, '--initial-advertise-peer-urls', this.peerUrl],
      ...(cheap ? ['--unsafe-no-fsync', '--bcrypt-cost', '4'] : []),
      ...flags,
    ]
    // Go's collector takes a third of the time of small calls.
    this.#env = cheap ? { GOGC: '400' } : {}
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
    const [program, ...args] = this.#command
    const child = spawn(program, [...args, '--initial-cluster', initialCluster], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: process.env['PATH'] ?? '', ...this.#env },
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
    const child = this.#child
    if (child && child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  }

  async end(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    this.signal(signal)
    // A stopped process handles no other signal.
    this.signal('SIGCONT')
    await this.ended()
  }
}

/** A call of etcd's HTTP/JSON gateway, not made by the service. */
export async function gateway(
  endpoint: string,
  path: string,
  message: unknown,
  timeoutMs = 5000,
  { tls, token }: { readonly tls?: SecureContextOptions; readonly token?: string } = {},
): Promise<{ readonly status: number; readonly body: unknown }> {
  const headers = { accept: 'application/json', ...(token ? { authorization: token } : {}) }
  const options = { method: 'POST', headers, timeout: timeoutMs, ...tls }
  const req = (tls ? tlsRequest : request)(`${endpoint}${path}`, options)
  req.on('timeout', () => req.destroy(new Error('the gateway did not answer in time')))
  req.end(JSON.stringify(message))
  // The event's only argument.
  const [res] = (await once(req, 'response')) as [IncomingMessage]
  return { status: res.statusCode ?? 0, body: await json(res) }
}

/** The ids of a member and of its leader; undefined if it does not answer. */
export async function statusOf({
  endpoint,
}: Member): Promise<
  { readonly header: { readonly member_id: string }; readonly leader?: string } | undefined
> {
  const reply = await gateway(endpoint, '/v3/maintenance/status', {}, 1000).catch(() => undefined)
  // etcd's own answer.
  return reply?.body as Awaited<ReturnType<typeof statusOf>>
}

export class Cluster {
  readonly members: readonly Member[]

  private constructor(members: readonly Member[]) {
    this.members = members
  }

  static async start(count: number, options: ClusterOptions = {}): Promise<Cluster> {
    const directory = mkdtempSync(join(tmpdir(), 'plant-store-etcd-'))
    directories.push(directory)
    const names = Array.from({ length: count }, (_, i) => `m${i + 1}`)
    const cluster = new Cluster(
      await Promise.all(names.map((name) => Member.create(name, directory, options))),
    )
    for (const member of cluster.members) cluster.startMember(member)
    if (options.scheme !== 'https') await cluster.ready()
    return cluster
  }

  get endpoints(): readonly string[] {
    return this.members.map(({ endpoint }) => endpoint)
  }

  startMember(member: Member): void {
    member.start(this.members.map(({ name, peerUrl }) => `${name}=${peerUrl}`).join())
  }

  /** Resolves when every member answers a linearizable read. */
  async ready(): Promise<void> {
    const deadline = performance.now() + PATIENCE_MS
    for (const member of this.members) {
      const reads = (): Promise<boolean> =>
        gateway(member.endpoint, '/v3/kv/range', { key: 'AA==' }, 2000).then(
          ({ status }) => status === 200,
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
      const status = await statusOf(member)
      if (status?.leader !== undefined && status.header.member_id === status.leader) return member
    }
    return undefined
  }

  async close(): Promise<void> {
    await Promise.all(this.members.map((member) => member.end()))
    for (const { proxy } of this.members) proxy?.close()
  }
}
