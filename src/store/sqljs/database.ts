import type { Database, SqlJs } from 'sql.js'
import { PlantLists } from './list.ts'
import type { PageFile } from './page-file.ts'
import { copyPages, loadSqlite, Query, returnSqlite, valueOf } from './sqlite.ts'

/**
 * A plant as it is stored and journalled. The id is decimal digits: the one form that JSON, SQLite
 * and sql.js all keep exact.
 */
export type Row = readonly [owner: string, id: string, name: string, tag?: string]

/** A row and the sequence of the batch that stored it. */
export interface StoredRow {
  readonly row: Row
  readonly sequence: number
}

/** A database file of a readable version. */
interface SourceFile {
  readonly version: number
  readonly pages: PageFile
}

/** The plant that has the id of a create. */
interface Existing {
  /** Whether its name and tag are those of the create. */
  readonly isSame: boolean
  /** Of the batch that stored it. */
  readonly sequence: number
}

/** Version 2 added the column `sequence`; version 1 is still read. */
export const FORMAT_VERSION = 2
export const READABLE_VERSIONS: readonly number[] = [1, FORMAT_VERSION]
/** The sequence of a row from a file of version 1: it is older than every list. */
const BEFORE_ALL = 0
/** Longer texts are bound as bytes: sql.js copies strings character by character, 7 ms for 1 MB. */
const LONG_CHARS = 1024
/** Memory for what is bound with long texts: the longest owner of a token, the id, overhead. */
const BOUND_MARGIN_BYTES = 64 * 1024

export const SAME_ID = 'two plants of one owner have the same id'

/**
 * `main` is a file, `mem` is in memory. `sequence` comes before the texts, so that reading it skips
 * the pages of a long name.
 */
export const tablesIn = (schema: 'main' | 'mem'): string => `
  CREATE TABLE ${schema}.plants (
    owner TEXT NOT NULL, id INTEGER NOT NULL, sequence INTEGER NOT NULL,
    name TEXT NOT NULL, tag TEXT,
    PRIMARY KEY (owner, id)) WITHOUT ROWID;
  CREATE TABLE ${schema}.meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;`

/** Adds the schema `mem` to a connection, without plants. */
export function attachMemory(db: Database): void {
  db.run(`ATTACH ':memory:' AS mem; PRAGMA mem.journal_mode = OFF; ${tablesIn('mem')}`)
}

/**
 * Plants in SQLite, in this process's memory. Every call is synchronous: no other call sees a part
 * of what it does.
 */
export class PlantDatabase {
  readonly lists: PlantLists
  readonly #library: SqlJs
  readonly #db: Database
  readonly #insert: Query
  readonly #remove: Query
  readonly #taken: Query
  readonly #compare: Query
  readonly #pageCount: Query
  readonly #freePages: Query
  /** To be left to the next store when this one is closed. */
  #sqlite: Promise<SqlJs> | undefined

