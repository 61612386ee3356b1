import { constants, createReadStream, type Stats, write } from 'node:fs'
import * as fs from 'node:fs/promises'
import { errorCodeOf } from '../../errors.ts'

/**
 * How a file is opened. `durable`: an existing file, each write durable when it returns (O_DSYNC:
 * one system call where write and fdatasync are two). `aside`: a new or emptied file, durable once
 * `sync` has returned.
 */
export type Mode = 'durable' | 'aside'

/**
 * One open file; each method is one system call and may fail, so that a test can fail any of them.
 */
export interface File {
  /**
   * Writes from byte `at` on and returns how many bytes were taken: fewer than given is a short
   * write.
   */
  write(bytes: Uint8Array, at: number): Promise<number>
  sync(): Promise<void>
  truncate(lengthBytes: number): Promise<void>
  close(): Promise<void>
}

/** All file access of the store. A test replaces one call of it, or all by a simulated disk. */
export interface Files {
  /**
   * Creates a directory of mode 0700 where there is none; true when it was created. Parents must
   * exist.
   */
  makeDirectory(path: string): Promise<boolean>
  /** The names in a directory. */
  list(directory: string): Promise<readonly string[]>
  /** A file's bytes. */
  read(path: string): Promise<Buffer>
  /** A file's first bytes, at most `lengthBytes`. */
  readStart(path: string, lengthBytes: number): Promise<Buffer>
  open(path: string, mode: Mode): Promise<File>
  rename(from: string, to: string): Promise<void>
  remove(path: string): Promise<void>
  /** Makes creations, renames and removals in a directory durable. */
  syncDirectory(path: string): Promise<void>
}

const { O_CREAT, O_DSYNC, O_TRUNC, O_WRONLY } = constants
// Without it a write would be acknowledged that nobody has synced.
if (O_DSYNC === undefined)
  throw new Error('this platform has no O_DSYNC, which the store writes with')
const FLAGS: Readonly<Record<Mode, number>> = {
  durable: O_WRONLY | O_DSYNC,
  aside: O_WRONLY | O_CREAT | O_TRUNC,
}

export const nodeFiles: Files = {
  async makeDirectory(path) {
    try {
      await fs.mkdir(path, { mode: 0o700 })
      return true
    } catch (error) {
      if (errorCodeOf(error) !== 'EEXIST') throw error
      const stats: Stats = await fs.stat(path)
      if (!stats.isDirectory()) throw error
      return false
    }
  },
  list: (directory) => fs.readdir(directory),
  read: (path) => fs.readFile(path),
  async readStart(path, lengthBytes) {
    const chunks: Buffer[] = []
    for await (const chunk of createReadStream(path, { end: lengthBytes - 1 }))
      chunks.push(Buffer.from(chunk))
    return Buffer.concat(chunks)
  },
  async open(path, mode) {
    const handle = await fs.open(path, FLAGS[mode], 0o600)
    return {
      // Every group waits for one: the handle's own write takes 10 µs more. It does not wait for
      // this one when it closes; callers do.
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

/**
 * Puts a whole file in its place so that a crash leaves the old one or the new one, never a part:
 * written beside, synced, renamed over it, and the directory synced, since a rename is durable only
 * then.
 */
export async function replaceFile(
  files: Files,
  directory: string,
  name: string,
  parts: readonly Uint8Array[],
): Promise<void> {
  await writeAside(files, directory, name, parts)
  await putInPlace(files, directory, name)
}

export function writeAside(
  files: Files,
  directory: string,
  name: string,
  parts: readonly Uint8Array[],
): Promise<void> {
  const path = `${directory}/${name}${ASIDE}`
  return orDiscard(files, path, async () => {
    const file = await files.open(path, 'aside')
    try {
      let at = 0
      for (const part of parts) {
        await writeWhole(file, part, at)
        at += part.length
      }
      await file.sync()
    } finally {
      await file.close()
    }
  })
}

export async function putInPlace(files: Files, directory: string, name: string): Promise<void> {
  const path = `${directory}/${name}${ASIDE}`
  await orDiscard(files, path, () => files.rename(path, `${directory}/${name}`))
  await files.syncDirectory(directory)
}

/**
 * What did not come to its end must not keep a full disk full; if it stays all the same, the next
 * start removes it.
 */
async function orDiscard(files: Files, path: string, work: () => Promise<void>): Promise<void> {
  try {
    await work()
  } catch (error) {
    await files.remove(path).catch(() => {})
    throw error
  }
}

/**
 * The ending of a file that is still being written; one found at start is a leftover of a crash.
 */
export const ASIDE = '.tmp'

/** A large buffer goes in pieces: one write call takes at most 2 GiB on Linux. */
const WRITE_BYTES = 64 * 1024 * 1024

async function writeWhole(file: File, bytes: Uint8Array, from: number): Promise<void> {
  for (let at = 0; at < bytes.length; ) {
    const taken = await file.write(bytes.subarray(at, at + WRITE_BYTES), from + at)
    if (taken === 0) throw new Error('the file system took no bytes')
    at += taken
  }
}
