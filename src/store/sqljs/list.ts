import type { Value } from 'sql.js'
import type { FairQueue } from '../../limits/fair-queue.ts'
import type { PlantList, RangeOf } from '../../plants/store.ts'
import type { Query } from './sqlite.ts'

/** A range of one owner's ids, ends included, without the rows of later batches than `asOf`. */
interface View {
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
  /**
   * True if the next row of the range is shown. If not, it is of a later batch, or there is none; a
   * row after one of a later batch may be shown.
   */
  readonly isNextShown: boolean
}

export const ALL_IDS = { from: -(2n ** 63n), to: 2n ** 63n - 1n } as const

/**
 * A chunk ends after this many rows or bytes: any list takes constant memory and short ticks. With
 * the plant that reaches the bytes, a chunk of short plants is no longer than a piece of 64 KiB.
 */
const CHUNK_ROWS = 1000
const CHUNK_BYTES = 60 * 1024
/** Few, because SQLite reads each row whole, long names too, to see whether it is in the range. */
const COUNT_ROWS = 250

/**
 * SQLite makes the JSON of this many plants in one call, which takes less than half of the time of
 * reading them row by row (`make bench WORKLOADS=cursor`). It does so only for short texts,
 * because SQLite's memory is never given back. A longer text becomes U+0000, which JSON text never
 * holds.
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
 * A bare `?1` makes SQLite prepare some statements again at each use, because sql.js clears what
 * was bound: 5 to 12 µs here, 50 in a LIMIT.
 */
const OWNER = 'owner = CAST(?1 AS TEXT)'
const EMPTY_ARRAY = '[]'

/**
 * A column of text; NULL in a row of a later batch. sql.js drops one U+FEFF at the start of a text,
 * so a second one is added.
 */
function visibleText(column: string): string {
  const text = `iif(unicode(${column}) = 0xfeff, char(0xfeff) || ${column}, ${column})`
  return `iif(sequence > ?5, NULL, ${text})`
}

/** One owner's lists. Each read of the database is one short piece of work. */
export class PlantLists {
  readonly #json: Query
  readonly #rows: Query
  readonly #count: Query
  readonly #nth: Query

