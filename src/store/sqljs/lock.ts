import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { chmod, constants, link, open, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { connect, createServer, type Server } from 'node:net'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { errorCodeOf } from '../../errors.ts'

const STARTING = /^starting-[0-9a-f]{16}$/
const MAX_SOCKET_PATH = 107 // bytes; Linux has 108 in sun_path, one of them the final NUL
const ANSWER_TIMEOUT = 1000 // ms that a holder has to say who it is
const MAX_ANSWER = 1024 // characters
const MAX_ATTEMPTS = 100 // each lost one means that another starter got further

export interface DirectoryLock {
  /**
   * Lets the next process in. The lock's name stays, as a plain file: the highest is never removed.
   */
  release(): Promise<void>
}

/** Another process, or this one, holds the directory. */
export class DirectoryLocked extends Error {
  constructor(dir: string, holder: string) {
    super(`${dir} is in use by ${holder}: stop that first, or set PLANTS_DATA to another directory`)
  }
}

type Locate = (name: string) => string

/**
 * Takes the directory for this process: the holder listens on the socket with the highest name
 * `lock-N`, and the kernel refuses connections to it the moment that process is gone, in whatever
 * namespace it ran. Only link() decides. Whoever links `lock-(N+1)` has seen N dead; a starter that
 * slept since an older N finds its name taken, or links it below the highest, which is never
 * removed, and sees that it lost.
 * @throws DirectoryLocked when somebody holds it; anything else that kept it from being known is
 * thrown as it is.
 */
export async function lockDirectory(dir: string): Promise<DirectoryLock> {
  return withSockets(dir, async (locate) => {
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      const last = await highest(dir)
      const holder = await ask(locate(`lock-${last}`))
      if (holder !== undefined) throw new DirectoryLocked(dir, holder)
      const server = await tryToHold(dir, locate, last + 1n)
      if (server !== undefined) return { release: () => release(dir, last + 1n, server) }
    }
    throw new Error(
      `${dir} could not be locked: other processes kept starting on it at the same time`,
    )
  })
}

export async function isLocked(dir: string): Promise<boolean> {
  return withSockets(dir, async (locate) => {
    for (;;) {
      const last = await highest(dir)
      if ((await ask(locate(`lock-${last}`))) !== undefined) return true
      // A holder that started meanwhile has a higher name.
      if ((await highest(dir)) === last) return false
    }
  })
}

/**
 * Listens under a random name, then links it to `lock-N`; the server where this process is now the
 * holder.
 */
async function tryToHold(dir: string, locate: Locate, number: bigint): Promise<Server | undefined> {
  const server = createServer((socket) => {
    socket.unref().on('error', () => socket.destroy())
    socket.end(introduction(), () => socket.destroy())
  }).unref()
  const name = randomName()
  let held = false
  try {
    // Exclusive: a cluster's worker would otherwise let its primary listen.
    server.listen({ path: locate(name), exclusive: true })
    await once(server, 'listening')
    // A connection that cannot be accepted (no descriptors left) is no reason to stop: the lock
    // holds all the same.
    server.on('error', () => {})
    await chmod(join(dir, name), 0o600)
    await link(join(dir, name), join(dir, `lock-${number}`))
    if ((await highest(dir)) !== number) return undefined
    await removeOthers(dir, number)
    held = true
    return server
  } catch (error) {
    // EEXIST: another starter was first. ENOENT: another one won, and removed our random name.
    const code = errorCodeOf(error)
    if (code !== 'EEXIST' && code !== 'ENOENT') throw error
    return undefined
  } finally {
    if (!held) await close(server)
  }
}

/**
 * Puts an empty file in the socket's place before it falls silent: the name stays, to which nobody
 * answers any more, and the directory holds nothing but plain files, which every tool can copy.
 * Where that fails, the silent socket serves as well.
 */
async function release(dir: string, number: bigint, server: Server): Promise<void> {
  const name = randomName()
  try {
    await writeFile(join(dir, name), '', { flag: 'wx', mode: 0o600 })
    await rename(join(dir, name), join(dir, `lock-${number}`))
  } catch {
    await rm(join(dir, name), { force: true }).catch(() => {})
  }
  await close(server)
}

function randomName(): string {
  return `starting-${randomBytes(8).toString('hex')}`
}

/**
 * Removes lower locks, and random names: those of dead starters, our own, and those of live ones,
 * which start over.
 */
async function removeOthers(dir: string, own: bigint): Promise<void> {
  for (const name of await readdir(dir)) {
    const number = lockNumber(name)
    if (number > 0n ? number < own : STARTING.test(name)) await rm(join(dir, name), { force: true })
  }
}

/** The number of the highest lock, 0 where there is none. */
async function highest(dir: string): Promise<bigint> {
  return (await readdir(dir))
    .map(lockNumber)
    .reduce((most, number) => (number > most ? number : most), 0n)
}

/** 0 for a name that is no lock's. */
export function lockNumber(name: string): bigint {
  return BigInt(/^lock-([1-9][0-9]*)$/.exec(name)?.[1] ?? 0)
}

/** Who listens there, in words; undefined where nobody does. */
function ask(path: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    let answer = ''
    const socket = connect({ path }).setEncoding('utf8')
    const timer = setTimeout(() => socket.destroy(), ANSWER_TIMEOUT)
    socket.on('data', (chunk) => {
      answer += chunk
      if (answer.length > MAX_ANSWER) socket.destroy()
    })
    socket.on('error', (error) => {
      const code = errorCodeOf(error)
      // Linux refuses a connection to a plain file; elsewhere it may be said to be no socket.
      if (code === 'ECONNREFUSED' || code === 'ENOENT' || code === 'ENOTSOCK') resolve(undefined)
      // EAGAIN: so many wait for its answer already that no more can. ECONNRESET: it was there a
      // moment ago.
      else if (code !== 'EAGAIN' && code !== 'ECONNRESET') reject(error)
    })
    socket.on('close', () => {
      clearTimeout(timer)
      resolve(describe(answer))
    })
  })
}

function introduction(): string {
  const started = new Date(performance.timeOrigin).toISOString()
  return `${JSON.stringify({ pid: process.pid, hostname: hostname(), started })}\n`
}

function describe(answer: string): string {
  try {
    // Object() makes an object of anything; its members are still unknown.
    const { pid, hostname, started } = Object(JSON.parse(answer)) as Readonly<
      Record<string, unknown>
    >
    if (typeof pid === 'number')
      return `process ${pid} on host ${String(hostname)}, started at ${String(started)}`
  } catch {
    // Cut short or not ours: it is there all the same.
  }
  return 'a process that did not answer'
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => server.close(() => resolve()))
}

/**
 * Runs `use` with a way from a name in the directory to a path that is short enough for a socket.
 */
async function withSockets<T>(dir: string, use: (locate: Locate) => Promise<T>): Promise<T> {
  const handle = await open(dir, constants.O_RDONLY | constants.O_DIRECTORY)
  try {
    return await use((name) => {
      const path = join(dir, name)
      return Buffer.byteLength(path) > MAX_SOCKET_PATH ? `/proc/self/fd/${handle.fd}/${name}` : path
    })
  } finally {
    await handle.close()
  }
}
