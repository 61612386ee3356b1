/* One process at a time for a directory. */

import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, constants, openSync } from 'node:fs'
import { chmod, link, lstat, readdir, rename, rm, stat, writeFile } from 'node:fs/promises'
import { connect, createServer } from 'node:net'
import { join } from 'node:path'
import { errorCodeOf, reasonOf } from '../../../errors.ts'

const STARTING = /^starting-[0-9a-f]{16}$/
/** What file systems say that have no unix sockets: exFAT, FAT, shares of a virtual machine. */
const NO_SOCKETS: readonly unknown[] = ['EIO', 'EPERM', 'ENOTSUP', 'ENOSYS', 'EINVAL']
/** Linux has 108 bytes in sun_path, one of them for the final NUL. Node would cut a longer path. */
const MAX_SOCKET_PATH_BYTES = 107

/** The directory and the socket that a process holds, as they were when it took the lock. */
export interface LockPlace {
  readonly directory: string
  readonly name: string
  /** Device and inode of each. */
  readonly identity: string
}

/** An error for a directory whose path does not lead to the lock of this process any more. */
export function lockLost({ directory, name }: LockPlace): Error {
  const what = `${join(directory, name)} is not the lock of this process any more`
  const why = `${directory} was moved or replaced, or the lock was removed`
  const advice = 'stop the service, put the directory back in its place, and start again'
  return new Error(`${what}: ${why}; ${advice}`)
}

export interface DirectoryLock {
  /** What `isHeld` checks; undefined for a lock of another kind. */
  readonly place?: LockPlace
  /** Lets the next process in. The lock's name stays as a plain file. */
  release(): Promise<void>
}

/** A process holds the directory; it may be this one. */
export class DirectoryLocked extends Error {
  constructor(dir: string) {
    const holder = 'another process, or by another service of this one'
    const other = 'choose another directory (PLANTS_DATA, or the option data)'
    super(`${dir} is in use by ${holder}: stop that first, or ${other}`)
  }
}
DirectoryLocked.prototype.name = 'DirectoryLocked'

/**
 * Takes the directory for this process. The holder listens on the socket `lock-N` with the highest
 * N. The kernel refuses connections to it as soon as its process has ended, in any namespace.
 *
 * Only link() decides. A process finds that nothing listens on `lock-N`, the highest, and links its
 * socket to `lock-(N+1)`. Others may do the same meanwhile, or have done it before the process
 * looked at `lock-N`. There are three cases:
 * - The name is taken: another process was first. This one starts over.
 * - The link succeeds, but a higher name exists: others took and lost the lock meanwhile, and this
 *   process lost. It sees that, because the highest name is never removed.
 * - The link succeeds, and it is the highest: this process holds the lock.
 * @throws DirectoryLocked if a process holds it; any other error if that cannot be known.
 */
export async function lockDirectory(dir: string): Promise<DirectoryLock> {
  // An attempt is lost only to another process that got further, or on an odd file system.
  for (let attempt = 0; attempt < 100; attempt++) {
    const last = await highest(dir)
    if (await throughSocket(dir, `lock-${last}`, isListening)) throw new DirectoryLocked(dir)
    const lock = await tryToHold(dir, last + 1n)
    if (lock) return lock
  }
  throw new Error(`${dir} could not be locked: other processes kept starting at the same time`)
}

/** May be false while another process takes the lock: then a name is added meanwhile. */
export async function isLocked(dir: string): Promise<boolean> {
  return throughSocket(dir, `lock-${await highest(dir)}`, isListening)
}

/** Whether the path still leads to the lock of this process. @throws if that cannot be known. */
export async function isHeld({ directory, name, identity }: LockPlace): Promise<boolean> {
  const found = await identityOf(directory, name).catch((error: unknown) => {
    const code = errorCodeOf(error)
    if (code !== 'ENOENT' && code !== 'ENOTDIR') throw error
  })
  return found === identity
}

/** The number in a lock's name, 0 for another file's. */
export function lockNumber(name: string): bigint {
  return BigInt(/^lock-([1-9][0-9]*)$/.exec(name)?.[1] ?? 0)
}

/** The number of the highest lock, 0 if there is none. */
async function highest(dir: string): Promise<bigint> {
  const numbers = (await readdir(dir)).map(lockNumber)
  return numbers.reduce((most, number) => (number > most ? number : most), 0n)
}

