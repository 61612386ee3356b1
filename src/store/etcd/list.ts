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

type Read = (query: wire.RangeQuery, isFirst: boolean) => Promise<wire.Page>

/**
 * At most `limit` plants of a range; at least one chunk. Each chunk has what is in etcd when it is
 * read.
 * @throws what `read` throws; Error if etcd holds something else than plants
 */
export async function* readChunks(
  read: Read,
  range: wire.KeyRange,
  limit: number,
): AsyncGenerator<PlantChunk, undefined> {
  const { end } = range
  let { first } = range
  let entries = FIRST_ENTRIES
  // To etcd a limit of 0 means all.
  if (limit === 0) yield { json: '[]', count: 0, cutAt: undefined }
  for (let left = limit; left > 0; ) {
    const wanted = Math.min(left, entries)
    const query = { first, end, limit: wanted }
    const page = await read(query, first === range.first).catch((error: unknown) => {
      if (wanted === 1 || !(error instanceof AnswerTooLong)) throw error
      entries = Math.ceil(wanted / SHRINKING)
    })
    if (page === undefined) continue
    const last = page.entries.at(-1)
    // The rest was deleted by hand: only a list without plants has an empty chunk.
    if (!last && first !== range.first) return undefined
    const cutAt = last && page.more ? wire.idOf(last.key) : undefined
    const plants = wire.plantsOf(page.entries, end)
    yield { json: JSON.stringify(plants), count: plants.length, cutAt }
    if (!last || !page.more) return undefined
    left -= plants.length
    first = wire.nextKey(last.key)
    const { length } = JSON.stringify(page)
    const fitting = Math.floor((RANGE_CHARS / length) * page.entries.length)
    entries = Math.max(1, Math.min(entries * GROWTH, fitting))
  }
  return undefined
}
