import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, constants, openSync } from 'node:fs'
import { access, chmod, link, lstat, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { connect, createServer, type Server } from 'node:net'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { errorCodeOf, isError } from '../../errors.ts'

const STARTING = /^starting-[0-9a-f]{16}$/
/** Linux has 108 bytes in sun_path, one of them for the final NUL. */
const MAX_SOCKET_PATH_BYTES = 107
/** The time that a holder has to say who it is. */
const ANSWER_TIMEOUT_MS = 1000
const MAX_ANSWER_CHARS = 1024
const INTRODUCTION = /^process \d+ on host \S+, started at \S+$/
/** An attempt is lost only to another process that got further. */
const MAX_ATTEMPTS = 100

/** The file that a process holds, while a directory is locked. */
export interface LockPlace {
  /** The directory as the operator names it. */
  readonly directory: string
  /** The path by which its files are used: `Opened.root`. */
  readonly root: string
  readonly name: string
  readonly dev: bigint
  readonly ino: bigint
}

/** The path of a directory does not lead to the lock of this process any more. */
export class LockLost extends Error {
  constructor({ directory, name }: LockPlace) {
    const what = `${join(directory, name)} is not the lock of this process any more`
    const why = `${directory} was moved or replaced, or the lock was removed`
    const advice = 'stop the service, put the directory back in its place, and start again'
    super(`${what}: ${why}; ${advice}`)
  }
}
LockLost.prototype.name = 'LockLost'

export interface DirectoryLock {
  /** What `checkHeld` checks; undefined for a lock of another kind. */
  readonly place?: LockPlace
  /**
   * Lets the next process in. The lock's name stays as a plain file: the highest is never removed.
   */
  release(): Promise<void>
}

/** A process holds the directory; it may be this one. */
export class DirectoryLocked extends Error {
  constructor(dir: string, holder: string) {
    const other = 'choose another directory (PLANTS_DATA, or the option data)'
    super(`${dir} is in use by ${holder}: stop that first, or ${other}`)
  }
}
DirectoryLocked.prototype.name = 'DirectoryLocked'

/** A directory that was opened. It stays the same if its path is changed meanwhile. */
interface Opened {
  readonly dir: string
  /** A path that leads to it as long as it is open, or `dir` where there is no such path. */
  readonly root: string
  /** A path for a socket in it. */
  locate(name: string): string
  /** An error of its use, as an operator may read it. */
  named(error: unknown): unknown
  close(): void
}

/**
 * Takes the directory for this process. The holder listens on the socket `lock-N` with the highest
 * N. The kernel refuses connections to it as soon as its process has ended, in any namespace.
 *
 * Only link() decides. A process finds that nothing listens on `lock-N`, the highest, and links its
 * socket to `lock-(N+1)`. Others may do the same meanwhile. There are three cases:
 * - The name is taken: another process was first. This one starts over.
 * - The link succeeds, but a higher name exists: others took and lost the lock meanwhile, and this
 *   process lost. It sees that, because the highest name is never removed.
 * - The link succeeds, and it is the highest: this process holds the lock.
 * @throws DirectoryLocked if a process holds it; any other error if that cannot be known.
 */
export async function lockDirectory(dir: string): Promise<DirectoryLock> {
  const at = await opened(dir)
  let lock: DirectoryLock | undefined
  try {
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      const { last, holder } = await lastLock(at)
      if (holder !== undefined) throw new DirectoryLocked(dir, holder)
      lock = await tryToHold(at, last + 1n)
      if (lock) return lock
    }
    throw new Error(`${dir} could not be locked: other processes kept starting at the same time`)
  } catch (error) {
    throw at.named(error)
  } finally {
    if (!lock) at.close()
  }
}

export async function isLocked(dir: string): Promise<boolean> {
  const at = await opened(dir)
  try {
    return (await lastLock(at)).holder !== undefined
  } catch (error) {
    throw at.named(error)
  } finally {
    at.close()
  }
}

/** The highest lock, and what holds it; undefined if nothing does. */
async function lastLock({
  root,
  locate,
}: Opened): Promise<{ readonly last: bigint; readonly holder: string | undefined }> {
  for (;;) {
    const last = await highest(root)
    const holder = await ask(locate(`lock-${last}`))
    // A process that took the lock meanwhile has a higher name.
    if (holder !== undefined || (await highest(root)) === last) return { last, holder }
  }
}

/**
 * Listens under a random name, then links it to `lock-N`. Returns the lock if this process now
 * holds it, else undefined.
 */
async function tryToHold(at: Opened, number: bigint): Promise<DirectoryLock | undefined> {
  const { dir, root, locate } = at
  const server = createServer((socket) => {
    socket.unref().on('error', () => socket.destroy())
    socket.end(introduction(), () => socket.destroy())
  }).unref()
  const name = `lock-${number}`
  const own = randomName()
  let held = false
  try {
    // Exclusive: else the primary process of a cluster would listen for its workers.
    server.listen({ path: locate(own), exclusive: true })
    await once(server, 'listening')
    // The lock holds even if a connection cannot be accepted (no descriptors left).
    server.on('error', () => {})
    await chmod(join(root, own), 0o600)
    const { dev, ino } = await lstat(join(root, own), { bigint: true })
    const place = { directory: dir, root, name, dev, ino }
    await link(join(root, own), join(root, name))
    if ((await highest(root)) !== number) return undefined
    await removeOthers(root, number)
    await checkHeld(place)
    held = true
    return { place, release: () => release(place, server).finally(at.close) }
  } catch (error) {
    // EEXIST: another process was first. ENOENT: another one won, and removed our random name.
    const code = errorCodeOf(error)
    if (code !== 'EEXIST' && code !== 'ENOENT') throw error
    return undefined
  } finally {
    if (!held) await close(server)
  }
}

