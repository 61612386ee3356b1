import { constants, read, readSync, write, writeSync } from 'node:fs'
import * as fs from 'node:fs/promises'
import { dirname } from 'node:path'
import { promisify } from 'node:util'
import { errorCodeOf } from '../../errors.ts'

/**
 * How a file is opened. `durable`: an existing file; each write is durable when it returns
 * (O_DSYNC: one system call instead of write and fdatasync). `temporary`: a new or emptied file;
 * it is durable once `sync` has returned.
 */
export type Mode = 'durable' | 'temporary'

/**
 * One open file. Each method is one system call, so that a test can make any of them fail. They
 * use no `this`: what wraps a file copies them.
 */
export interface File {
  /** Writes from byte `at` on. Returns how many bytes were taken; fewer is a short write. */
  write(bytes: Uint8Array, at: number): Promise<number>
  sync(): Promise<void>
  truncate(lengthBytes: number): Promise<void>
  close(): Promise<void>
}

/** All file access of the store. A test replaces one call of it, or the whole disk. */
export interface Files {
  /** Creates a directory and those above it, with mode 0700, unless they exist. */
  makeDirectory(path: string): Promise<void>
  /** The names in a directory. */
  list(directory: string): Promise<readonly string[]>
  /** A file's bytes, and `roomBytes` zeros after them, by default none. */
  read(path: string, roomBytes?: number): Promise<Buffer>
  /** A file's first bytes, at most `lengthBytes`. */
  readStart(path: string, lengthBytes: number): Promise<Buffer>
  open(path: string, mode: Mode): Promise<File>
  rename(from: string, to: string): Promise<void>
  remove(path: string): Promise<void>
  /** Makes creations, renames and removals in a directory durable. */
  syncDirectory(path: string): Promise<void>
}

const { O_CREAT, O_DSYNC, O_TRUNC, O_WRONLY } = constants
// Without O_DSYNC the store would acknowledge writes that are not synced.
if (O_DSYNC === undefined) throw new Error('this platform has no O_DSYNC, which the store needs')
const FLAGS: Readonly<Record<Mode, number>> = {
  durable: O_WRONLY | O_DSYNC,
  temporary: O_WRONLY | O_CREAT | O_TRUNC,
}
/** How much one call reads or writes. Linux allows 2 GiB. */
export const CALL_BYTES = 64 * 1024 * 1024
/** How much one write of a thread that compacts takes. */
const PIECE_BYTES = 1024 * 1024

/** How bytes come from an open file and into it. Returns how many. */
interface Transfer {
  readonly read: (fd: number, bytes: Buffer, at: number, most: number) => Promise<number> | number
  readonly write: (fd: number, bytes: Uint8Array, at: number) => Promise<number> | number
  /** With which flags a file is opened, besides those of its mode. */
  readonly flags: number
}

const readLater = promisify(read)
const writeLater = promisify(write)

/** File access of the threads that answer requests. `close` does not wait for a write. */
export const nodeFiles = filesWith({
  read: async (fd, bytes, at, most) => (await readLater(fd, bytes, at, most, at)).bytesRead,
  // Every batch waits for one write, and that of a FileHandle takes 10 µs more.
  write: async (fd, bytes, at) => (await writeLater(fd, bytes, 0, bytes.length, at)).bytesWritten,
  flags: 0,
})

/**
 * File access of a thread that compacts. All that takes long is synchronous, so it runs at the
 * thread's niceness: Node runs asynchronous calls in threads of its own, at niceness 0. There the
 * write of a snapshot took the core from requests for 6 to 8 ms at a time (62 MB, seen). Each piece
 * is durable when its write returns, so a line of the journal never waits for more than one.
 */
export const blockingFiles = filesWith({
  read: (fd, bytes, at, most) => readSync(fd, bytes, at, most, at),
  write: (fd, bytes, at) => writeSync(fd, bytes, 0, Math.min(bytes.length, PIECE_BYTES), at),
  flags: O_DSYNC,
})

function filesWith({ read, write, flags }: Transfer): Files {
  /** A file's bytes, at most `mostBytes`, and `roomBytes` zeros after them. */
  async function readUpTo(path: string, mostBytes: number, roomBytes: number): Promise<Buffer> {
    const handle = await fs.open(path)
    try {
      const bytes = Math.min((await handle.stat()).size, mostBytes)
      // Zeros take no memory until they are written to.
      const contents = Buffer.alloc(bytes + roomBytes)
      let at = 0
      for (let taken = 1; at < bytes && taken > 0; at += taken)
        taken = await read(handle.fd, contents, at, Math.min(bytes - at, CALL_BYTES))
      // Less than there was: a service has cut off a line meanwhile.
      return contents.subarray(0, at + roomBytes)
    } finally {
      await handle.close()
    }
  }
  return {
    makeDirectory,
    list: (directory) => fs.readdir(directory),
    read: (path, roomBytes = 0) => readUpTo(path, Infinity, roomBytes),
    readStart: (path, lengthBytes) => readUpTo(path, lengthBytes, 0),
    async open(path, mode) {
      const handle = await fs.open(path, FLAGS[mode] | flags, 0o600)
      return {
        write: async (bytes, at) => write(handle.fd, bytes, at),
        // Node's permission model forbids fsyncSync. After durable writes little is left to sync.
        sync: () => (mode === 'durable' ? handle.datasync() : handle.sync()),
        truncate: (lengthBytes) => handle.truncate(lengthBytes),
        close: () => handle.close(),
      }
    },
    rename: (from, to) => fs.rename(from, to),
    remove: (path) => fs.unlink(path),
    async syncDirectory(path) {
      const handle = await fs.open(path)
      try {
        await handle.sync()
      } finally {
        await handle.close()
      }
    },
  }
}

/** With `recursive`, Node 20 never returns if a directory above was removed while it was in use. */
async function makeDirectory(path: string): Promise<void> {
  const make = (): Promise<void> => fs.mkdir(path, { mode: 0o700 })
  try {
    await make()
  } catch (error) {
    const code = errorCodeOf(error)
    if (code === 'EEXIST') return
    if (code !== 'ENOENT') throw error
    await makeDirectory(dirname(path))
    await make()
  }
}

/**
 * The errors of a directory that this process may not read, or of a file system that syncs no
 * directories. No start created such a directory, so its name is durable.
 */
const NOT_OURS: ReadonlySet<string | undefined> = new Set(['EACCES', 'EPERM', 'EROFS', 'EINVAL'])

/**
 * Makes a directory's name durable, and those of all directories above it: any of them may have
 * been created by a start that was killed before it synced them.
 */
export async function syncAbove(files: Files, path: string): Promise<void> {
  const above = dirname(path)
  if (above === path) return
  try {
    await files.syncDirectory(above)
  } catch (error) {
    if (!NOT_OURS.has(errorCodeOf(error))) throw error
  }
  await syncAbove(files, above)
}
