import { createRequire } from 'node:module'
import type { Database, default as InitSqlJs, SqlJs, Statement, Value } from 'sql.js'

/**
 * A plant as it is stored and journalled; the id as decimal digits, the one form that JSON, SQLite
 * and sql.js all keep exact.
 */
export type Row = readonly [owner: string, id: string, name: string, tag?: string]

export interface Meta {
  /** The last journal sequence that the file covers. */
  readonly sequence: number
  /** Whether the file holds everything by itself, with no journal behind it. */
  readonly complete: boolean
}

/** A row and the sequence of the batch that stored it. */
export interface StoredRow {
  readonly row: Row
  readonly sequence: number
}

/**
 * A range of one owner's ids, ends included, as of a sequence: rows that a later batch stored are
 * not seen.
 */
export interface View {
  readonly owner: string
  readonly from: bigint
  readonly to: bigint
  readonly asOf: number
}

/** A chunk of one owner's plants. */
export interface Chunk {
  /** A JSON array in UTF-8. */
  readonly json: Buffer
  /** How many plants it holds. */
  readonly plants: number
  /** The last id that was looked at, where the range holds more rows after it. */
  readonly cutAt: bigint | undefined
}

/**
 * What a create meets: no plant of that id, one with the same content, or one with other content.
 */
export type Existing = 'none' | 'same' | 'other'

/** Version 2 gave each row its `sequence`; version 1 is still read. */
export const FORMAT_VERSION = 2
export const READABLE_VERSIONS: readonly number[] = [1, FORMAT_VERSION]
/**
 * The sequence of a row that a file of version 1 held: it was stored before anything that is asked
 * for now.
 */
const BEFORE_ALL = 0
/** A text of so many characters is bound as bytes. */
const LONG_CHARS = 1024
/**
 * Memory for what is bound beside long texts: the longest owner that a token can carry, the id,
 * malloc's own bytes.
 */
const BOUND_MARGIN_BYTES = 64 * 1024
/** More than memory holds. */
const ALL_ROWS = 2 ** 31 - 1
const FIRST_ID = -(2n ** 63n)
const LAST_ID = 2n ** 63n - 1n

/**
 * `sequence` comes before the texts, so that reading it never walks through a long name's pages.
 */
const TABLES = (schema: string): string => `
  CREATE TABLE ${schema}.plants (
    owner TEXT NOT NULL, id INTEGER NOT NULL, sequence INTEGER NOT NULL, name TEXT NOT NULL, tag TEXT,
    PRIMARY KEY (owner, id)) WITHOUT ROWID;
  CREATE TABLE ${schema}.meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;`

/**
 * A column of text. sql.js takes a leading U+FEFF for a byte order mark and drops it: of two it
 * drops one.
 */
const text = (column: string): string =>
  `iif(unicode(${column}) = 0xfeff, char(0xfeff) || ${column}, ${column})`

/*
 * Where no memory is left for a text that is bound, sql.js binds NULL, silently. A NULL among these
 * makes the statement fail: as a name that must not be NULL, or as a LIMIT.
 */
const unlessNull = (value: string, ...bound: readonly string[]): string =>
  `iif(${bound.map((each) => `${each} IS NULL`).join(' OR ')}, NULL, ${value})`

/**
 * SQLite makes the text of so many plants in one crossing, which takes less than half of what their
 * rows take one by one (`make bench WORKLOADS=cursor`), but only of texts up to so many bytes: its
 * memory is never given back. For a longer one stands a U+0000, which JSON text never holds.
 */
const CROSSING_ROWS = 100
const SMALL_BYTES = 256
const MARK = 0
const COMMA = 0x2c
const SMALL_PLANT = `CASE
    WHEN sequence > ?5 THEN NULL
    WHEN octet_length(name) > ${SMALL_BYTES} OR octet_length(tag) > ${SMALL_BYTES} THEN char(${MARK})
    WHEN tag IS NULL THEN json_object('name', name)
    ELSE json_object('name', name, 'tag', tag) END`
