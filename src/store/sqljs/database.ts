import { createRequire } from 'node:module'
import type { Database, default as InitSqlJs, SqlJs, Statement, Value } from 'sql.js'
import { ListQueries, unlessNull } from './list-queries.ts'
import { type FileMeta, type Meta, metaOf } from './meta.ts'
import { copyPages } from './page-copy.ts'

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

/** The plant that has the id of a create. */
interface Existing {
  /** Whether its name and tag are those of the create. */
  readonly isSame: boolean
  /** Of the batch that stored it. */
  readonly sequence: number
}

/** SQLite's default page. */
export const PAGE_BYTES = 4096
/** sql.js counts the bytes of a file with 31 bits. */
export const FILE_MAX_BYTES = 2 ** 31 - 1
/** Version 2 added the column `sequence`; version 1 is still read. */
export const FORMAT_VERSION = 2
export const READABLE_VERSIONS: readonly number[] = [1, FORMAT_VERSION]
/** The sequence of a row from a file of version 1: it is older than every list. */
const BEFORE_ALL = 0
/** Longer texts are bound as bytes: sql.js copies strings character by character, 7 ms for 1 MB. */
const LONG_CHARS = 1024
/** Memory for what is bound with long texts: the longest owner of a token, the id, overhead. */
const BOUND_MARGIN_BYTES = 64 * 1024

/** `sequence` comes before the texts, so that reading it skips the pages of a long name. */
const COLUMNS =
  'owner TEXT NOT NULL, id INTEGER NOT NULL, sequence INTEGER NOT NULL, ' +
  'name TEXT NOT NULL, tag TEXT'
type Schema = 'main' | 'mem'
const TABLES = (schema: Schema): string => `
  CREATE TABLE ${schema}.plants (
    ${COLUMNS},
    PRIMARY KEY (owner, id)) WITHOUT ROWID;
  CREATE TABLE ${schema}.meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;`

// `import` would scan this CommonJS module for its exports before it runs: 15 ms, a tenth of a
// start.
const require = createRequire(import.meta.url)
const initSqlJs = require('sql.js') as typeof InitSqlJs

let library: Promise<SqlJs> | undefined

/** Compiles SQLite once a process. An early call lets that happen while other things start. */
export function loadSqlite(): Promise<SqlJs> {
  return (library ??= initSqlJs())
}

/**
 * SQLite with memory of its own, for a file of any origin: what such a file exhausts or damages is
 * only this. sql.js makes one instance for each time that it is loaded.
 */
export function ownSqlite(): Promise<SqlJs> {
  delete require.cache[require.resolve('sql.js')]
  return (require('sql.js') as typeof InitSqlJs)()
}

/**
 * Plants in SQLite, in this process's memory. Every call is synchronous: no other call sees a part
 * of what it does.
 */
export class PlantDatabase {
  readonly lists: ListQueries
  readonly #library: SqlJs
  readonly #db: Database
  readonly #insert: Statement
  readonly #insertTagged: Statement
  readonly #remove: Statement
  readonly #taken: Statement
  readonly #compare: Statement
  readonly #compareTagged: Statement
  readonly #pageCount: Statement
  readonly #freePages: Statement
  /** The file that the database was made from, if it becomes one and is not of version 1. */
  readonly #from: Uint8Array | undefined
  #plants: number

