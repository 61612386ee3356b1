import { createRequire } from 'node:module'
import type { Database, default as InitSqlJs, SqlJs, Statement, Value } from 'sql.js'
import type { Plant } from '../../plants/plant.ts'

/** A plant as it is stored and journalled; the id as decimal digits, the one form that JSON, SQLite and sql.js all keep exact. */
export type Row = readonly [owner: string, id: string, name: string, tag?: string]

export interface Meta {
  /** The last journal sequence that the file covers. */
  readonly sequence: number
  /** Whether the file holds everything by itself, with no journal behind it. */
  readonly complete: boolean
}

/** A stretch of one owner's plants. */
export interface Stretch {
  /** A JSON array in UTF-8. */
  readonly json: Buffer
  /** Whether more plants follow because there are as many as were asked for, and not because their text is long. */
  readonly isFull: boolean
  /** The last plant's id, where more plants follow it in the range asked for. */
  readonly cutAt: bigint | undefined
}

export const FORMAT_VERSION = 1
const FIRST_ID = -(2n ** 63n)
const LAST_ID = 2n ** 63n - 1n

const TABLES = (schema: string): string => `
  CREATE TABLE ${schema}.plants (owner TEXT NOT NULL, id INTEGER NOT NULL, name TEXT NOT NULL, tag TEXT, PRIMARY KEY (owner, id)) WITHOUT ROWID;
  CREATE TABLE ${schema}.meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;`

/** A column of text. sql.js takes a leading U+FEFF for a byte order mark and drops it: of two it drops one. */
const text = (column: string): string => `iif(unicode(${column}) = 0xfeff, char(0xfeff) || ${column}, ${column})`
const NAME_TAG = `${text('name')}, ${text('tag')}`

/*
 * Where no memory is left for a text that is bound, sql.js binds NULL, silently. A NULL among these makes the statement fail: as
 * a name that must not be NULL, or as a LIMIT.
 */
const unlessNull = (value: string, ...bound: readonly string[]): string => `iif(${bound.map((each) => `${each} IS NULL`).join(' OR ')}, NULL, ${value})`

/**
 * SQLite makes the text of so many plants in one crossing, which takes less than half of what their rows take one by one (`make
 * bench WORKLOADS=cursor`), but only of texts up to so many bytes: its memory is never given back. For a longer one stands a
 * U+0000, which JSON text never holds.
 */
const CROSSING_PLANTS = 100
const SMALL_BYTES = 256
const MARK = 0
const COMMA = 0x2c
const SMALL_PLANT = `CASE
    WHEN octet_length(name) > ${SMALL_BYTES} OR octet_length(tag) > ${SMALL_BYTES} THEN char(${MARK})
    WHEN tag IS NULL THEN json_object('name', name)
    ELSE json_object('name', name, 'tag', tag) END`
/** Compared with a bare `?1`, SQLite would prepare some statements anew at each use, since sql.js clears what was bound: 5 to 12 µs. */
const OWNER = 'owner = CAST(?1 AS TEXT)'

const NOTHING: Stretch = { json: Buffer.from('[]'), isFull: false, cutAt: undefined }

// Imported, a CommonJS module is read through for the names that it exports before it runs: 15 ms for this one, a tenth of a start.
const require = createRequire(import.meta.url)
const initSqlJs = require('sql.js') as typeof InitSqlJs

let library: Promise<SqlJs> | undefined

/** Compiles SQLite once a process; called early, it does so while other things start. */
export function loadSqlite(): Promise<SqlJs> {
  return (library ??= initSqlJs())
}

/** Plants in SQLite, inside this process's memory. Everything is synchronous: what one call does, no other sees in part. */
export class PlantDatabase {
  readonly #library: SqlJs
  readonly #db: Database
  readonly #insert: Statement
  readonly #insertTagged: Statement
  readonly #find: Statement
  readonly #page: Statement
  readonly #rows: Statement
  readonly #skip: Statement
  readonly #pages: Statement
  #count: number

