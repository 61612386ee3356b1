/* A file on the disk in place of bytes in memory, for SQLite. */

import type { Database, FileBytes } from 'sql.js'
import type { File } from './files.ts'
import { loadSqlite, pausing } from '../sqlite/sqlite.ts'

/** SQLite's default page. */
export const PAGE_BYTES = 4096
/** sql.js counts the bytes of a file with 31 bits. */
export const FILE_MAX_BYTES = 2 ** 31 - 1
/** How much of a file is read at a time if all of it is. */
const BLOCK_BYTES = 4 * PAGE_BYTES
/** After this much has been written it is synced: a line of the journal never waits for more. */
const SYNC_BYTES = 1024 * 1024
/** Emscripten's number for ENOSPC. SQLite then says that the disk is full. */
const NO_SPACE = 51

/**
 * What sql.js takes for an error of a file. It asks for the name, and then for the number, whose
 * name differs from release to release. Any other error would leave SQLite in the middle of a call.
 */
const member = (_: object, name: unknown) => (name === 'name' ? 'ErrnoError' : NO_SPACE)
const FILE_ERROR: unknown = new Proxy({}, { get: member })

/** A file that SQLite reads and writes page by page, so that no process holds it in memory. */
export class PageFile {
  readonly #path: string
  readonly #file: File
  /** How long it is by now. */
  lengthBytes: number
  #buffer = Buffer.alloc(BLOCK_BYTES)
  #unsyncedBytes = 0
  /** What SQLite was told of only as an error of a file. No later call reads or writes. */
  #failure: unknown

  /** The first `lengthBytes` of a file. `path` is for messages. */
  constructor(path: string, file: File, lengthBytes = 0) {
    this.#path = path
    this.#file = file
    this.lengthBytes = lengthBytes
  }

  /**
   * For sql.js. It calls `slice` once. The bytes that `slice` returns say by their
   * `length` how far the file may grow.
   */
  get bytes(): FileBytes {
    const taken: FileBytes = {
      length: FILE_MAX_BYTES,
      slice: () => taken,
      subarray: (from, to) => this.#forSqlite(() => this.read(from, to)),
      set: (bytes, at) => this.#forSqlite(() => this.write(bytes, at)),
    }
    return { ...taken, length: this.lengthBytes }
  }

  /**
   * Opens the database that is in it until the work is done.
   * @throws what failed here, whatever SQLite made of it, also if SQLite did not notice.
   */
  async opened<T>(work: (db: Database) => T | Promise<T>): Promise<T> {
    const { Database } = await loadSqlite()
    let db: Database | undefined
    try {
      // This reads too.
      db = new Database(this.bytes)
      const result = await work(db)
      if (this.#failure === undefined) return result
      throw this.#failure
    } catch (error) {
      throw this.#failure ?? error
    } finally {
      db?.close()
    }
  }

  /** Makes what was written durable; of a file that is only read, what another program wrote. */
  sync(): Promise<void> {
    return this.#file.sync()
  }

  /** The bytes of a part, until the next call. */
  read(from: number, to: number): Buffer {
    const length = to - from
    // A file of another program may have larger pages.
    if (length > this.#buffer.length) this.#buffer = Buffer.alloc(length)
    const bytes = this.#buffer.subarray(0, length)
    for (let done = 0; done < length; ) {
      const taken = this.#file.readNow(bytes.subarray(done), from + done)
      if (taken === 0) throw new Error(`${this.#path} has no byte ${from + done}`)
      done += taken
    }
    return bytes
  }

  /** Writes whole pages, or what follows the last one. */
  write(bytes: Uint8Array, at: number): void {
    for (let done = 0; done < bytes.length; ) {
      const taken = this.#file.writeNow(bytes.subarray(done), at + done)
      if (taken === 0) throw new Error(`the file system took no bytes of ${this.#path}`)
      done += taken
    }
    this.lengthBytes = Math.max(this.lengthBytes, at + bytes.length)
    this.#unsyncedBytes += bytes.length
    if (this.#unsyncedBytes < SYNC_BYTES) return
    this.#unsyncedBytes = 0
    this.#file.syncNow()
  }

  /** The first `end` bytes in blocks, each until the next one. Yields to other work in between. */
  async *blocks(end = this.lengthBytes): AsyncGenerator<Buffer, void> {
    const pause = pausing()
    for (let at = 0; at < end; at += BLOCK_BYTES) {
      yield this.read(at, Math.min(at + BLOCK_BYTES, end))
      await pause()
    }
  }

  #forSqlite<T>(work: () => T): T {
    if (this.#failure !== undefined) throw FILE_ERROR
    try {
      return work()
    } catch (error) {
      this.#failure = error
      throw FILE_ERROR
    }
  }
}