  /** The plants in a connection's schema `mem`. */
  constructor(library: SqlJs, db: Database) {
    this.#library = library
    this.#db = db
    const prepare = (sql: string): Query => new Query(db, sql)
    this.lists = new PlantLists(prepare)
    this.#insert = prepare(`
      INSERT INTO mem.plants VALUES
        (?1, CAST(?2 AS INTEGER), ?3, CAST(?4 AS TEXT), CAST(?5 AS TEXT))
      ON CONFLICT (owner, id) DO NOTHING`)
    const plant = `FROM mem.plants WHERE owner = CAST(?1 AS TEXT) AND id = CAST(?2 AS INTEGER)`
    this.#remove = prepare(`DELETE ${plant}`)
    this.#taken = prepare(`SELECT 1 ${plant}`)
    // Lengths first: SQLite knows them without reading the text, which may be long.
    this.#compare = prepare(`
      SELECT octet_length(name) = octet_length(?3) AND name = CAST(?3 AS TEXT)
        AND octet_length(tag) IS octet_length(?4) AND tag IS CAST(?4 AS TEXT), sequence ${plant}`)
    this.#pageCount = prepare('PRAGMA mem.page_count')
    this.#freePages = prepare('PRAGMA mem.freelist_count')
  }

  /**
   * A database to serve from, with the plants of a snapshot. They are in an attached `:memory:`
   * database: sql.js keeps its main database as one growing array, and each growth copies all of it
   * (110 ms at 100 MB, seen).
   * @throws Error if the snapshot cannot be read, or SQLite has no memory left.
   */
  static async serving(snapshot?: SourceFile, sqlite = loadSqlite()): Promise<PlantDatabase> {
    const library = await sqlite
    const db = new library.Database()
    try {
      attachMemory(db)
      if (snapshot) await copySnapshot(library, snapshot, db)
      const database = new PlantDatabase(library, db)
      database.#sqlite = sqlite
      return database
    } catch (error) {
      // No garbage collector frees SQLite's memory, and an embedding program tries again.
      db.close()
      returnSqlite(sqlite)
      throw error
    }
  }

  /** How many plants there are; SQLite counts them each time. */
  get count(): number {
    return Number(valueOf(this.#db, 'SELECT count(*) FROM mem.plants'))
  }

  /** Whether SQLite can have this many bytes of memory in one piece. */
  hasMemory(bytes: number): boolean {
    const place = this.#library._malloc(bytes)
    if (place !== 0) this.#library._free(place)
    return place !== 0
  }

  /** Inserts a plant, unless its owner has one of this id. Returns whether it was inserted. */
  add(row: Row, sequence: number): boolean {
    const [owner, id, name, tag] = row
    // A long text takes a millisecond to bind.
    if (isLong(row) && this.#isTaken(row)) return false
    this.#insert.run([owner, id, sequence, ...this.#texts(name, tag)])
    return this.#db.getRowsModified() === 1
  }

  /** Inserts plants of several batches in one transaction. @throws Error if an id is taken. */
  insert(rows: readonly StoredRow[]): void {
    this.#db.run('BEGIN')
    for (const { row, sequence } of rows)
      if (!this.add(row, sequence)) throw new Error(SAME_ID)
    this.#db.run('COMMIT')
  }

  /** Removes plants that were added and did not become durable. */
  remove(rows: readonly Row[]): void {
    for (const [owner, id] of rows) {
      this.#remove.run([owner, id])
      if (this.#db.getRowsModified() !== 1) throw new Error('a plant could not be removed')
    }
  }

  /**
   * The plant that has the id of a row, if any. SQLite compares them: 0.1 ms for 1 MB, and 7 ms in
   * JavaScript.
   */
  existing(row: Row): Existing | undefined {
    const [owner, id, name, tag] = row
    // There may be no memory for a long text: it is bound only if there is something to compare.
    if (isLong(row) && !this.#isTaken(row)) return undefined
    const found = this.#compare.first([owner, id, ...this.#texts(name, tag)])
    if (!found) return undefined
    const [same, sequence] = found
    if (typeof same !== 'number' || typeof sequence !== 'number')
      throw new Error('SQLite has no memory left to compare a plant')
    return { isSame: same === 1, sequence }
  }

  /** Size of the database in pages of PAGE_BYTES. */
  pageCount(): number {
    return countOf(this.#pageCount)
  }

  /** Pages that hold something. The database grows only when no other page is left. */
  usedPages(): number {
    return countOf(this.#pageCount) - countOf(this.#freePages)
  }

  /** Lets SQLite verify the database, and counts the plants. @throws Error if there is damage. */
  check(): number {
    return countVerified(this.#db, 'mem')
  }

  close(): void {
    this.#db.close()
    if (this.#sqlite) returnSqlite(this.#sqlite)
  }

  #isTaken([owner, id]: Row): boolean {
    return this.#taken.first([owner, id]) !== undefined
  }

  /**
   * A name and a tag, to be bound. sql.js does not check whether there is memory for bytes, and
   * would write to address 0.
   */
  #texts(name: string, tag: string | undefined): readonly (string | Uint8Array | null)[] {
    if (Math.max(name.length, tag?.length ?? 0) < LONG_CHARS) return [name, tag ?? null]
    const [nameBytes, tagBytes] = [Buffer.from(name), Buffer.from(tag ?? '')]
    if (!this.hasMemory(nameBytes.length + tagBytes.length + BOUND_MARGIN_BYTES))
      throw new Error('SQLite has no memory left for a text')
    return [nameBytes, tag === undefined ? null : tagBytes]
  }
}

/** Lets SQLite verify a schema, and counts its plants. @throws Error if there is damage. */
export function countVerified(db: Database, schema: 'main' | 'mem'): number {
  const verdict = valueOf(db, `PRAGMA ${schema}.integrity_check`)
  if (verdict !== 'ok') throw new Error(`SQLite finds damage: ${String(verdict)}`)
  return Number(valueOf(db, `SELECT count(*) FROM ${schema}.plants`))
}

function isLong([, , name, tag = '']: Row): boolean {
  return Math.max(name.length, tag.length) >= LONG_CHARS
}

function countOf(query: Query): number {
  const [count] = query.first() ?? []
  return Number(count)
}

/** Copies a snapshot into the schema `mem`: its pages, or the rows of version 1. */
async function copySnapshot(library: SqlJs, snapshot: SourceFile, to: Database): Promise<void> {
  const { version, pages } = snapshot
  if (version !== FORMAT_VERSION) return copyOldRows(library, snapshot, to)
  const from = pages.through(() => new library.Database(pages.bytes))
  try {
    await copyPages(library, from, to, 'mem')
  } catch (error) {
    throw pages.causeOf(error)
  } finally {
    from.close()
  }
}

/** Copies the plants of a file of version 1 to the schema `mem`. */
export function copyOldRows(library: SqlJs, { pages }: SourceFile, to: Database): void {
  pages.through(() => {
    const from = new library.Database(pages.bytes)
    try {
      to.run(`
        ATTACH '${from.filename}' AS old;
        INSERT INTO mem.plants SELECT owner, id, ${BEFORE_ALL}, name, tag FROM old.plants;
        DETACH old`)
    } finally {
      from.close()
    }
  })
}
