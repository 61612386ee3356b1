/* The calls of the file system that read and write the store's files. */

import * as fs from 'node:fs'
import { type FileHandle, mkdir, open, readdir, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { promisify } from 'node:util'
import { errorCodeOf, isError } from '../../../errors.ts'

/**
 * How a file is opened. `existing`: to be read. `durable`: an existing file; each write is durable
 * when it returns (O_DSYNC: one system call instead of write and fdatasync). `temporary`: a new
 * file, to be written and read; it is durable once `sync` has returned.
 */
export type Mode = 'existing' | 'durable' | 'temporary'

/**
 * One open file. Each method is one system call, so that a test can make any of them fail. They
 * use no `this`: what wraps a file copies them.
 */
export interface File {
  /** Writes from byte `at` on. Returns how many bytes were taken; fewer is a short write. */
  write(bytes: Uint8Array, at: number): Promise<number>
  /** As `write`, in the calling thread: SQLite cannot wait for a promise. */
  writeNow(bytes: Uint8Array, at: number): number
  /** Reads from byte `at` on. Returns how many bytes there were. */
  read(bytes: Uint8Array, at: number): Promise<number>
  /** As `read`, in the calling thread. */
  readNow(bytes: Uint8Array, at: number): number
  lengthBytes(): Promise<number>
  sync(): Promise<void>
  /** Lets a later `sync` take less time, in the calling thread. */
  syncNow(): void
  truncate(lengthBytes: number): Promise<void>
  close(): Promise<void>
}

/**
 * Access to the files of the store, but for lock and export. A test replaces one call of it, or the
 * whole disk.
 */
export interface Files {
  /** Creates a directory and those above it, with mode 0700, unless they exist. */
  makeDirectory(path: string): Promise<void>
  list(directory: string): Promise<readonly string[]>
  open(path: string, mode: Mode): Promise<File>
  rename(from: string, to: string): Promise<void>
  /** A file that is gone is no error. */
  remove(path: string): Promise<void>
  /** Makes creations, renames and removals in a directory durable. */
  syncDirectory(path: string): Promise<void>
}

const { O_CREAT, O_DSYNC, O_EXCL, O_RDONLY, O_RDWR, O_WRONLY } = fs.constants
// Without O_DSYNC the store would acknowledge writes that are not synced.
if (O_DSYNC === undefined) throw new Error('this platform has no O_DSYNC, which the store needs')
const FLAGS: Readonly<Record<Mode, number>> = {
  existing: O_RDONLY,
  durable: O_WRONLY | O_DSYNC,
  temporary: O_RDWR | O_CREAT | O_EXCL,
}
/**
 * How much one call reads or writes. Node runs these calls in threads of its own. On one core,
 * copying 64 MiB in one call kept requests waiting for 6 to 8 ms (seen).
 */
const CALL_BYTES = 1024 * 1024

const writeLater = promisify(fs.write)
/** Where packages are in archives (Yarn's Plug'n'Play), a FileHandle cannot sync. */
const syncLater = promisify(fs.fsync)

/** File access of every thread. */
export const nodeFiles: Files = {
  makeDirectory: async (path) => void (await mkdir(path, { recursive: true, mode: 0o700 })),
  list: (directory) => readdir(directory),
  open: async (path, mode) => fileOf(await open(path, FLAGS[mode], 0o600), path),
  rename,
  remove: (path) => rm(path, { force: true }),
  async syncDirectory(path) {
    const directory = await nodeFiles.open(path, 'existing')
    await directory.sync().finally(directory.close)
  },
}

/** The calls of an open file. Node does not say which file's call failed: `path` does. */
export function fileOf(handle: FileHandle, path: string): File {
  const named = (error: unknown): never => {
    if (isError(error)) error.message += ` '${path}'`
    throw error
  }
  const now = <T>(call: () => T): T => {
    try {
      return call()
    } catch (error) {
      return named(error)
    }
  }
  // `fd` is read at each call: after a close, the number may soon be that of another file.
  return {
    // Every batch waits for one write, and that of a FileHandle takes 10 µs more.
    write: async (bytes, at) =>
      (await writeLater(handle.fd, bytes, 0, bytes.length, at).catch(named)).bytesWritten,
    read: async (bytes, at) =>
      (await handle.read(bytes, 0, bytes.length, at).catch(named)).bytesRead,
    writeNow: (bytes, at) => now(() => fs.writeSync(handle.fd, bytes, 0, bytes.length, at)),
    readNow: (bytes, at) => now(() => fs.readSync(handle.fd, bytes, 0, bytes.length, at)),
    lengthBytes: async () => (await handle.stat().catch(named)).size,
    sync: () => syncLater(handle.fd).catch(named),
    syncNow: () => now(() => fs.fdatasyncSync(handle.fd)),
    truncate: (lengthBytes) => handle.truncate(lengthBytes).catch(named),
    close: () => handle.close(),
  }
}

/** Writes all of the bytes, from byte `from` on. */
export async function writeWhole(file: File, bytes: Uint8Array, from: number): Promise<void> {
  for (let at = 0; at < bytes.length; ) {
    const taken = await file.write(bytes.subarray(at, at + CALL_BYTES), from + at)
    if (taken === 0) throw new Error('the file system took no bytes')
    at += taken
  }
}

/** A file's first bytes, at most `maxBytes`; all of them without that. */
export async function readWhole(file: File, maxBytes = Infinity): Promise<Buffer> {
  const bytes = Math.min(await file.lengthBytes(), maxBytes)
  const contents = Buffer.from(new ArrayBuffer(bytes, { maxByteLength: bytes }))
  let at = 0
  for (let taken = 1; at < bytes && taken > 0; at += taken)
    taken = await file.read(contents.subarray(at, at + CALL_BYTES), at)
  // Less than there was: a service has cut off a line meanwhile.
  return contents.subarray(0, at)
}

/** Frees the bytes of `readWhole`: V8 may keep them until its next full collection. */
export function freeBytes({ buffer }: Uint8Array): void {
  if ('resizable' in buffer && buffer.resizable) buffer.resize(0)
}

/**
 * The errors of a directory that this process may not read, or of a file system that syncs no
 * directories. A start creates one only where its user may write, and most can read there.
 */
const NOT_OURS: ReadonlySet<string | undefined> = new Set(['EACCES', 'EPERM', 'EROFS', 'EINVAL'])

/** Makes a directory's name durable, and those of all directories above it. */
export async function syncAbove(files: Files, path: string): Promise<void> {
  for (let at = path; dirname(at) !== at; at = dirname(at))
    await files.syncDirectory(dirname(at)).catch((error: unknown) => {
      if (!NOT_OURS.has(errorCodeOf(error))) throw error
    })
}
