/* A file on the disk in place of bytes in memory, for SQLite. */

import { crc32 } from 'node:zlib'
import type { Database, FileBytes } from 'sql.js'
import { pausing } from '../sqlite/pausing.ts'
import type { File } from './files.ts'
import { loadSqlite } from '../sqlite/sqlite.ts'

/** SQLite's default page. */
export const PAGE_BYTES = 4096
/** sql.js counts the bytes of a file with 31 bits. */
export const FILE_MAX_BYTES = 2 ** 31 - 1
/** How much is read at a time. */
const READ_BYTES = 4 * PAGE_BYTES
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

/**
 * A file that SQLite reads and writes page by page, so that no process holds it in memory. A page
 * must always be read as it was first read, or last written. So SQLite works with what was
 * verified, even if the disk returns something else later.
 */
export class PageFile {
  readonly #path: string
  readonly #file: File
  #lengthBytes: number
  /** The crc32 of each page that was read or written, by its first byte. */
  readonly #checksums = new Map<number, number>()
  #buffer = Buffer.alloc(READ_BYTES)
  /** Which part of the file `#buffer` holds. */
  #loaded = { from: 0, to: 0 }
  #unsyncedBytes = 0
  /** What SQLite was told of only as an error of a file. No later call reads or writes. */
  #failure: unknown

  /** The first `lengthBytes` of a file. `path` is for messages. */
  constructor(path: string, file: File, lengthBytes = 0) {
    this.#path = path
    this.#file = file
    this.#lengthBytes = lengthBytes
  }

  get lengthBytes(): number {
    return this.#lengthBytes
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
    return { ...taken, length: this.#lengthBytes }
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
    if (from < this.#loaded.from || to > this.#loaded.to) this.#load(from - (from % PAGE_BYTES), to)
    if (to > this.#loaded.to) throw new RangeError(`${this.#path} has no byte ${to - 1}`)
    return this.#buffer.subarray(from - this.#loaded.from, to - this.#loaded.from)
  }

  /** Writes whole pages, or what follows the last one. */
  write(bytes: Uint8Array, at: number): void {
    this.#loaded = { from: 0, to: 0 }
    for (let page = 0; page < bytes.length; page += PAGE_BYTES)
      this.#checksums.set(at + page, crc32(bytes.subarray(page, page + PAGE_BYTES)))
    for (let done = 0; done < bytes.length; ) {
      const taken = this.#file.writeNow(bytes.subarray(done), at + done)
      if (taken === 0) throw new Error(`the file system took no bytes of ${this.#path}`)
      done += taken
    }
    this.#lengthBytes = Math.max(this.#lengthBytes, at + bytes.length)
    this.#unsyncedBytes += bytes.length
    if (this.#unsyncedBytes < SYNC_BYTES) return
    this.#unsyncedBytes = 0
    this.#file.syncNow()
  }

  /** The first `end` bytes in blocks, each until the next one. Yields to other work in between. */
  async *blocks(end = this.#lengthBytes): AsyncGenerator<Buffer, void> {
    const pause = pausing()
    for (let at = 0; at < end; at += READ_BYTES) {
      yield this.read(at, Math.min(at + READ_BYTES, end))
      await pause()
    }
  }

  /** Reads whole pages, and verifies what was known of them. */
  #load(from: number, to: number): void {
    const pages = Math.ceil((to - from) / PAGE_BYTES)
    const length = Math.min(Math.max(READ_BYTES, pages * PAGE_BYTES), this.#lengthBytes - from)
    this.#loaded = { from: 0, to: 0 }
    // A file of another program may have larger pages.
    if (length > this.#buffer.length) this.#buffer = Buffer.alloc(length)
    for (let done = 0; done < length; ) {
      const taken = this.#file.readNow(this.#buffer.subarray(done, length), from + done)
      if (taken === 0) throw new Error(`${this.#path} is shorter than when it was opened`)
      done += taken
    }
    for (let at = 0; at < length; at += PAGE_BYTES) {
      const checksum = crc32(this.#buffer.subarray(at, Math.min(at + PAGE_BYTES, length)))
      if (!this.#checksums.has(from + at)) this.#checksums.set(from + at, checksum)
      if (this.#checksums.get(from + at) === checksum) continue
      const what = `${this.#path} is not as it was read or written before, at byte ${from + at}`
      throw new Error(`${what}: the disk fails, or something else writes to the file`)
    }
    this.#loaded = { from, to: from + length }
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
