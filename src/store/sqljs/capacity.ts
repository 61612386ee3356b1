import type { PlantDatabase, Row } from './database.ts'
import { PAGE_BYTES } from './page-file.ts'

/** How much of a long row one overflow page holds. */
const OVERFLOW_BYTES = PAGE_BYTES - 4
/** Pages that one insert may add when it splits a leaf and the pages above it. */
const SPLIT_PAGES = 3
/** SQLite's memory that must stay free: for reading, and for removing what is not durable. */
const FREE_BYTES = 16 * 1024 * 1024
/** How many copies of a row an insert has in memory: its bound values, its record, its pages. */
const ROW_COPIES = 3

/** Decides whether rows fit into the database, before they are inserted. */
export class Capacity {
  readonly #database: PlantDatabase
  readonly #maxPages: number
  /** At least the pages in use; exact after a count. */
  #pages: number

  constructor(database: PlantDatabase, maxDataBytes: number) {
    this.#database = database
    this.#maxPages = Math.floor(maxDataBytes / PAGE_BYTES)
    this.#pages = database.usedPages()
  }

  /**
   * Takes room for a row's worst case. False if there may be none, in memory or within the limit.
   * An insert that finds no memory may leave the database damaged, and would end the process.
   */
  tryReserve([owner, , name, tag]: Row): boolean {
    const bytes = Buffer.byteLength(owner) + Buffer.byteLength(name) + Buffer.byteLength(tag ?? '')
    if (!this.#database.hasMemory(FREE_BYTES + ROW_COPIES * bytes)) return false
    const pages = Math.ceil(bytes / OVERFLOW_BYTES) + SPLIT_PAGES
    // Counting takes 2 µs, so it waits until the worst case does not fit.
    if (!this.#hasPages(pages)) this.#pages = this.#database.usedPages()
    if (!this.#hasPages(pages)) return false
    this.#pages += pages
    return true
  }

  #hasPages(pages: number): boolean {
    return this.#pages + pages <= this.#maxPages
  }
}
