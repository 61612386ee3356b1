import type { Database, Statement } from 'sql.js'

/** A range of one owner's ids, ends included, without the rows of later batches than `asOf`. */
export interface View {
  readonly owner: string
  readonly from: bigint
  readonly to: bigint
  readonly asOf: number
}

/** A chunk of one owner's plants. */
export interface Chunk {
  /** A JSON array. */
  readonly json: string
  /** How many plants it holds. */
  readonly plants: number
  /** The last id that was read, if rows follow it in the range. */
  readonly cutAt: bigint | undefined
  /** Whether the first of these rows is in the view. If it is of a later batch, others may be. */
  readonly isNextShown: boolean
}

export const ALL_IDS = { from: -(2n ** 63n), to: 2n ** 63n - 1n } as const

/**
 * SQLite makes the JSON of so many plants in one call, which takes less than half of the time of
 * reading them row by row (`make bench WORKLOADS=cursor`). It does so only for texts up to so many
 * bytes, because SQLite's memory is never given back. A longer text becomes U+0000, which JSON text
 * never holds.
 */
const CALL_ROWS = 100
const SHORT_BYTES = 256
const LONG_TEXT = '\0'
const SHORT_PLANT = `CASE
    WHEN sequence > ?5 THEN NULL
    WHEN octet_length(name) > ${SHORT_BYTES} OR octet_length(tag) > ${SHORT_BYTES}
      THEN char(0)
    WHEN tag IS NULL THEN json_object('name', name)
    ELSE json_object('name', name, 'tag', tag) END`
/**
 * A bare `?1` would make SQLite prepare some statements again at each use, because sql.js clears
 * what was bound: 5 to 12 µs.
 */
const OWNER = 'owner = CAST(?1 AS TEXT)'
const EMPTY_ARRAY = '[]'

/**
 * If there is no memory left for a text, sql.js binds NULL without an error. This makes the
 * statement fail then: a name or a LIMIT must not be NULL.
 */
export function unlessNull(value: string, ...bound: readonly string[]): string {
  return `iif(${bound.map((each) => `${each} IS NULL`).join(' OR ')}, NULL, ${value})`
}

/**
 * A column of text; NULL in a row of a later batch. sql.js drops one U+FEFF at the start of a text,
 * so a second one is added.
 */
function visibleText(column: string): string {
  const text = `iif(unicode(${column}) = 0xfeff, char(0xfeff) || ${column}, ${column})`
  return `iif(sequence > ?5, NULL, ${text})`
}

/** Reads plants for lists. Each call is one short piece of work. */
export class ListQueries {
  readonly #json: Statement
  readonly #rows: Statement
  readonly #count: Statement
  readonly #nth: Statement