/**
 * Compared with a bare `?1`, SQLite would prepare some statements anew at each use, since sql.js
 * clears what was bound: 5 to 12 µs.
 */
const OWNER = 'owner = CAST(?1 AS TEXT)'

const EMPTY_ARRAY = Buffer.from('[]')

// Imported, a CommonJS module is read through for the names that it exports before it runs: 15 ms
// for this one, a tenth of a start.
const require = createRequire(import.meta.url)
const initSqlJs = require('sql.js') as typeof InitSqlJs

let library: Promise<SqlJs> | undefined

/** Compiles SQLite once a process; called early, it does so while other things start. */
export function loadSqlite(): Promise<SqlJs> {
  return (library ??= initSqlJs())
}

/**
 * Plants in SQLite, inside this process's memory. Everything is synchronous: what one call does, no
 * other sees in part.
 */
export class PlantDatabase {
  readonly #library: SqlJs
  readonly #db: Database
  readonly #insert: Statement
  readonly #insertTagged: Statement
  readonly #exists: Statement
  readonly #compare: Statement
  readonly #compareTagged: Statement
  readonly #page: Statement
  readonly #rows: Statement
  readonly #count: Statement
  readonly #nth: Statement
  readonly #pages: Statement
  #plants: number

  private constructor(library: SqlJs, db: Database, schema: 'main' | 'mem', plants: number) {
    this.#library = library
    this.#db = db
    this.#plants = plants
    const table = `${schema}.plants`
    this.#insert = db.prepare(
      `INSERT INTO ${table} VALUES (?1, CAST(?2 AS INTEGER), ?3, CAST(?4 AS TEXT), NULL)`,
    )
    this.#insertTagged = db.prepare(
      `INSERT INTO ${table} VALUES (?1, CAST(?2 AS INTEGER), ?3, ${unlessNull('CAST(?4 AS TEXT)', '?5')}, CAST(?5 AS TEXT))`,
    )
    const plant = `FROM ${table} WHERE owner = ?1 AND id = CAST(?2 AS INTEGER)`
    this.#exists = db.prepare(`SELECT 1 ${plant} LIMIT ${unlessNull('1', '?1', '?2')}`)
    // Lengths first: SQLite knows them without reading the text, which may be long.
    const sameName = 'octet_length(name) = octet_length(?3) AND name = CAST(?3 AS TEXT)'
    const sameTag = 'octet_length(tag) = octet_length(?4) AND tag = CAST(?4 AS TEXT)'
    this.#compare = db.prepare(`SELECT ${unlessNull(`${sameName} AND tag IS NULL`, '?3')} ${plant}`)
    this.#compareTagged = db.prepare(
      `SELECT ${unlessNull(`${sameName} AND ifnull(${sameTag}, 0)`, '?3', '?4')} ${plant}`,
    )
    const range = `FROM ${table} WHERE ${OWNER} AND id BETWEEN CAST(?2 AS INTEGER) AND CAST(?3 AS INTEGER) ORDER BY id`
    const limit = `LIMIT ${unlessNull('?4', '?1', '?2', '?3')}`
    this.#page = db.prepare(`
      SELECT json, plants, iif(EXISTS(SELECT 1 FROM ${table} WHERE ${OWNER} AND id > last AND id <= CAST(?3 AS INTEGER)), CAST(last AS TEXT), NULL)
      FROM (SELECT CAST('[' || group_concat(plant) || ']' AS BLOB) AS json, count(plant) AS plants, max(id) AS last
            FROM (SELECT id, ${SMALL_PLANT} AS plant ${range} ${limit}))`)
    this.#rows = db.prepare(
      `SELECT iif(sequence > ?5, NULL, ${text('name')}), iif(sequence > ?5, NULL, ${text('tag')}), id ${range} ${limit}`,
    )
    const seen = `FROM (SELECT id, sequence ${range} ${limit}) WHERE sequence <= ?5`
    this.#count = db.prepare(
      `SELECT count(*) FILTER (WHERE sequence <= ?5), max(id) FROM (SELECT id, sequence ${range} ${limit})`,
    )
    this.#nth = db.prepare(`SELECT id ${seen} LIMIT 1 OFFSET ?6`)
    this.#pages = db.prepare(`PRAGMA ${schema}.page_count`)
  }

  /**
   * A database to serve from, holding what a snapshot holds. The plants live in an attached
   * `:memory:` database: sql.js keeps its main database as one growing array, and each growth
   * copies all of it (110 ms at 100 MB, seen). The bytes are used up.
   */
  static async serving(snapshot?: Uint8Array): Promise<PlantDatabase> {
    const library = await loadSqlite()
    const db = new library.Database(snapshot)
    db.run(
      `PRAGMA main.journal_mode = OFF; PRAGMA main.synchronous = OFF; ATTACH ':memory:' AS mem; PRAGMA mem.journal_mode = OFF;${TABLES('mem')}`,
    )
    if (!snapshot) return new PlantDatabase(library, db, 'mem', 0)
    const plants = db.run(`INSERT INTO mem.plants ${allRows(db)}`).getRowsModified()
    db.run('DROP TABLE main.plants; DROP TABLE main.meta; VACUUM main')
    return new PlantDatabase(library, db, 'mem', plants)
  }

  /** A database that becomes a file, starting from one or from nothing. The bytes are used up. */
  static async building(from?: Uint8Array): Promise<PlantDatabase> {
    const library = await loadSqlite()
    const db = new library.Database(from)
    db.run('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF')
    if (!from) db.run(TABLES('main'))
    else if (!hasSequences(db)) renewTables(db)
    return new PlantDatabase(library, db, 'main', 0)
  }

  /** Whether there are so many bytes of memory in one piece, or can be had. */
  hasMemory(bytes: number): boolean {
    const place = this.#library._malloc(bytes)
    if (place !== 0) this.#library._free(place)
    return place !== 0
  }

  /** Inserts plants that are not there yet, all in one transaction. */
  insert(rows: readonly Row[], sequence: number): void {
    this.#db.run('BEGIN')
    for (const row of rows) this.#insertRow(row, sequence)
    this.#db.run('COMMIT')
    this.#plants += rows.length
  }

  /** The same for rows of several batches. */
  insertStored(rows: readonly StoredRow[]): void {
    this.#db.run('BEGIN')
    for (const { row, sequence } of rows) this.#insertRow(row, sequence)
    this.#db.run('COMMIT')
    this.#plants += rows.length
  }

  #insertRow([owner, id, name, tag]: Row, sequence: number): void {
    const insert = tag === undefined ? this.#insert : this.#insertTagged
    insert.run([owner, id, sequence, ...this.#texts(name, tag)])
  }

  /**
   * Texts to be bound, long ones as bytes: sql.js writes a string into SQLite's memory character by
   * character, and 1 MB of it takes 7 ms. It does not look whether there is memory for bytes, and
   * would write to address 0: so that is asked here, for all of them at once.
   */
  #texts(name: string, tag: string | undefined): readonly (string | Uint8Array)[] {
    const texts = tag === undefined ? [name] : [name, tag]
    if (name.length < LONG_CHARS && (tag === undefined || tag.length < LONG_CHARS)) return texts
    const bound = texts.map((text) => Buffer.from(text))
    const bytes = bound.reduce((sum, { length }) => sum + length, 0)
    if (!this.hasMemory(bytes + BOUND_MARGIN_BYTES))
      throw new Error('SQLite has no memory left for a text')
    return bound
  }

  /**
   * How many plants there are. Only of a database to serve from: others do not count what they
   * begin with.
   */
  get count(): number {
    return this.#plants
  }

  /**
   * Compares a plant with the one of its id, inside SQLite: a text of 1 MB takes 7 ms in
   * JavaScript, and 0.1 ms here.
   */
  existing([owner, id, name, tag]: Row): Existing {
    this.#exists.bind([owner, id])
    const exists = this.#exists.step()
    this.#exists.reset()
    if (!exists) return 'none'
    const compare = tag === undefined ? this.#compare : this.#compareTagged
    compare.bind([owner, id, ...this.#texts(name, tag)])
    compare.step()
    const [same] = compare.get()
    compare.reset()
    if (typeof same !== 'number') throw new Error('SQLite has no memory left to compare a plant')
    return same === 1 ? 'same' : 'other'
  }

  /**
   * One owner's plants, ascending: looks at `maxRows` rows at most, and at none after the plant
   * that brings the text to `maxBytes`. Rows that the view does not see count as looked at, so that
   * the work is bounded whatever came since.
   */
  chunk({ owner, from, to, asOf }: View, maxRows: number, maxBytes: number): Chunk {
    const parts: Buffer[] = []
    let [plants, at, rowsLeft, bytesLeft] = [0, from, maxRows, maxBytes]
    for (;;) {
      const rows = Math.min(rowsLeft, CROSSING_ROWS)
      const view: View = { owner, from: at, to, asOf }
      const part = this.#crossing(view, rows, bytesLeft) ?? this.#chunkByRows(view, rows, bytesLeft)
      if (part.plants > 0) parts.push(part.json)
      plants += part.plants
      rowsLeft -= rows
      bytesLeft -= part.json.length
      const { cutAt } = part
      if (cutAt === undefined || rowsLeft === 0 || bytesLeft <= 0)
        return { json: joined(parts), plants, cutAt }
      at = cutAt + 1n
    }
  }

  /** Undefined where a text is too long, or all of them are. */
  #crossing({ owner, from, to, asOf }: View, maxRows: number, maxBytes: number): Chunk | undefined {
    const page = this.#page
    page.bind([owner, from, to, maxRows, asOf])
    page.step()
    const [json, plants, last] = page.get()
    page.reset()
    const cutAt = typeof last === 'string' ? BigInt(last) : undefined
    if (!(json instanceof Uint8Array)) return { json: EMPTY_ARRAY, plants: 0, cutAt }
    if (json.length > maxBytes || json.includes(MARK)) return undefined
    return { json: Buffer.from(json.buffer), plants: Number(plants), cutAt }
  }

  #chunkByRows({ owner, from, to, asOf }: View, maxRows: number, maxBytes: number): Chunk {
    const rows = this.#rows
    rows.bind([owner, from, to, maxRows + 1, asOf])
    const plants: string[] = []
    let [seen, bytes] = [0, 0]
    let last: bigint | undefined
    let hasMore = false
    while (!hasMore && rows.step()) {
      hasMore = last !== undefined
      if (hasMore) break
      const [name, tag] = rows.get()
      if (typeof name === 'string') {
        const plant = JSON.stringify(typeof tag === 'string' ? { name, tag } : { name })
        plants.push(plant)
        bytes += Buffer.byteLength(plant)
      }
      if (++seen === maxRows || bytes >= maxBytes) last = rowId(rows, 2)
    }
    rows.reset()
    return {
      json: Buffer.from(`[${plants.join()}]`),
      plants: plants.length,
      cutAt: hasMore ? last : undefined,
    }
  }

  /**
   * Passes over plants of a view, looking at `maxRows` rows at most. `at` is the last id it came
   * to; `left` is how many plants of those asked for it has not reached. No `at`: the view holds
   * fewer plants.
   */
  pass(
    view: View,
    plants: number,
    maxRows: number,
  ): { readonly at: bigint | undefined; readonly left: number } {
    const { owner, from, to, asOf } = view
    const range = [owner, from, to, maxRows, asOf]
    const count = this.#count
    count.bind(range)
    count.step()
    const [seen, last] = count.get(null, { useBigInt: true })
    count.reset()
    const left = plants - Number(seen)
    if (typeof last !== 'bigint') return { at: undefined, left }
    if (left > 0) return { at: last, left }
    this.#nth.bind([...range, plants - 1])
    this.#nth.step()
    const at = rowId(this.#nth, 0)
    this.#nth.reset()
    return { at, left: 0 }
  }

  /** Whether a view holds a plant. */
  hasPlant({ owner, from, to, asOf }: View): boolean {
    this.#nth.bind([owner, from, to, ALL_ROWS, asOf, 0])
    const has = this.#nth.step()
    this.#nth.reset()
    return has
  }

  /** Has SQLite verify the file, and counts the plants. @throws Error when it finds damage. */
  check(): number {
    const verdict = this.#one('PRAGMA integrity_check')
    if (verdict !== 'ok') throw new Error(`SQLite finds damage: ${String(verdict)}`)
    return Number(this.#one('SELECT count(*) FROM plants'))
  }

  #one(sql: string): Value | undefined {
    const statement = this.#db.prepare(sql)
    statement.step()
    const [value] = statement.get()
    statement.free()
    return value
  }

  pageCount(): number {
    this.#pages.step()
    const [count] = this.#pages.get()
    this.#pages.reset()
    return Number(count)
  }

  /** The file's bytes, described by `meta`. Only of a database that was opened by `building`. */
  toFile(meta: Meta): Uint8Array {
    this.#db.run(
      `REPLACE INTO meta VALUES ('format', ${FORMAT_VERSION}), ('sequence', ${meta.sequence}), ('complete', ${meta.complete ? 1 : 0})`,
    )
    return this.#db.export()
  }

  close(): void {
    this.#db.close()
  }
}

/** The `meta` table of a database file. @throws Error when the file is no such database. */
export async function readMeta(bytes: Uint8Array): Promise<Meta & { readonly format: number }> {
  return query(bytes, 'SELECT key, value FROM meta', (statement) => {
    const values = new Map<unknown, Value | undefined>()
    while (statement.step()) {
      const [key, value] = statement.get()
      values.set(key, value)
    }
    return {
      format: Number(values.get('format')),
      sequence: Number(values.get('sequence')),
      complete: values.get('complete') === 1,
    }
  })
}

async function query<T>(
  bytes: Uint8Array,
  sql: string,
  read: (statement: Statement) => T | Promise<T>,
): Promise<T> {
  const db = new (await loadSqlite()).Database(bytes)
  try {
    return await read(db.prepare(sql))
  } finally {
    db.close()
  }
}

function rowId(statement: Statement, column: number): bigint {
  const id = statement.get(null, { useBigInt: true })[column]
  if (typeof id !== 'bigint') throw new TypeError('an id that is no integer')
  return id
}

/** JSON arrays, none of them empty, as one. */
function joined(arrays: readonly Buffer[]): Buffer {
  const [first] = arrays
  if (!first) return EMPTY_ARRAY
  if (arrays.length === 1) return first
  const all = Buffer.concat(
    arrays.map((array, i) => (i < arrays.length - 1 ? array.subarray(0, -1) : array)),
  )
  let at = 0
  for (const { length } of arrays) {
    if (at > 0) all[at] = COMMA
    at += length - 1
  }
  return all
}

/** Whether the table of plants is that of version 2. */
function hasSequences(db: Database): boolean {
  const columns = db.prepare(
    "SELECT 1 FROM pragma_table_info('plants', 'main') WHERE name = 'sequence'",
  )
  const has = columns.step()
  columns.free()
  return has
}

/**
 * All rows of the main database, in the order of the columns of version 2; of that version SQLite
 * copies whole cells.
 */
function allRows(db: Database): string {
  return hasSequences(db)
    ? 'SELECT * FROM main.plants'
    : `SELECT owner, id, ${BEFORE_ALL}, name, tag FROM main.plants`
}

/** Makes the tables of version 2 from those of version 1, in place. */
function renewTables(db: Database): void {
  db.run(`
    ALTER TABLE main.plants RENAME TO old_plants; ALTER TABLE main.meta RENAME TO old_meta;${TABLES('main')}
    INSERT INTO main.plants SELECT owner, id, ${BEFORE_ALL}, name, tag FROM main.old_plants;
    DROP TABLE main.old_plants; DROP TABLE main.old_meta; VACUUM main`)
}

export const ALL_IDS = { from: FIRST_ID, to: LAST_ID } as const