/** Listens under a random name, and links it to `lock-N`. Undefined if another one was first. */
async function tryToHold(directory: string, number: bigint): Promise<DirectoryLock | undefined> {
  const server = createServer((socket) => socket.destroy()).unref()
  const close = () => once(server.close(), 'close').then(() => undefined)
  const name = `lock-${number}`
  const starting = `starting-${randomBytes(8).toString('hex')}`
  const own = join(directory, starting)
  try {
    // Exclusive: else the primary process of a cluster would listen for its workers.
    const listen = (path: string) => once(server.listen({ path, exclusive: true }), 'listening')
    await throughSocket(directory, starting, listen).catch(async (error: unknown) => {
      if (!NO_SOCKETS.includes(errorCodeOf(error))) throw error
      // One that is left is a plain file.
      await rm(own, { force: true })
      const what = 'this file system has no unix sockets, which the lock needs: choose another'
      throw new Error(`${reasonOf(error)}; ${what}`, { cause: error })
    })
    // The lock holds even if a connection cannot be accepted (no descriptors left).
    server.on('error', () => {})
    await chmod(own, 0o600)
    // A link to a file has its inode.
    const place = { directory, name, identity: await identityOf(directory, starting) }
    await link(own, join(directory, name))
    if ((await highest(directory)) !== number) return await close()
    await removeOthers(directory, number)
    if (!(await isHeld(place))) throw lockLost(place)
    return { place, release: () => leavePlainFile(place, own).then(close) }
  } catch (error) {
    await close()
    // EEXIST: another process was first. ENOENT: another one won, and removed our random name.
    const code = errorCodeOf(error)
    if (code !== 'EEXIST' && code !== 'ENOENT') throw error
    return undefined
  }
}

/**
 * Replaces the socket by an empty file: then the directory holds only plain files, which every tool
 * can copy. If that fails, a closed socket does as well.
 */
async function leavePlainFile(place: LockPlace, own: string): Promise<void> {
  if (!(await isHeld(place).catch(() => false))) return
  const file = writeFile(own, '', { flag: 'wx', mode: 0o600 })
  await file.then(() => rename(own, join(place.directory, place.name))).catch(() => {})
}

/** Removes lower locks and all random names. Processes that are still starting start over. */
async function removeOthers(dir: string, own: bigint): Promise<void> {
  for (const name of await readdir(dir)) {
    const number = lockNumber(name)
    if (number > 0n ? number < own : STARTING.test(name)) await rm(join(dir, name), { force: true })
  }
}

/** Device and inode of a directory, and of a file in it. */
export async function identityOf(directory: string, name: string): Promise<string> {
  const dir = await stat(directory, { bigint: true })
  const lock = await lstat(join(directory, name), { bigint: true })
  return `${dir.dev}:${dir.ino} ${lock.dev}:${lock.ino}`
}

/** Whether a process listens there. The kernel says it, whatever that process does. */
async function isListening(path: string): Promise<boolean> {
  const socket = connect(path)
  try {
    await once(socket, 'connect')
  } catch (error) {
    const code = errorCodeOf(error)
    // Linux refuses a connection to a plain file; elsewhere it may be said to be no socket.
    if (code === 'ECONNREFUSED' || code === 'ENOENT' || code === 'ENOTSOCK') return false
    // Its backlog is full; or it was there a moment ago.
    if (code !== 'EAGAIN' && code !== 'ECONNRESET') throw error
  } finally {
    socket.destroy()
  }
  return true
}

/** Uses a socket. One whose path is too long is reached through the open directory. */
async function throughSocket<T>(dir: string, name: string, use: (path: string) => Promise<T>) {
  const path = join(dir, name)
  if (Buffer.byteLength(path) <= MAX_SOCKET_PATH_BYTES) return use(path)
  if (process.platform !== 'linux')
    throw new Error(`the path of ${dir} is too long for the socket that locks it`)
  const descriptor = openSync(dir, constants.O_RDONLY | constants.O_DIRECTORY)
  try {
    return await use(`/proc/self/fd/${descriptor}/${name}`)
  } finally {
    closeSync(descriptor)
  }
}