  constructor(db: Database, table: string) {
    const upTo = 'CAST(?3 AS INTEGER)'
    const range = `FROM ${table}
      WHERE ${OWNER} AND id BETWEEN CAST(?2 AS INTEGER) AND ${upTo} ORDER BY id
      LIMIT ${unlessNull('?4', '?1', '?2', '?3')}`
    const isNextShown = `SELECT sequence <= ?5 FROM ${table}
      WHERE ${OWNER} AND id > last AND id <= ${upTo} ORDER BY id LIMIT 1`
    this.#json = db.prepare(`
      SELECT json, plants, CAST(last AS TEXT), (${isNextShown})
      FROM (SELECT '[' || group_concat(plant) || ']' AS json,
                   count(plant) AS plants, max(id) AS last
            FROM (SELECT id, ${SHORT_PLANT} AS plant ${range}))`)
    this.#rows = db.prepare(`SELECT ${visibleText('name')}, ${visibleText('tag')}, id ${range}`)
    const read = `FROM (SELECT id, sequence ${range})`
    this.#count = db.prepare(`SELECT count(*) FILTER (WHERE sequence <= ?5), max(id) ${read}`)
    this.#nth = db.prepare(`SELECT id ${read} WHERE sequence <= ?5 LIMIT 1 OFFSET ?6`)
  }

  /**
   * One owner's plants, ascending. Reads at most `maxRows` rows, and none after the plant that
   * brings the text to `maxBytes`. Rows of later batches are not shown, but count for `maxRows`: so
   * the work is bounded.
   */
  chunk({ owner, from, to, asOf }: View, maxRows: number, maxBytes: number): Chunk {
    const arrays: string[] = []
    let [plants, at, rowsLeft, bytesLeft] = [0, from, maxRows, maxBytes]
    for (;;) {
      const rows = Math.min(rowsLeft, CALL_ROWS)
      const view: View = { owner, from: at, to, asOf }
      const part = this.#shortPlants(view, rows, bytesLeft) ?? this.#byRow(view, rows, bytesLeft)
      if (part.plants > 0) arrays.push(part.json)
      plants += part.plants
      rowsLeft -= rows
      bytesLeft -= Buffer.byteLength(part.json)
      const { cutAt, isNextShown } = part
      if (cutAt === undefined || rowsLeft === 0 || bytesLeft <= 0)
        return { json: joined(arrays), plants, cutAt, isNextShown }
      at = cutAt + 1n
    }
  }

  /** Undefined if a text is too long, or all of them together are. */
  #shortPlants({ owner, from, to, asOf }: View, rows: number, maxBytes: number): Chunk | undefined {
    const statement = this.#json
    statement.bind([owner, from, to, rows, asOf])
    statement.step()
    const [json, plants, last, next] = statement.get()
    statement.reset()
    const cutAt = typeof last === 'string' && next !== null ? BigInt(last) : undefined
    const isNextShown = next === 1
    if (typeof json !== 'string') return { json: EMPTY_ARRAY, plants: 0, cutAt, isNextShown }
    // What sql.js returns if SQLite has no memory left for the text.
    if (json === '') throw new Error('SQLite has no memory left for a list')
    if (Buffer.byteLength(json) > maxBytes || json.includes(LONG_TEXT)) return undefined
    return { json, plants: Number(plants), cutAt, isNextShown }
  }

  #byRow({ owner, from, to, asOf }: View, maxRows: number, maxBytes: number): Chunk {
    const rows = this.#rows
    rows.bind([owner, from, to, maxRows + 1, asOf])
    const plants: string[] = []
    let [read, bytes] = [0, 0]
    let last: bigint | undefined
    let cutAt: bigint | undefined
    let isNextShown = false
    while (rows.step()) {
      const [name, tag] = rows.get()
      if (last !== undefined) {
        cutAt = last
        isNextShown = typeof name === 'string'
        break
      }
      if (typeof name === 'string') {
        const plant = JSON.stringify(typeof tag === 'string' ? { name, tag } : { name })
        plants.push(plant)
        bytes += Buffer.byteLength(plant)
      }
      if (++read === maxRows || bytes >= maxBytes) last = idOf(rows, 2)
    }
    rows.reset()
    return { json: `[${plants.join()}]`, plants: plants.length, cutAt, isNextShown }
  }

  /**
   * Skips plants of a view, reading at most `maxRows` rows. `at` is the last id that was read;
   * `left` is how many of the plants are still to be skipped. `at` is undefined if the view is
   * empty.
   */
  skip(
    { owner, from, to, asOf }: View,
    plants: number,
    maxRows: number,
  ): { readonly at: bigint | undefined; readonly left: number } {
    const range = [owner, from, to, maxRows, asOf]
    this.#count.bind(range)
    this.#count.step()
    const [visible, last] = this.#count.get(null, { useBigInt: true })
    this.#count.reset()
    const left = plants - Number(visible)
    if (typeof last !== 'bigint') return { at: undefined, left }
    if (left > 0) return { at: last, left }
    this.#nth.bind([...range, plants - 1])
    this.#nth.step()
    const at = idOf(this.#nth, 0)
    this.#nth.reset()
    return { at, left: 0 }
  }
}

function idOf(statement: Statement, column: number): bigint {
  const id = statement.get(null, { useBigInt: true })[column]
  if (typeof id !== 'bigint') throw new TypeError('an id that is no integer')
  return id
}

/** Joins JSON arrays, none of which is empty. */
function joined(arrays: readonly string[]): string {
  const [first = EMPTY_ARRAY] = arrays
  return arrays.length <= 1 ? first : `[${arrays.map((array) => array.slice(1, -1)).join()}]`
}
