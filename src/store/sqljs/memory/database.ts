/* The plants in SQLite, in memory. */

import type { Database } from 'sql.js'
import type { Row } from '../disk/journal-format.ts'
import { PlantLists } from './list.ts'
import { OwnerBytes } from './owner-bytes.ts'
import type { PageFile } from '../disk/page-file.ts'
import { createTables, type Snapshot, upgradeTables } from '../disk/snapshot.ts'
import { bound, boundId, copyPages, loadSqlite, Query, type Schema } from '../sqlite/sqlite.ts'
import { valueOf } from '../sqlite/sqlite.ts'

/** Adds the schema `mem` to a connection, without tables. */
export const ATTACH_MEMORY = "ATTACH ':memory:' AS mem; PRAGMA mem.journal_mode = OFF"

/**
 * Durable plants in SQLite, in this process's memory. Every call is synchronous: no other call sees
 * a part of what it does.
 */
export class PlantDatabase {
  readonly lists: PlantLists
  /** Undefined until owners are limited. */
  ownerBytes: OwnerBytes | undefined
  readonly #db: Database
  readonly #insert: Query
  readonly #taken: Query
  readonly #compare: Query
  readonly #pageCount: Query
  readonly #freePages: Query

  /** The plants in a connection's schema `mem`. */
  constructor(db: Database) {
    const prepare = (sql: string): Query => new Query(db, sql)
    this.#db = db
    this.lists = new PlantLists(prepare)
    this.#insert = prepare(`
      INSERT INTO mem.plants
      VALUES (?1, CAST(?2 AS INTEGER), CAST(?3 AS TEXT), CAST(?4 AS TEXT))`)
    const plant = 'FROM mem.plants WHERE owner = CAST(?1 AS TEXT) AND id = CAST(?2 AS INTEGER)'
    this.#taken = prepare(`SELECT 1 ${plant}`)
    // Lengths first: SQLite knows them without reading the text, which may be long.
    this.#compare = prepare(`
      SELECT octet_length(name) = octet_length(?3) AND name = CAST(?3 AS TEXT)
        AND octet_length(tag) IS octet_length(?4) AND tag IS CAST(?4 AS TEXT) ${plant}`)
    this.#pageCount = prepare('PRAGMA mem.page_count')
    this.#freePages = prepare('PRAGMA mem.freelist_count')
  }

  /**
   * A database to serve from, with the plants of a snapshot. They are in an attached `:memory:`
   * database: sql.js keeps its main database as one growing array, and each growth copies all of it
   * (110 ms at 100 MB, seen).
   * @throws Error if the snapshot cannot be read, or SQLite has no memory left.
   */
  static async serving(snapshot?: Snapshot): Promise<PlantDatabase> {
    const { Database } = await loadSqlite()
    const db = new Database()
    try {
      db.run(ATTACH_MEMORY)
      if (snapshot) {
        await snapshot.pages.opened((from) => copyPages([from, 'main'], [db, 'mem']))
        upgradeTables(db, 'mem', snapshot)
      } else createTables(db, 'mem')
      return new PlantDatabase(db)
    } catch (error) {
      // No garbage collector frees SQLite's memory, and an embedding program tries again.
      db.close()
      throw error
    }
  }

  /** To be called once, after a recovery. @throws Error if SQLite has no memory left. */
  limitOwners(): void {
    this.ownerBytes = new OwnerBytes(this.#db)
  }

  /** How many plants there are; SQLite counts them each time. */
  get count(): number {
    return Number(valueOf(this.#db, 'SELECT count(*) FROM mem.plants'))
  }

  /** Pages of PAGE_BYTES that hold something. The database grows only when no free one is left. */
  get usedPages(): number {
    return Number(this.#pageCount.first()?.[0]) - Number(this.#freePages.first()?.[0])
  }

  /** @throws Error if an id is taken, or SQLite has no memory. Some may have been inserted then. */
  insert(rows: readonly Row[]): void {
    for (const [owner, id, name, tag] of rows)
      this.#insert.first([owner, boundId(id), bound(name), bound(tag)])
  }

  /** How the plant that has the id of a row compares with it; undefined if there is none. */
  existing([owner, id, name, tag]: Row): 'same' | 'other' | undefined {
    // Most creates are of new plants, and binding a long text takes a millisecond.
    if (!this.#taken.first([owner, boundId(id)])) return undefined
    // SQLite compares them: 0.1 ms for 1 MB, and 7 ms in JavaScript.
    const [same] = this.#compare.first([owner, boundId(id), bound(name), bound(tag)]) ?? []
    if (typeof same !== 'number') throw new Error('SQLite has no memory left to compare a plant')
    return same === 1 ? 'same' : 'other'
  }

  /** Lets SQLite verify the database, and counts the plants. @throws Error if there is damage. */
  countVerified(): number {
    return countVerified(this.#db, 'mem')
  }

  /** Copies the database to a file, and does the work with it open. */
  copiedTo<T>(pages: PageFile, work: (db: Database) => T | Promise<T>): Promise<T> {
    return pages.opened(async (db) => {
      db.run('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF')
      await copyPages([this.#db, 'mem'], [db, 'main'])
      return work(db)
    })
  }

  close(): void {
    this.#db.close()
  }
}

/** Lets SQLite verify a schema, and counts its plants. @throws Error if there is damage. */
export function countVerified(db: Database, schema: Schema): number {
  const verdict = valueOf(db, `PRAGMA ${schema}.integrity_check`)
  if (verdict !== 'ok') throw new Error(`SQLite finds damage: ${String(verdict)}`)
  return Number(valueOf(db, `SELECT count(*) FROM ${schema}.plants`))
}