  private constructor(
    library: SqlJs,
    db: Database,
    schema: Schema,
    plants: number,
    from?: Uint8Array,
  ) {
    this.#library = library
    this.#db = db
    this.#plants = plants
    this.#from = from
    const table = `${schema}.plants`
    this.lists = new ListQueries(db, table)
    const unlessTaken = 'ON CONFLICT (owner, id) DO NOTHING'
    this.#insert = db.prepare(
      `INSERT INTO ${table} VALUES (?1, CAST(?2 AS INTEGER), ?3, CAST(?4 AS TEXT), NULL)
       ${unlessTaken}`,
    )
    const taggedName = unlessNull('CAST(?4 AS TEXT)', '?5')
    this.#insertTagged = db.prepare(
      `INSERT INTO ${table} VALUES (?1, CAST(?2 AS INTEGER), ?3, ${taggedName}, CAST(?5 AS TEXT))
       ${unlessTaken}`,
    )
    const plant = `FROM ${table} WHERE owner = CAST(?1 AS TEXT) AND id = CAST(?2 AS INTEGER)`
    this.#remove = db.prepare(`DELETE ${plant}`)
    this.#taken = db.prepare(`SELECT 1 ${plant} LIMIT ${unlessNull('1', '?1', '?2')}`)
    // Lengths first: SQLite knows them without reading the text, which may be long.
    const sameName = 'octet_length(name) = octet_length(?3) AND name = CAST(?3 AS TEXT)'
    const sameTag = 'octet_length(tag) = octet_length(?4) AND tag = CAST(?4 AS TEXT)'
    this.#compare = db.prepare(
      `SELECT ${sameName} AND tag IS NULL, sequence ${plant}
       LIMIT ${unlessNull('1', '?1', '?2', '?3')}`,
    )
    this.#compareTagged = db.prepare(
      `SELECT ${sameName} AND ifnull(${sameTag}, 0), sequence ${plant}
       LIMIT ${unlessNull('1', '?1', '?2', '?3', '?4')}`,
    )
    this.#pageCount = db.prepare(`PRAGMA ${schema}.page_count`)
    this.#freePages = db.prepare(`PRAGMA ${schema}.freelist_count`)
  }

  /**
   * A database to serve from, with the plants of a snapshot. They are in an attached `:memory:`
   * database: sql.js keeps its main database as one growing array, and each growth copies all of it
   * (110 ms at 100 MB, seen). SQLite may overwrite the given bytes: they must not be used again.
   */
  static async serving(snapshot?: Uint8Array): Promise<PlantDatabase> {
    const library = await loadSqlite()
    const db = new library.Database()
    try {
      db.run("ATTACH ':memory:' AS mem; PRAGMA mem.journal_mode = OFF")
      if (snapshot) await copySnapshot(library, snapshot, db)
      else db.run(TABLES('mem'))
      const plants = Number(valueOf(db, 'SELECT count(*) FROM mem.plants'))
      return new PlantDatabase(library, db, 'mem', plants)
    } catch (error) {
      // No garbage collector frees SQLite's memory, and an embedding program tries again.
      db.close()
      throw error
    }
  }

  /**
   * A database that becomes a file, from another or from nothing. SQLite writes into the bytes of a
   * Buffer, and into any room after its last page, until it needs more: then sql.js copies them.
   */
  static async building(from?: Uint8Array): Promise<PlantDatabase> {
    const library = await loadSqlite()
    const db = new library.Database(from)
    db.run('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF')
    if (from && hasSequences(db)) return new PlantDatabase(library, db, 'main', 0, from)
    if (from) upgradeTables(db)
    else db.run(TABLES('main'))
    return new PlantDatabase(library, db, 'main', 0)
  }

  /** Plants of the snapshot that is served, and those that were inserted; not those added. */
  get count(): number {
    return this.#plants
  }

  /** Whether SQLite can have so many bytes of memory in one piece. */
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
    const insert = tag === undefined ? this.#insert : this.#insertTagged
    insert.run([owner, id, sequence, ...this.#texts(name, tag)])
    return this.#db.getRowsModified() === 1
  }

  /** Inserts the new plants of one batch. @throws Error if one of the ids is taken. */
  insert(rows: readonly Row[], sequence: number): void {
    this.insertStored(rows.map((row) => ({ row, sequence })))
  }

  /** Inserts plants of several batches in one transaction. @throws Error if an id is taken. */
  insertStored(rows: readonly StoredRow[]): void {
    this.#db.run('BEGIN')
    for (const { row, sequence } of rows)
      if (!this.add(row, sequence)) throw new Error('two plants of one owner have the same id')
    this.#db.run('COMMIT')
    this.#plants += rows.length
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
    const compare = tag === undefined ? this.#compare : this.#compareTagged
    compare.bind([owner, id, ...this.#texts(name, tag)])
    const exists = compare.step()
    const [same, sequence] = exists ? compare.get() : []
    compare.reset()
    if (!exists) return undefined
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

  /** Lets SQLite verify the file, and counts the plants. @throws Error if there is damage. */
  check(): number {
    const verdict = valueOf(this.#db, 'PRAGMA integrity_check')
    if (verdict !== 'ok') throw new Error(`SQLite finds damage: ${String(verdict)}`)
    return Number(valueOf(this.#db, 'SELECT count(*) FROM plants'))
  }

  /** The file's bytes, until the database is used again. For one that `building` returned. */
  toFile({ sequence, complete }: Meta): Uint8Array {
    this.#db.run(`REPLACE INTO meta VALUES ('format', ${FORMAT_VERSION}),
      ('sequence', ${sequence}), ('complete', ${complete ? 1 : 0})`)
    const length = this.pageCount() * PAGE_BYTES
    // An export needs the memory a second time.
    if (this.#from && length <= this.#from.length) {
      const file = this.#from.subarray(0, length)
      const written = metaOf(this.#library, file)
      // Else sql.js has copied the bytes, and these are old.
      if (written.sequence === sequence && written.complete === complete) return file
    }
    return this.#db.export()
  }

  close(): void {
    this.#db.close()
  }

  #isTaken([owner, id]: Row): boolean {
    this.#taken.bind([owner, id])
    const isTaken = this.#taken.step()
    this.#taken.reset()
    return isTaken
  }

  /**
   * Texts to be bound. sql.js does not check whether there is memory for bytes, and would write to
   * address 0, so this checks it for all of them.
   */
  #texts(name: string, tag: string | undefined): readonly (string | Uint8Array)[] {
    const texts = tag === undefined ? [name] : [name, tag]
    if (texts.every(({ length }) => length < LONG_CHARS)) return texts
    const bound = texts.map((text) => Buffer.from(text))
    const bytes = bound.reduce((sum, { length }) => sum + length, 0)
    if (this.hasMemory(bytes + BOUND_MARGIN_BYTES)) return bound
    throw new Error('SQLite has no memory left for a text')
  }
}

/** As `metaOf`. @throws Error when the file is no such database. */
export async function readMeta(bytes: Uint8Array): Promise<FileMeta> {
  return metaOf(await loadSqlite(), bytes)
}

function isLong([, , name, tag = '']: Row): boolean {
  return Math.max(name.length, tag.length) >= LONG_CHARS
}

function countOf(statement: Statement): number {
  statement.step()
  const [count] = statement.get()
  statement.reset()
  return Number(count)
}

/** The first column of the first row; undefined without a row. */
function valueOf(db: Database, sql: string): Value | undefined {
  const statement = db.prepare(sql)
  statement.step()
  const [value] = statement.get()
  statement.free()
  return value
}

/** Copies a snapshot into the schema `mem`: its pages, or the rows of version 1. */
async function copySnapshot(library: SqlJs, snapshot: Uint8Array, to: Database): Promise<void> {
  const from = new library.Database(snapshot)
  try {
    if (hasSequences(from)) return await copyPages(library, from, to, 'mem')
    to.run(`
      ATTACH '${from.filename}' AS old;${TABLES('mem')}
      INSERT INTO mem.plants SELECT owner, id, ${BEFORE_ALL}, name, tag FROM old.plants;
      DETACH old`)
  } finally {
    from.close()
  }
}

/** Whether the table of plants is that of version 2. */
function hasSequences(db: Database): boolean {
  const sql = "SELECT 1 FROM pragma_table_info('plants', 'main') WHERE name = 'sequence'"
  return valueOf(db, sql) !== undefined
}

/** Makes the tables of version 2 from those of version 1, in place. */
function upgradeTables(db: Database): void {
  db.run(`
    ALTER TABLE main.plants RENAME TO old_plants; ALTER TABLE main.meta RENAME TO old_meta;
    ${TABLES('main')}
    INSERT INTO main.plants SELECT owner, id, ${BEFORE_ALL}, name, tag FROM main.old_plants;
    DROP TABLE main.old_plants; DROP TABLE main.old_meta; VACUUM main`)
}
