import {
  closeSync,
  constants,
  createReadStream,
  fstatSync,
  openSync,
  readSync,
  write,
  writeSync,
} from 'node:fs'
import * as fs from 'node:fs/promises'
import { dirname } from 'node:path'
import { errorCodeOf } from '../../errors.ts'

/**
 * How a file is opened. `durable`: an existing file; each write is durable when it returns
 * (O_DSYNC: one system call instead of write and fdatasync). `temporary`: a new or emptied file;
 * it is durable once `sync` has returned.
 */
export type Mode = 'durable' | 'temporary'

/** One open file. Each method is one system call, so that a test can make any of them fail. */
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

export const nodeFiles: Files = {
  makeDirectory,
  list: (directory) => fs.readdir(directory),
  async read(path, roomBytes = 0) {
    const bytes = await fs.readFile(path)
    return roomBytes === 0 ? bytes : Buffer.concat([bytes], bytes.length + roomBytes)
  },
  async readStart(path, lengthBytes) {
    const chunks: Buffer[] = []
    for await (const chunk of createReadStream(path, { end: lengthBytes - 1 }))
      chunks.push(Buffer.from(chunk))
    return Buffer.concat(chunks)
  },
  async open(path, mode) {
    const handle = await fs.open(path, FLAGS[mode], 0o600)
    return {
      // Every batch waits for one write, and `handle.write` takes 10 µs more than this. `close`
      // does not wait for a write that is under way; the callers do.
      write: (bytes, at) =>
        new Promise((resolve, reject) => {
          write(handle.fd, bytes, 0, bytes.length, at, (error, taken) =>
            error ? reject(error) : resolve(taken),
          )
        }),
      sync: () => (mode === 'durable' ? handle.datasync() : handle.sync()),
      truncate: (lengthBytes) => handle.truncate(lengthBytes),
      close: () => handle.close(),
    }
  },
  rename: (from, to) => fs.rename(from, to),
  remove: (path) => fs.unlink(path),
  async syncDirectory(path) {
    const handle = await fs.open(path, 'r')
    try {
      await handle.sync()
    } finally {
      await handle.close()
    }
  },
}

/** How much one call reads or writes. Linux allows 2 GiB. */
const CALL_BYTES = 64 * 1024 * 1024
/** A `blockingFiles` write takes at most so many bytes. */
const PIECE_BYTES = 1024 * 1024

/**
 * File access of a thread that compacts. All that takes long is synchronous, so it runs at the
 * thread's niceness: Node runs asynchronous calls in threads of its own, at niceness 0. There the
 * write of a snapshot took the core from requests for 6 to 8 ms at a time (62 MB, seen). Each piece
 * is durable when its write returns, so a line of the journal never waits for more than one.
 */
export const blockingFiles: Files = {
  ...nodeFiles,
  async read(path, roomBytes = 0) {
    const descriptor = openSync(path, 'r')
    try {
      const { size } = fstatSync(descriptor)
      // Zeros take no memory until they are written to.
      const bytes = Buffer.alloc(size + roomBytes)
      for (let at = 0; at < size; ) {
        const taken = readSync(descriptor, bytes, at, Math.min(size - at, CALL_BYTES), at)
        if (taken === 0) throw new Error(`${path} became shorter while it was read`)
        at += taken
      }
      return bytes
    } finally {
      closeSync(descriptor)
    }
  },
  async open(path, mode) {
    const handle = await fs.open(path, FLAGS[mode] | O_DSYNC, 0o600)
    return {
      write: async (bytes, at) =>
        writeSync(handle.fd, bytes, 0, Math.min(bytes.length, PIECE_BYTES), at),
      // Little is left to sync. Node's permission model forbids fsyncSync.
      sync: () => handle.sync(),
      truncate: (lengthBytes) => handle.truncate(lengthBytes),
      close: () => handle.close(),
    }
  },
}