  constructor(prepare: (sql: string) => Query) {
    const upTo = 'CAST(?3 AS INTEGER)'
    const range = `FROM mem.plants
      WHERE ${OWNER} AND id BETWEEN CAST(?2 AS INTEGER) AND ${upTo} ORDER BY id
      LIMIT CAST(?4 AS INTEGER)`
    const isNextShown = `SELECT sequence <= ?5 FROM mem.plants
      WHERE ${OWNER} AND id > last AND id <= ${upTo} ORDER BY id LIMIT 1`
    this.#json = prepare(`
      SELECT json, plants, CAST(last AS TEXT), (${isNextShown})
      FROM (SELECT '[' || group_concat(plant) || ']' AS json,
                   count(plant) AS plants, max(id) AS last
            FROM (SELECT id, ${SHORT_PLANT} AS plant ${range}))`)
    this.#rows = prepare(`
      SELECT ${visibleText('name')}, ${visibleText('tag')}, CAST(id AS TEXT) ${range}`)
    const read = `FROM (SELECT id, sequence ${range})`
    this.#count = prepare(`
      SELECT count(*) FILTER (WHERE sequence <= ?5), CAST(max(id) AS TEXT) ${read}`)
    this.#nth = prepare(`
      SELECT CAST(id AS TEXT) ${read} WHERE sequence <= ?5 LIMIT 1 OFFSET ?6`)
  }

  /**
   * Opens a list of an owner's plants as of a sequence. It is ready at once unless its limit is
   * beyond the first chunk, or rows of a later batch follow: the response's headers say whether and
   * where the list is cut, so its plants are counted first, a piece of work at a time.
   */
  open(
    queue: FairQueue,
    owner: string,
    { after, limit }: RangeOf<'after' | 'limit'>,
    asOf: number,
  ): PlantList | Promise<PlantList> {
    if (limit === 0 || after === ALL_IDS.to) return this.#listOf(undefined, undefined)
    const from = after === undefined ? ALL_IDS.from : after + 1n
    const view: View = { owner, from, to: ALL_IDS.to, asOf }
    const first = this.chunk(view, Math.min(limit ?? CHUNK_ROWS, CHUNK_ROWS), CHUNK_BYTES)
    const { cutAt, plants, isNextShown } = first
    if (cutAt === undefined || limit === undefined) return this.#listOf(first, restOf(view, cutAt))
    if (plants === limit && isNextShown) return this.#listOf(first, undefined, cutAt)
    // The first chunk is dropped, and read again after the count: no budget counts lists that wait.
    return this.#findCut(queue, view, cutAt, limit - plants).then((last) =>
      this.#listOf(undefined, { ...view, to: last ?? view.to }, last),
    )
  }

  /** Reads each chunk when it is asked for. Between two chunks the list keeps only its position. */
  #listOf(first: Chunk | undefined, rest: View | undefined, cutAt?: bigint): PlantList {
    const read = (view: View): Chunk => this.chunk(view, CHUNK_ROWS, CHUNK_BYTES)
    return {
      cutAt,
      get ended() {
        return first === undefined && rest === undefined
      },
      next() {
        if (first) {
          const { json } = first
          first = undefined
          return json
        }
        if (!rest) return undefined
        const chunk = read(rest)
        rest = restOf(rest, chunk.cutAt)
        return chunk.json
      },
      close() {
        first = undefined
        rest = undefined
      },
    }
  }

  /** The id of the `plants`-th plant after `start`; undefined if none follows it in the view. */
  async #findCut(
    queue: FairQueue,
    view: View,
    start: bigint,
    plants: number,
  ): Promise<bigint | undefined> {
    const last = await this.#skipAll(queue, view, start, plants)
    if (last === undefined) return undefined
    return (await this.#skipAll(queue, view, last, 1)) === undefined ? undefined : last
  }

  /** The id of the `plants`-th plant after `start`, found a piece at a time; undefined if none. */
  async #skipAll(
    queue: FairQueue,
    view: View,
    start: bigint,
    plants: number,
  ): Promise<bigint | undefined> {
    let at: bigint | undefined = start
    for (let left = plants; left > 0; ) {
      const rest = restOf(view, at)
      if (!rest) return undefined
      const count = left
      const skipped = await queue.run(view.owner, () => this.skip(rest, count, COUNT_ROWS))
      at = skipped.at
      left = skipped.left
    }
    return at
  }

  /**
   * One owner's plants, ascending: at most `maxRows` rows, and none after the plant that brings the
   * text to `maxBytes`. Rows of later batches are not shown, but count for `maxRows`: so
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
  #shortPlants(view: View, rows: number, maxBytes: number): Chunk | undefined {
    const [json, plants, last, next] = this.#json.first(bound(view, rows)) ?? []
    const cutAt = next === null ? undefined : idOf(last)
    const isNextShown = next === 1
    if (typeof json !== 'string') return { json: EMPTY_ARRAY, plants: 0, cutAt, isNextShown }
    // What sql.js returns if SQLite has no memory left for the text.
    if (json === '') throw new Error('SQLite has no memory left for a list')
    if (Buffer.byteLength(json) > maxBytes || json.includes(LONG_TEXT)) return undefined
    return { json, plants: Number(plants), cutAt, isNextShown }
  }

  #byRow(view: View, maxRows: number, maxBytes: number): Chunk {
    const plants: string[] = []
    let [read, bytes] = [0, 0]
    let last: bigint | undefined
    let next: boolean | undefined
    for (const [name, tag, id] of this.#rows.rows(bound(view, maxRows + 1))) {
      const isShown = typeof name === 'string'
      if (last !== undefined) {
        next = isShown
        break
      }
      if (isShown) {
        const plant = JSON.stringify(typeof tag === 'string' ? { name, tag } : { name })
        plants.push(plant)
        bytes += Buffer.byteLength(plant)
      }
      if (++read === maxRows || bytes >= maxBytes) last = idOf(id)
    }
    const cutAt = next === undefined ? undefined : last
    return { json: `[${plants.join()}]`, plants: plants.length, cutAt, isNextShown: next ?? false }
  }

  /**
   * Skips plants of a view, reading at most `maxRows` rows. `at` is the last id that was read;
   * `left` is how many of the plants are still to be skipped. `at` is undefined if the view is
   * empty.
   */
  skip(
    view: View,
    plants: number,
    maxRows: number,
  ): { readonly at: bigint | undefined; readonly left: number } {
    const range = bound(view, maxRows)
    const [visible, last] = this.#count.first(range) ?? []
    const left = plants - Number(visible)
    if (last === null) return { at: undefined, left }
    if (left > 0) return { at: idOf(last), left }
    const [id] = this.#nth.first([...range, plants - 1]) ?? []
    return { at: idOf(id), left: 0 }
  }
}

function restOf(view: View, cutAt: bigint | undefined): View | undefined {
  return cutAt === undefined || cutAt >= view.to ? undefined : { ...view, from: cutAt + 1n }
}

/** What ?1 to ?5 are in each statement. */
function bound({ owner, from, to, asOf }: View, rows: number): readonly Value[] {
  return [owner, from, to, rows, asOf]
}

/** Ids are read as text: as a number not every one is exact, and a bigint takes longer. */
function idOf(text: Value | undefined): bigint {
  if (typeof text !== 'string') throw new TypeError('an id that is no text')
  return BigInt(text)
}

/** Joins JSON arrays, none of which is empty. */
function joined(arrays: readonly string[]): string {
  const [first = EMPTY_ARRAY] = arrays
  return arrays.length <= 1 ? first : `[${arrays.map((array) => array.slice(1, -1)).join()}]`
}
