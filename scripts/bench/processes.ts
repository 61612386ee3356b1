import { type ChildProcess, fork, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { request } from 'node:http'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { FromLoad, LoadResult, LoadSpec, ToLoad } from './load.ts'
import { onServerCore } from './machine.ts'
import { page, user } from './plants.ts'
import { type Filling, Stores } from './stores.ts'
import { AUDIENCE, ISSUER, SECRET, sign } from './tokens.ts'

const MAIN = here('../../dist/main.js')
const START_MS_MAX = 60_000
const CALL_MS_MAX = 10_000
/** For Node, before the service: `--cpu-prof`, say. */
const NODE_ARGS = process.env['NODE_ARGS']?.split(' ') ?? []
/** Behind a start, before memory is looked at. */
export const SETTLE_MS = 200

/** Everything that a run leaves on the disk. */
export const work = mkdtempSync(join(tmpdir(), 'plant-store-bench-'))
const stores = new Stores(join(work, 'stores'))
const live = new Set<ChildProcess>()

process.on('exit', () => {
  for (const child of live) child.kill('SIGKILL')
  rmSync(work, { recursive: true, force: true })
})
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(1))

function here(path: string): string {
  return fileURLToPath(new URL(path, import.meta.url))
}

export type Name = 'plant-store' | 'bare'

export interface Server {
  readonly name: Name
  readonly port: number
  readonly pid: number
  readonly child: ChildProcess
  readonly data: string
  /** What it wrote to stdout and stderr. */
  readonly logFile: string
  /** From the start of the process to its first answer. */
  readonly firstAnswerMs: number
}

export interface Reply {
  readonly status: number
  readonly text: string
}

/** One request on a connection of its own. */
export function call(port: number, token: string, path: string, body?: string): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const headers = {
      authorization: `Bearer ${token}`,
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    }
    const req = request(
      {
        host: '127.0.0.1',
        port,
        path,
        method: body === undefined ? 'GET' : 'POST',
        agent: false,
        headers,
      },
      (res) => {
        let text = ''
        res.setEncoding('utf8')
        res.on('data', (chunk: string) => (text += chunk))
        res.on('error', reject)
        res.on('end', () => resolve({ status: res.statusCode ?? 0, text }))
      },
    )
    req.setTimeout(CALL_MS_MAX, () => req.destroy(new Error('no answer came')))
    req.on('error', reject)
    req.end(body)
  })
}

/**
 * Plain JavaScript of `bare.ts`: what tsx loads beside it would tell on its start and its memory.
 */
let bareMain: string | undefined
function compileBare(): string {
  const out = join(work, 'bare')
  const options = [
    '--ignoreConfig',
    '--module',
    'nodenext',
    '--target',
    'es2023',
    '--types',
    'node',
    '--rewriteRelativeImportExtensions',
    '--outDir',
    out,
  ]
  const { status, stdout } = spawnSync(
    process.execPath,
    [here('../../node_modules/typescript/bin/tsc'), ...options, here('bare.ts')],
    { encoding: 'utf8' },
  )
  if (status !== 0) throw new Error(`bare.ts cannot be compiled: ${stdout}`)
  writeFileSync(join(out, 'package.json'), '{"type":"module"}')
  return join(out, 'bare.js')
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (address === null || typeof address === 'string') throw new Error('no free port')
  return address.port
}

async function importInto(etcd: Readonly<Record<string, string>>, file: string): Promise<void> {
  const child = spawn(process.execPath, [MAIN, 'import', file], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { PATH: process.env['PATH'] ?? '', ...etcd },
  })
  await once(child, 'exit')
  if (child.exitCode !== 0) throw new Error('the plants could not be imported into etcd')
}

let started = 0

export interface LaunchOptions {
  /** Whose store it goes on with. */
  readonly left?: Server
  /** Where in etcd its plants are kept, as configuration. */
  readonly etcd?: Readonly<Record<string, string>>
}

/**
 * Starts a server on a store of its own, or on one that an earlier server left, and waits for its
 * first answer.
 */
