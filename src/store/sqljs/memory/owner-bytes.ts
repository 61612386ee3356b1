/* How many bytes of data each owner has, for a store that limits them. */

import type { Database } from 'sql.js'
import { Query } from '../sqlite/sqlite.ts'

/**
 * About what a plant adds to the database, by the bytes of its texts: pages are seldom full, and
 * SQLite keeps most of a row of more than 1,002 bytes in pages of its own, each with 4092 of them.
 */
const bytesOf = (texts: string): string =>
  `(min(${texts}, 985) * 7 / 6 + 14 + max(${texts} - 985 + 4091, 0) / 4092 * 4096)`
const TEXTS = 'octet_length(owner) + octet_length(name) + ifnull(octet_length(tag), 0)'

/**
 * The sums are a table in memory beside the plants: as many owners as plants need no more memory
 * of JavaScript, and no create counts plants (90 ms for a million).
 */
export class OwnerBytes {
  readonly #of: Query
  readonly #set: Query

  /**
   * Sums up the plants of the schema `mem`, in one statement: 0.6 s for a million, and parts would
   * take twice as long. @throws Error if SQLite has no memory left.
   */
  constructor(db: Database) {
    db.run(`
      ATTACH ':memory:' AS owners; PRAGMA owners.journal_mode = OFF;
      CREATE TABLE owners.sums (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
      INSERT INTO owners.sums
        SELECT owner, sum(${bytesOf('texts')})
        FROM (SELECT owner, ${TEXTS} AS texts FROM mem.plants) GROUP BY owner`)
    this.#of = new Query(db, `
      SELECT ifnull((SELECT bytes FROM owners.sums WHERE owner = CAST(?1 AS TEXT)), 0),
        ${bytesOf('CAST(?2 AS INTEGER)')}`)
    this.#set = new Query(db, 'REPLACE INTO owners.sums VALUES (CAST(?1 AS TEXT), ?2)')
  }

  /** What an owner has, and what a plant whose texts have so many bytes would add. */
  of(owner: string, textBytes: number): { readonly bytes: number; readonly added: number } {
    const [bytes, added] = this.#of.first([owner, textBytes]) ?? []
    if (typeof bytes === 'number' && typeof added === 'number') return { bytes, added }
    throw new Error('SQLite has no memory left to look up an owner')
  }

  set(sums: ReadonlyMap<string, number>): void {
    for (const [owner, bytes] of sums) this.#set.first([owner, bytes])
  }
}
