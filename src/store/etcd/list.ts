/** Lists of plants, read from etcd range by range. */
import type { PlantList } from '../../plants/store.ts'
import { AnswerTooLong } from './gateway.ts'
import * as wire from './wire.ts'

/** The first range serves the usual limits. The size of the plants is not known yet. */
const FIRST_ENTRIES = 32
/** The length of an answer that later ranges aim at, by the size of the plants before. */
const RANGE_CHARS = 512 * 1024
const GROWTH = 4
const SHRINKING = 8
/** Of a page. One plant may be longer. */
const PAGE_MAX_CHARS = 8 * 1024 * 1024

type Call = (request: wire.EtcdRequest) => Promise<unknown>

/** Some plants of a list, ascending by id. */
export interface Chunk {
  /** A JSON array. */
  readonly json: string
  /** The id of the last plant, if more follow in etcd. */
  readonly cutAt: bigint | undefined
}

/**
 * At most `limit` plants of a range; at least one chunk. Each chunk has what is in etcd when it is
 * read.
 * @throws what the call throws; Error if etcd holds something else than plants
 */
export async function* readChunks(
  call: Call,
  range: wire.KeyRange,
  limit: number,
): AsyncGenerator<Chunk, undefined> {
  const { end } = range
  let { first } = range
  let entries = FIRST_ENTRIES
  // To etcd a limit of 0 means all.
  if (limit === 0) yield { json: '[]', cutAt: undefined }
  for (let left = limit; left > 0; ) {
    const wanted = Math.min(left, entries)
    const body = await call(wire.rangeRequest({ first, end }, wanted)).catch((error: unknown) => {
      if (wanted === 1 || !(error instanceof AnswerTooLong)) throw error
      entries = Math.ceil(wanted / SHRINKING)
    })
    if (body === undefined) continue
    const page = wire.readPage(body)
    const last = page.entries.at(-1)
    const cutAt = last && page.more ? wire.idOf(last.key) : undefined
    yield { json: JSON.stringify(wire.plantsOf(page.entries, end)), cutAt }
    if (!last || !page.more) return
    left -= page.entries.length
    first = wire.nextKey(last.key)
    const { length } = JSON.stringify(page)
    const fitting = Math.floor((RANGE_CHARS / length) * page.entries.length)
    entries = Math.max(1, Math.min(entries * GROWTH, fitting))
  }
}

/** @param cutAt of the page that `first` is, if it is a page */
function listOf(first: Chunk, chunks: AsyncIterator<Chunk, undefined>, cutAt?: bigint): PlantList {
  let text: string | undefined = first.json
  let isRead = first.cutAt === undefined
  return {
    cutAt,
    get ended() {
      return isRead && text === undefined
    },
    async next() {
      const held = text
      text = undefined
      if (isRead || held !== undefined) return held
      const { value } = await chunks.next()
      isRead = value?.cutAt === undefined
      return value?.json
    },
    close() {
      isRead = true
      text = undefined
    },
  }
}

/** A page with a limit is read whole, because its Link names its last plant. */
export async function openList(
  chunks: AsyncGenerator<Chunk, undefined>,
  isPage: boolean,
): Promise<PlantList> {
  let { value: list = { json: '[]', cutAt: undefined } } = await chunks.next()
  if (!isPage) return listOf(list, chunks)
  for await (const { json, cutAt } of chunks) {
    if (list.json.length + json.length > PAGE_MAX_CHARS) break
    list = { json: `${list.json.slice(0, -1)},${json.slice(1)}`, cutAt }
  }
  return listOf({ json: list.json, cutAt: undefined }, chunks, list.cutAt)
}
