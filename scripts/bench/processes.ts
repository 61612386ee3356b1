import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Row } from '../../dist/store/sqljs/disk/journal-format.js'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import { call, post } from '../../test/support/http.ts'
import { type Environment, FLAGS, launch, serviceEnvironment } from '../../test/support/launch.ts'
import { freePort } from '../../test/support/ports.ts'
import { run } from '../../test/support/process.ts'
import { rowsOf, writeStore } from '../../test/support/store-files.ts'
import { prefix } from './machine.ts'
import { created, type Filling, page, plant, tokenOf, user } from './plants.ts'

const START_MS_MAX = 60_000
const BARE = fileURLToPath(new URL('bare.mjs', import.meta.url))
const NODE_ARGS = process.env['NODE_ARGS']?.split(' ').filter((arg) => arg !== '') ?? []

const work = temporaryDirectorySync()
// In memory: a write to a log on the disk may wait for the disk, and the server with it.
const logs = temporaryDirectorySync(existsSync('/dev/shm') ? '/dev/shm' : work)

export type Name = 'plant-store' | 'bare'

/** A server in a process, on the servers' core. */
export interface Server {
  readonly name: string
  readonly port: number
  readonly pid: number
  readonly data: string
  /** From the start of the process to its first answer. */
  readonly firstAnswerMs: number
  /** How many requests it got, with those that opened connections. */
  made: number
  /** What it wrote last, without its requests. */
  lastLines(): string
  stop(): Promise<void>
}

interface StartOptions {
  /** A directory that an earlier server left. */
  readonly data?: string | undefined
  /** Settings that make it keep its plants in etcd. */
  readonly etcd?: Environment
}

/** Starts a server on a store that is filled so, and checks its answers. */
export async function start(
  name: Name,
  filling: Filling,
  { data: left, etcd }: StartOptions = {},
): Promise<Server> {
  const isBare = name === 'bare'
  const port = await freePort()
  const logFile = join(logs, String(port))
  const data = left ?? join(work, String(port))
  if (!isBare && left === undefined && filling.users > 0) await fill(data, filling)
  if (etcd) {
    const { status, stderr } = await run(['import', join(data, 'plants.sqlite')], etcd)
    if (status !== 0) throw new Error(`the import into etcd failed: ${stderr}`)
  }
  const listen = { PLANTS_LISTEN: `127.0.0.1:${port}`, PLANTS_ADMIN_LISTEN: 'off' }
  const settings = isBare
    ? { PORT: String(port), PAGE20: page(0, 20), PAGE100: page(0, 100), CREATED: created }
    : serviceEnvironment(data, { ...listen, ...etcd })
  // What was written so far must not be flushed under the load.
  spawnSync('sync')
  const startedAtMs = performance.now()
  const options = [...FLAGS, ...(isBare ? [] : NODE_ARGS)]
  const { child, pid, kill } = launch(
    { NODE_ENV: 'production', ...settings },
    { prefix: prefix(), logFile, options, ...(isBare && { main: BARE, args: [] }) },
  )
  const lastLines = (): string => {
    const lines = readFileSync(logFile, 'utf8').split('\n')
    return lines
      .filter((line) => !line.includes('"message":"request"'))
      .slice(-10)
      .join('\n')
  }
  const first = { path: '/plants?limit=20', token: tokenOf(0) }
  while (!(await call(port, first).catch(() => undefined))) {
    if (child.exitCode !== null || performance.now() - startedAtMs > START_MS_MAX)
      throw new Error(`${name} does not answer: ${lastLines()}`)
    await sleep(1)
  }
  const firstAnswerMs = performance.now() - startedAtMs
  await checkPages(port, isBare, filling)
  // A store that was filled by hand is given an id before its first create.
  const one = { id: 1, name: 'first' }
  const bearer = { token: tokenOf(filling.users) }
  while (!isBare && (await post(port, one, bearer)).status === 503) await sleep(20)
  const stop = async (): Promise<void> => {
    const code = await kill('SIGTERM')
    if (!isBare && code !== 0) throw new Error(`plant-store ended with ${code}: ${lastLines()}`)
  }
  return {
    name: etcd ? 'over etcd' : name,
    port,
    pid,
    data,
    firstAnswerMs,
    made: 0,
    lastLines,
    stop,
  }
}

/** Fills a store as a clean stop leaves it. */
async function fill(data: string, { users, plants }: Filling): Promise<void> {
  const row = (index: number): Row => {
    const { name, tag } = plant(index)
    const owner = user(Math.floor(index / plants))
    const id = String(index + 1)
    return tag === undefined ? [owner, id, name] : [owner, id, name, tag]
  }
  await writeStore(data, rowsOf(users * plants, row))
}

/** Answers must be right before they are counted. */
async function checkPages(
  port: number,
  isBare: boolean,
  { users, plants }: Filling,
): Promise<void> {
  // The bare server has the pages of one user, of two lengths.
  for (const u of isBare ? [0] : [0, users - 1]) {
    for (const limit of [20, 100]) {
      const options = { path: `/plants?limit=${limit}`, token: tokenOf(u) }
      const { status, text } = await call(port, options)
      const length = isBare ? limit : Math.min(limit, plants)
      if (status !== 200 || text !== page(u * plants, length))
        throw new Error(`a wrong answer: ${status} ${text.slice(0, 300)}`)
    }
  }
}
