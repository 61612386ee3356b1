import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import { call } from '../../test/support/http.ts'
import {
  type Environment,
  launch,
  type Launched,
  serviceEnvironment,
} from '../../test/support/launch.ts'
import { memoryOf } from '../../test/support/memory.ts'
import { freePort } from '../../test/support/ports.ts'
import { run } from '../../test/support/process.ts'
import { serverPrefix } from './machine.ts'
import { created, page, user } from './plants.ts'
import { type Filling, Stores } from './stores.ts'
import { sign } from './tokens.ts'

const START_MS_MAX = 60_000
const BARE = fileURLToPath(new URL('bare.mjs', import.meta.url))
/** For Node, before the service: `--cpu-prof`, for example. */
const NODE_ARGS = process.env['NODE_ARGS']?.split(' ').filter((arg) => arg !== '') ?? []
/** After a start, before memory is read. */
export const SETTLE_MS = 200

const MEMORY = '/dev/shm'

const work = temporaryDirectorySync()
// In memory: a write to a log on the disk may wait for the disk, and the server with it.
const logs = temporaryDirectorySync(existsSync(MEMORY) ? MEMORY : work)
const stores = new Stores(join(work, 'stores'))
let started = 0

export type Name = 'plant-store' | 'bare'

/** A server in a process, on the servers' core. */
export class Server {
  readonly name: Name
  readonly port: number
  readonly data: string
  /** What it wrote to stdout and stderr. */
  readonly logFile: string
  readonly #startedAtMs = performance.now()
  readonly #launched: Launched
  /** From the start of the process to its first answer. */
  firstAnswerMs = 0

  constructor(name: Name, port: number, data: string, env: Environment) {
    this.name = name
    this.port = port
    this.data = data
    this.logFile = join(logs, String(port))
    const options = { prefix: serverPrefix, logFile: this.logFile }
    const settings =
      name === 'bare'
        ? { PORT: String(port), PAGE20: page(0, 20), PAGE100: page(0, 100), CREATED: created }
        : serviceEnvironment(data, {
            PLANTS_LISTEN: `127.0.0.1:${port}`,
            PLANTS_ADMIN_LISTEN: 'off',
            ...env,
          })
    this.#launched = launch(
      { NODE_ENV: 'production', ...settings },
      name === 'bare' ? { ...options, main: BARE, args: [] } : { ...options, options: NODE_ARGS },
    )
  }

  get pid(): number {
    return this.#launched.pid
  }

  get rssMiB(): number {
    return memoryOf(this.pid).residentMiB
  }

  /** How the process ended; undefined while it runs. */
  get ended(): string | undefined {
    const { exitCode, signalCode } = this.#launched.child
    return exitCode === null && signalCode === null ? undefined : `${exitCode ?? signalCode}`
  }

  async firstAnswer(): Promise<void> {
    const options = { path: '/plants?limit=20', token: sign(user(0)) }
    for (;;) {
      if (this.ended !== undefined)
        throw new Error(`${this.name} ended: ${readFileSync(this.logFile, 'utf8').slice(-2000)}`)
      const reply = await call(this.port, options).catch(() => undefined)
      this.firstAnswerMs = performance.now() - this.#startedAtMs
      if (reply?.status === 200) return
      if (reply) throw new Error(`${this.name}: the first answer was ${reply.status} ${reply.text}`)
      if (this.firstAnswerMs > START_MS_MAX) throw new Error(`${this.name} never answered`)
      await sleep(1)
    }
  }

  /** Answers must be right before they are counted. */
  async checkPages({ users, plants }: Filling): Promise<void> {
    // The bare server has the pages of one user, of two lengths.
    const limits = this.name === 'bare' ? [20, 100] : [1, 20, 100]
    const checked = this.name === 'bare' ? [0] : users > 0 ? [0, users - 1] : []
    for (const u of checked) {
      for (const limit of limits) {
        const options = { path: `/plants?limit=${limit}`, token: sign(user(u)) }
        const { status, text } = await call(this.port, options)
        const length = this.name === 'bare' ? limit : Math.min(limit, plants)
        if (status !== 200 || text !== page(u * plants, length))
          throw new Error(`${this.name} answers wrongly: ${status} ${text.slice(0, 300)}`)
      }
    }
  }

  async stop({ keep = false } = {}): Promise<void> {
    const ended = this.ended
    const code = await this.#launched.kill('SIGTERM')
    if (this.name === 'plant-store' && code !== 0)
      throw new Error(`plant-store ended with ${ended ?? code}`)
    if (!keep) rmSync(this.data, { recursive: true, force: true })
  }
}

export interface StartOptions {
  /** The server whose store it continues with. */
  readonly left?: Server
  /** Settings that make it keep its plants in etcd. */
  readonly etcd?: Environment
}

/**
 * Starts a server on its own store, or on one that an earlier server left, and checks its answers.
 */
export async function start(
  name: Name,
  filling: Filling,
  { left, etcd = {} }: StartOptions = {},
): Promise<Server> {
  const directory = join(work, `server-${++started}`)
  mkdirSync(directory)
  const data = left?.data ?? join(directory, 'data')
  if (name === 'plant-store' && !left) await stores.copyTo(data, filling)
  if (Object.keys(etcd).length > 0) {
    const { status, stderr } = await run(['import', `${data}/plants.sqlite`], etcd)
    if (status !== 0) throw new Error(`the import into etcd failed: ${stderr}`)
  }
  // What was written so far must not be flushed under the load.
  spawnSync('sync')
  const server = new Server(name, await freePort(), data, etcd)
  await server.firstAnswer()
  await server.checkPages(filling)
  return server
}
