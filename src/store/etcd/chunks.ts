/** Lists of plants, read from etcd range by range. */
import type { PlantChunk } from '../../plants/store.ts'
import { AnswerTooLong } from './gateway.ts'
import * as wire from './wire.ts'

/** The first range serves the usual limits. The size of the plants is not known yet. */
const FIRST_ENTRIES = 32
/** The length of an answer that later ranges aim at, by the size of the plants before. */
const RANGE_CHARS = 512 * 1024
const GROWTH = 4
const SHRINKING = 8

type ReadRange = (query: wire.RangeQuery, isFirst: boolean) => Promise<wire.RangePart>

/**
 * At most `limit` plants of a range; at least one chunk. Each chunk has what is in etcd when it is
 * read. Between two chunks only the position is kept: a generator would keep the last range too.
 * `next` throws what `read` throws, and Error if etcd holds something else than plants.
 */
export function readChunks(
  read: ReadRange,
  { first: begin, end }: wire.KeyRange,
  limit: number,
): AsyncIterator<PlantChunk, undefined> {
  let [first, entries, left, isOver] = [begin, FIRST_ENTRIES, limit, false]
  const next = async (): Promise<IteratorResult<PlantChunk, undefined>> => {
    if (isOver) return { done: true, value: undefined }
    isOver = left === 0
    // To etcd a limit of 0 means all.
    if (isOver) return { value: { json: '[]', count: 0, last: undefined, isCut: false } }
    const wanted = Math.min(left, entries)
    const query = { first, end, limit: wanted }
    const found = await read(query, first === begin).catch((error: unknown) => {
      if (wanted === 1 || !(error instanceof AnswerTooLong)) throw error
      entries = Math.ceil(wanted / SHRINKING)
    })
    if (found === undefined) return next()
    const plants = wire.plantsOf(found.entries, end)
    const key = found.entries.at(-1)?.key
    const isCut = key !== undefined && found.more
    left -= plants.length
    isOver = !isCut || left === 0
    // The rest was deleted by hand: only a list without plants has an empty chunk.
    if (key === undefined && first !== begin) return { done: true, value: undefined }
    const last = key === undefined ? undefined : wire.idOf(key)
    const value = { json: JSON.stringify(plants), count: plants.length, last, isCut }
    if (!isCut || isOver) return { value }
    first = wire.nextKey(key)
    const fitting = Math.floor((RANGE_CHARS / JSON.stringify(found).length) * plants.length)
    entries = Math.max(1, Math.min(entries * GROWTH, fitting))
    return { value }
  }
  return { next }
}