/**
 * Checks the lock by the operator's path of the directory, or by another one.
 * @throws LockLost; any other error if that cannot be known.
 */
export async function checkHeld(place: LockPlace, path = place.directory): Promise<void> {
  const isGone = (error: unknown): boolean =>
    errorCodeOf(error) === 'ENOENT' || errorCodeOf(error) === 'ENOTDIR'
  const found = await lstat(join(path, place.name), { bigint: true }).catch((error: unknown) => {
    if (!isGone(error)) throw error
  })
  if (found?.ino !== place.ino || found.dev !== place.dev) throw new LockLost(place)
}

/**
 * Replaces the socket by an empty file, then closes it: the name stays, and the directory holds
 * only plain files, which every tool can copy. If that fails, a closed socket does as well.
 */
async function release(place: LockPlace, server: Server): Promise<void> {
  const { root, name } = place
  const temporary = join(root, randomName())
  try {
    await checkHeld(place, root)
    await writeFile(temporary, '', { flag: 'wx', mode: 0o600 })
    await rename(temporary, join(root, name))
  } catch {
    await rm(temporary, { force: true }).catch(() => {})
  }
  await close(server)
}

function randomName(): string {
  return `starting-${randomBytes(8).toString('hex')}`
}

/** Removes lower locks and all random names. Processes that are still starting start over. */
async function removeOthers(dir: string, own: bigint): Promise<void> {
  for (const name of await readdir(dir)) {
    const number = lockNumber(name)
    if (number > 0n ? number < own : STARTING.test(name)) await rm(join(dir, name), { force: true })
  }
}

/** The number of the highest lock, 0 if there is none. */
async function highest(dir: string): Promise<bigint> {
  return (await readdir(dir))
    .map(lockNumber)
    .reduce((most, number) => (number > most ? number : most), 0n)
}

/** The number in a lock's name, 0 for another file's. */
export function lockNumber(name: string): bigint {
  return BigInt(/^lock-([1-9][0-9]*)$/.exec(name)?.[1] ?? 0)
}

/** Describes the process that listens there; undefined if none does. */
function ask(path: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    let answer = ''
    const socket = connect({ path }).setEncoding('utf8')
    const timer = setTimeout(() => socket.destroy(), ANSWER_TIMEOUT_MS)
    socket.on('data', (chunk) => {
      answer += chunk
      if (answer.length > MAX_ANSWER_CHARS) socket.destroy()
    })
    socket.on('error', (error) => {
      const code = errorCodeOf(error)
      // Linux refuses a connection to a plain file; elsewhere it may be said to be no socket.
      if (code === 'ECONNREFUSED' || code === 'ENOENT' || code === 'ENOTSOCK') resolve(undefined)
      // EAGAIN: its backlog is full. ECONNRESET: it was there a moment ago.
      else if (code !== 'EAGAIN' && code !== 'ECONNRESET') reject(error)
    })
    socket.on('close', () => {
      clearTimeout(timer)
      resolve(INTRODUCTION.test(answer) ? answer : 'a process that did not answer')
    })
  })
}

function introduction(): string {
  const started = new Date(performance.timeOrigin).toISOString()
  return `process ${process.pid} on host ${hostname()}, started at ${started}`
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => server.close(() => resolve()))
}

async function opened(dir: string): Promise<Opened> {
  // A FileHandle might be closed as garbage, and the directory would not be held any more.
  const descriptor = openSync(dir, constants.O_RDONLY | constants.O_DIRECTORY)
  const own = `/proc/self/fd/${descriptor}`
  const root = (await isUsable(own)) ? own : dir
  const isTooLong = (path: string): boolean => Buffer.byteLength(path) > MAX_SOCKET_PATH_BYTES
  return {
    dir,
    root,
    // Node's permission model is not for sockets.
    locate: (name) => (isTooLong(join(root, name)) ? join(own, name) : join(root, name)),
    named: (error) => withPath(error, own, dir),
    close: () => closeSync(descriptor),
  }
}

/** The same error. An operator knows the directory by its path, not by `root`. */
export function withPath(error: unknown, root: string, directory: string): unknown {
  if (!isError(error)) return error
  error.message = error.message.replaceAll(root, () => directory)
  if (error.stack !== undefined) error.stack = error.stack.replaceAll(root, () => directory)
  return error
}

/** Linux has such paths. Node's permission model may forbid this process to use them. */
async function isUsable(own: string): Promise<boolean> {
  // There is no `permission` without that model, which Node's types do not say.
  const { permission } = process as { readonly permission?: NodeJS.ProcessPermission }
  if (permission?.has('fs.write', own) === false) return false
  return access(own).then(
    () => true,
    () => false,
  )
}