  private constructor(library: SqlJs, db: Database, schema: 'main' | 'mem', count: number) {
    this.#library = library
    this.#db = db
    this.#count = count
    this.#insert = db.prepare(`INSERT INTO ${schema}.plants VALUES (?, CAST(? AS INTEGER), ?, NULL)`)
    this.#insertTagged = db.prepare(`INSERT INTO ${schema}.plants VALUES (?1, CAST(?2 AS INTEGER), ${unlessNull('?3', '?4')}, ?4)`)
    this.#find = db.prepare(`SELECT ${NAME_TAG} FROM ${schema}.plants WHERE owner = ?1 AND id = CAST(?2 AS INTEGER) LIMIT ${unlessNull('1', '?1', '?2')}`)
    const range = `FROM ${schema}.plants WHERE ${OWNER} AND id BETWEEN CAST(?2 AS INTEGER) AND CAST(?3 AS INTEGER) ORDER BY id`
    const limit = `LIMIT ${unlessNull('?4', '?1', '?2', '?3')}`
    this.#page = db.prepare(`
      SELECT json, iif(EXISTS(SELECT 1 FROM ${schema}.plants WHERE ${OWNER} AND id > last AND id <= CAST(?3 AS INTEGER)), CAST(last AS TEXT), NULL)
      FROM (SELECT CAST('[' || group_concat(plant) || ']' AS BLOB) AS json, max(id) AS last FROM (SELECT id, ${SMALL_PLANT} AS plant ${range} ${limit}))`)
    this.#rows = db.prepare(`SELECT ${NAME_TAG}, id ${range} ${limit}`)
    this.#skip = db.prepare(`SELECT id ${range} LIMIT ${unlessNull('1', '?1', '?2', '?3')} OFFSET ?4`)
    this.#pages = db.prepare(`PRAGMA ${schema}.page_count`)
  }

  /**
   * A database to serve from, holding what a snapshot holds. The plants live in an attached `:memory:` database: sql.js
   * keeps its main database as one growing array, and each growth copies all of it (110 ms at 100 MB, seen).
   * The bytes are used up.
   */
  static async serving(snapshot?: Uint8Array): Promise<PlantDatabase> {
    const library = await loadSqlite()
    const db = new library.Database(snapshot)
    db.run(`PRAGMA main.journal_mode = OFF; PRAGMA main.synchronous = OFF; ATTACH ':memory:' AS mem; PRAGMA mem.journal_mode = OFF;${TABLES('mem')}`)
    if (!snapshot) return new PlantDatabase(library, db, 'mem', 0)
    const count = db.run('INSERT INTO mem.plants SELECT * FROM main.plants').getRowsModified()
    db.run('DROP TABLE main.plants; DROP TABLE main.meta; VACUUM main')
    return new PlantDatabase(library, db, 'mem', count)
  }

  /** A database that becomes a file, starting from one or from nothing. The bytes are used up. */
  static async building(from?: Uint8Array): Promise<PlantDatabase> {
    const library = await loadSqlite()
    const db = new library.Database(from)
    db.run('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF')
    if (!from) db.run(TABLES('main'))
    return new PlantDatabase(library, db, 'main', 0)
  }

  /** Whether there are so many bytes of memory in one piece, or can be had. */
  hasMemory(bytes: number): boolean {
    const place = this.#library._malloc(bytes)
    if (place !== 0) this.#library._free(place)
    return place !== 0
  }

  /** Inserts plants that are not there yet, all in one transaction. */
  insert(rows: readonly Row[]): void {
    this.#db.run('BEGIN')
    for (const [owner, id, name, tag] of rows) {
      if (tag === undefined) this.#insert.run([owner, id, name])
      else this.#insertTagged.run([owner, id, name, tag])
    }
    this.#db.run('COMMIT')
    this.#count += rows.length
  }

  /** How many plants there are. Only of a database to serve from: others do not count what they begin with. */
  get count(): number {
    return this.#count
  }

  find(owner: string, id: string): Plant | undefined {
    this.#find.bind([owner, id])
    const plant = this.#find.step() ? toPlant(this.#find.get()) : undefined
    this.#find.reset()
    return plant
  }

  /**
   * One owner's plants with `from` ≤ id ≤ `to`, ascending: at most `maxPlants`, and no further than the one that
   * brings their text to `maxBytes`. Plants in `skip` are passed over and not counted.
   */
  page(owner: string, from: bigint, to: bigint, maxPlants: number, maxBytes: number, skip: ReadonlySet<bigint>): Stretch {
    if (skip.size > 0) return this.#pageByRows(owner, from, to, maxPlants, maxBytes, skip)
    const parts: Buffer[] = []
    let at = from
    let bytesLeft = maxBytes
    for (let plantsLeft = maxPlants; ; plantsLeft -= CROSSING_PLANTS) {
      const plants = Math.min(plantsLeft, CROSSING_PLANTS)
      const { json, isFull, cutAt } = this.#crossing(owner, at, to, plants, bytesLeft) ?? this.#pageByRows(owner, at, to, plants, bytesLeft, skip)
      parts.push(json)
      bytesLeft -= json.length
      const isLast = plants === plantsLeft
      if (cutAt === undefined || !isFull || isLast || bytesLeft <= 0) return { json: joined(parts), isFull: isFull && isLast, cutAt }
      at = cutAt + 1n
    }
  }

  /** Undefined where a text is too long, or all of them are. */
  #crossing(owner: string, from: bigint, to: bigint, maxPlants: number, maxBytes: number): Stretch | undefined {
    const page = this.#page
    page.bind([owner, from, to, maxPlants])
    page.step()
    const [json, cutAt] = page.get()
    page.reset()
    if (!(json instanceof Uint8Array)) return NOTHING
    if (json.length > maxBytes || json.includes(MARK)) return undefined
    const hasMore = typeof cutAt === 'string'
    return { json: Buffer.from(json.buffer), isFull: hasMore, cutAt: hasMore ? BigInt(cutAt) : undefined }
  }

  #pageByRows(owner: string, from: bigint, to: bigint, maxPlants: number, maxBytes: number, skip: ReadonlySet<bigint>): Stretch {
    const rows = this.#rows
    rows.bind([owner, from, to, maxPlants + skip.size + 1])
    const plants: string[] = []
    let bytes = 0
    let last: bigint | undefined
    let cutAt: bigint | undefined
    while (rows.step()) {
      if (skip.size > 0 && skip.has(rowId(rows, 2))) continue
      if (last !== undefined) {
        cutAt = last
        break
      }
      const plant = JSON.stringify(toPlant(rows.get()))
      plants.push(plant)
      bytes += Buffer.byteLength(plant)
      if (plants.length >= maxPlants || bytes >= maxBytes) last = rowId(rows, 2)
    }
    rows.reset()
    return { json: Buffer.from(`[${plants.join()}]`), isFull: plants.length === maxPlants && cutAt !== undefined, cutAt }
  }

  /** The id of the plant that stands `count` plants behind the first one with an id of at least `from`. */
  idAt(owner: string, from: bigint, count: number): bigint | undefined {
    this.#skip.bind([owner, from, LAST_ID, count])
    const id = this.#skip.step() ? rowId(this.#skip, 0) : undefined
    this.#skip.reset()
    return id
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
    this.#db.run(`REPLACE INTO meta VALUES ('format', ${FORMAT_VERSION}), ('sequence', ${meta.sequence}), ('complete', ${meta.complete ? 1 : 0})`)
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
    return { format: Number(values.get('format')), sequence: Number(values.get('sequence')), complete: values.get('complete') === 1 }
  })
}

async function query<T>(bytes: Uint8Array, sql: string, read: (statement: Statement) => T | Promise<T>): Promise<T> {
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

/** JSON arrays, of which none but a single one is empty, as one. */
function joined(arrays: readonly Buffer[]): Buffer {
  const [first] = arrays
  if (first && arrays.length === 1) return first
  const all = Buffer.concat(arrays.map((array, i) => (i < arrays.length - 1 ? array.subarray(0, -1) : array)))
  let at = 0
  for (const { length } of arrays) {
    if (at > 0) all[at] = COMMA
    at += length - 1
  }
  return all
}

function toPlant([name, tag]: readonly Value[]): Plant {
  // The columns are TEXT NOT NULL and TEXT, and only strings are ever bound to them.
  return tag === null ? { name: name as string } : { name: name as string, tag: tag as string }
}

export const ALL_IDS = { from: FIRST_ID, to: LAST_ID } as const
