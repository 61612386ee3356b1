/* One owner's plants from SQLite, chunk by chunk. */

import type { Value } from 'sql.js'
import { INT64_MAX, INT64_MIN } from '../../../plants/plant.ts'
import type { PlantChunk, PlantRange } from '../../../plants/store.ts'
import type { Query } from '../sqlite/sqlite.ts'

/**
 * A chunk has at most this many plants, and this much text unless it is one plant: any list takes
 * constant memory and short ticks.
 */
const CHUNK_ROWS = 1000
const CHUNK_BYTES = 60 * 1024
/**
 * SQLite joins the JSON of this many plants in one call, which takes less than half of the time of
 * reading them row by row (`make bench WORKLOADS=cursor`). It does so only for short texts,
 * because SQLite's memory is never given back.
 */
const CALL_ROWS = 100
const SHORT_BYTES = 256
const PLANT = `iif(tag IS NULL, json_object('name', name), json_object('name', name, 'tag', tag))`
/**
 * In place of a plant that is too long: U+0000, which JSON text never holds. A plant that fills a
 * chunk is made once, for its own chunk: 1 MiB takes 15 ms.
 */
const LONG_PLANT = '\0'
const SHORT_PLANT = `iif(octet_length(name) > ${SHORT_BYTES} OR octet_length(tag) > ${SHORT_BYTES},
  char(0), ${PLANT})`
const CHUNK_PLANT = `iif(octet_length(name) + ifnull(octet_length(tag), 0) > ${CHUNK_BYTES},
  char(0), ${PLANT})`
/**
 * A bare `?1` makes SQLite prepare some statements again at each use, because sql.js clears what
 * was bound: 5 to 12 µs here, 50 in a LIMIT.
 */
const OWN = 'FROM mem.plants WHERE owner = CAST(?1 AS TEXT)'
const FIRST = `${OWN} AND id >= CAST(?2 AS INTEGER) ORDER BY id LIMIT CAST(?3 AS INTEGER)`

/** One owner's lists. Each chunk is one short piece of work. */
export class PlantLists {
  readonly #joined: Query
  readonly #rows: Query
  readonly #plant: Query

  constructor(prepare: (sql: string) => Query) {
    // Ids are read as text: as a number not every one is exact, and a bigint takes longer.
    this.#joined = prepare(`
      SELECT json, plants, CAST(last AS TEXT), EXISTS (SELECT 1 ${OWN} AND id > last)
      FROM (SELECT group_concat(plant) AS json, count(*) AS plants, max(id) AS last
            FROM (SELECT id, ${SHORT_PLANT} AS plant ${FIRST}))`)
    this.#rows = prepare(`SELECT ${CHUNK_PLANT}, CAST(id AS TEXT) ${FIRST}`)
    this.#plant = prepare(`SELECT ${PLANT} ${OWN} AND id = CAST(?2 AS INTEGER)`)
  }

  /**
   * Reads a list chunk by chunk. Between two chunks it keeps only its position: a generator would
   * keep the last chunk too, which no budget counts. `check` comes before each, and may throw.
   */
  list(owner: string, range: PlantRange, check = (): void => {}): Iterator<PlantChunk, undefined> {
    let [last, left, isOver] = [range.after, range.limit ?? Infinity, false]
    const next = (): IteratorResult<PlantChunk, undefined> => {
      check()
      if (isOver) return { done: true, value: undefined }
      const value = this.chunk(owner, last, Math.min(left, CHUNK_ROWS))
      last = value.next
      left -= value.count
      isOver = value.next === undefined || left === 0
      return { value }
    }
    return { next }
  }

  /** An owner's first plants after an id: at most `maxRows`, and `maxBytes` of text or one. */
  chunk(owner: string, after: bigint | undefined, maxRows: number, maxBytes = CHUNK_BYTES) {
    const parts: string[] = []
    let [count, bytes, last, isCut] = [0, 0, after, false]
    do {
      // CAST makes 2^63 - 1 of what is larger: the last plant would be listed again.
      if (last === INT64_MAX) break
      const from = last === undefined ? INT64_MIN : last + 1n
      const part = this.#shortPlants(owner, from, Math.min(maxRows - count, CALL_ROWS))
      bytes += Buffer.byteLength(part?.json ?? '')
      if (!part || bytes > maxBytes) {
        if (count === 0) return this.#byRow(owner, from, maxRows, maxBytes)
        break
      }
      parts.push(part.json)
      count += part.count
      last = part.next
      isCut = part.next !== undefined
    } while (isCut && count < maxRows)
    return { json: `[${parts.join()}]`, count, next: isCut ? last : undefined }
  }

  /** Their JSON without the brackets of an array. Undefined if one of them is long. */
  #shortPlants(owner: string, from: bigint, rows: number): PlantChunk | undefined {
    const [json, count, last, isCut] = this.#joined.first([owner, from, rows]) ?? []
    if (count === 0) return { json: '', count, next: undefined }
    const text = textOf(json)
    if (text.includes(LONG_PLANT)) return undefined
    const next = isCut === 1 ? BigInt(textOf(last)) : undefined
    return { json: text, count: Number(count), next }
  }

  #byRow(owner: string, from: bigint, maxRows: number, maxBytes: number): PlantChunk {
    const plants: string[] = []
    let [bytes, last, isCut] = [0, from, false]
    for (const [json, id] of this.#rows.rows([owner, from, maxRows + 1])) {
      const isLong = textOf(json) === LONG_PLANT
      bytes += isLong ? Infinity : Buffer.byteLength(textOf(json))
      isCut = plants.length === maxRows || (plants.length > 0 && bytes > maxBytes)
      if (isCut) break
      last = BigInt(textOf(id))
      plants.push(textOf(isLong ? this.#plant.first([owner, last])?.[0] : json))
    }
    return { json: `[${plants.join()}]`, count: plants.length, next: isCut ? last : undefined }
  }
}

/** A text of SQLite, which is never empty. If it had no memory, sql.js returns null or nothing. */
function textOf(value: Value | undefined): string {
  if (typeof value === 'string' && value !== '') return value
  throw new Error('SQLite has no memory left for a list')
}