export async function launch(
  name: Name,
  filling: Filling,
  { left, etcd = {} }: LaunchOptions = {},
): Promise<Server> {
  const directory = join(work, `server-${++started}`)
  mkdirSync(directory)
  const data = left?.data ?? join(directory, 'data')
  if (name === 'plant-store' && !left) await stores.copyTo(data, filling)
  if (name === 'bare') bareMain ??= compileBare()
  if (Object.keys(etcd).length > 0) await importInto(etcd, `${data}/plants.sqlite`)
  // What was written so far is not to be flushed under the load.
  spawnSync('sync')
  const port = await freePort()
  const logFile = join(directory, 'log')
  const log = openSync(logFile, 'w')
  const env =
    name === 'bare'
      ? { PORT: String(port) }
      : {
          PLANTS_LISTEN: `127.0.0.1:${port}`,
          PLANTS_ADMIN_LISTEN: 'off',
          PLANTS_DATA: data,
          PLANTS_JWT_SECRET: SECRET,
          PLANTS_ISSUER: ISSUER,
          PLANTS_AUDIENCE: AUDIENCE,
          ...etcd,
        }
  const [command, ...args] = onServerCore(
    name === 'bare'
      ? [process.execPath, bareMain ?? '']
      : [process.execPath, ...NODE_ARGS, MAIN, 'serve'],
  )
  const token = sign(user(0))
  const startedAt = performance.now()
  const child = spawn(command, args, {
    stdio: ['ignore', log, log],
    env: { PATH: process.env['PATH'] ?? '', NODE_ENV: 'production', ...env },
  })
  closeSync(log)
  live.add(child)
  child.once('exit', () => live.delete(child))
  for (;;) {
    if (child.exitCode !== null || child.signalCode !== null)
      throw new Error(`${name} ended: ${readFileSync(logFile, 'utf8').slice(-2000)}`)
    const reply = await call(port, token, '/plants?limit=20').catch(() => undefined)
    if (reply?.status === 200) break
    if (reply) throw new Error(`${name}: the first answer was ${reply.status} ${reply.text}`)
    if (performance.now() - startedAt > START_MS_MAX) throw new Error(`${name} never answered`)
    await sleep(1)
  }
  const server = {
    name,
    port,
    pid: child.pid ?? 0,
    child,
    data,
    logFile,
    firstAnswerMs: performance.now() - startedAt,
  }
  if (name === 'plant-store') await checkPages(server, filling)
  else await checkPages(server, { users: 1, plants: 100 }, [20, 100])
  return server
}

/** The answers are right before they are counted. */
async function checkPages(
  { name, port }: Server,
  { users, plants }: Filling,
  limits: readonly number[] = [1, 20, 100],
): Promise<void> {
  for (const u of users > 0 ? new Set([0, users - 1]) : []) {
    for (const limit of limits) {
      const { status, text } = await call(port, sign(user(u)), `/plants?limit=${limit}`)
      if (status !== 200 || text !== page(u * plants, Math.min(limit, plants)))
        throw new Error(`${name} answers wrongly: ${status} ${text.slice(0, 300)}`)
    }
  }
}

export async function stop({ child, data, name }: Server, { keep = false } = {}): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) {
    child.kill('SIGTERM')
    await once(child, 'exit')
  }
  if (name === 'plant-store' && child.exitCode !== 0)
    throw new Error(`plant-store ended with ${child.exitCode ?? child.signalCode}`)
  if (!keep) rmSync(data, { recursive: true, force: true })
}

/** The load generator: one process for all runs, whose code is warm after the first. */
export class Load {
  readonly #child: ChildProcess
  readonly #waiting = new Map<
    number,
    { resolve(result: LoadResult): void; reject(error: Error): void }
  >()
  #runs = 0

  constructor() {
    this.#child = fork(here('load.ts'), {
      execArgv: ['--import', 'tsx'],
      serialization: 'advanced',
    })
    live.add(this.#child)
    // The load generator sends nothing else.
    this.#child.on('message', (message: FromLoad) => {
      const waiting = this.#waiting.get(message.id)
      this.#waiting.delete(message.id)
      if ('error' in message) waiting?.reject(new Error(message.error))
      else waiting?.resolve(message.result)
    })
    this.#child.once('exit', (code) => {
      live.delete(this.#child)
      for (const { reject } of this.#waiting.values())
        reject(new Error(`the load generator ended with ${code}`))
    })
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  /** `stop` ends the run before its time. */
  run(spec: Omit<LoadSpec, 'id'>): { readonly result: Promise<LoadResult>; stop(): void } {
    const id = ++this.#runs
    const send = (message: ToLoad): void => {
      this.#child.send(message)
    }
    const result = new Promise<LoadResult>((resolve, reject) =>
      this.#waiting.set(id, { resolve, reject }),
    )
    send({ run: { ...spec, id } })
    return { result, stop: () => send({ stop: id }) }
  }

  close(): void {
    this.#child.disconnect()
  }
}
