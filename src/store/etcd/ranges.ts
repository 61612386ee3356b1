/** Lists of plants, read from etcd range by range. First ranges share calls. */
import type { PlantChunk } from '../../plants/store.ts'
import { ResponseTooLong, EtcdRefusal } from './gateway.ts'
import * as wire from './wire.ts'
import type { EtcdResponse } from './wire.ts'

/** The first range serves the usual limits. The size of the plants is not known yet. */
const FIRST_ENTRIES = 32
/** Eight ranges of 32 plants fit into an answer of 4 MiB if these have 12 KiB each. */
const SHARED_MAX = 8
/** The length of an answer that later ranges aim at, by the size of the plants before. */
const RANGE_CHARS = 512 * 1024
const GROWTH = 4
const SHRINKING = 8

/** A range, and when its list must have an answer. */
type TimedQuery = wire.RangeQuery & { readonly deadline: number }
type Part = EtcdResponse | Promise<EtcdResponse>
type Waiting = TimedQuery & { readonly resolve: (part: Part) => void }

/**
 * At most `limit` plants of a range; at least one chunk. Each chunk has what is in etcd when it is
 * read. Between two chunks only the position is kept: a generator would keep the last range too.
 * `next` throws what `read` throws, and Error if etcd holds something else than plants.
 */
export function readChunks(
  read: (query: wire.RangeQuery, isFirst: boolean) => Promise<EtcdResponse>,
  { own, first: begin, end }: wire.OwnRange,
  limit: number,
): AsyncIterator<PlantChunk, undefined> {
  let [first, entries, left, isOver] = [begin, FIRST_ENTRIES, limit, false]
  const next = async (): Promise<IteratorResult<PlantChunk, undefined>> => {
    if (isOver) return { done: true, value: undefined }
    const wanted = Math.min(left, entries)
    const query = { first, end, limit: wanted }
    // To etcd a limit of 0 means all.
    const reading = wanted === 0 ? Promise.resolve<EtcdResponse>({}) : read(query, first === begin)
    const found = await reading.catch((error: unknown) => {
      if (wanted === 1 || !(error instanceof ResponseTooLong)) throw error
      entries = Math.ceil(wanted / SHRINKING)
    })
    if (found === undefined) return next()
    const { kvs = [], more = false } = found
    const plants = kvs.map((entry) => wire.plantOf(entry, own))
    const key = kvs.at(-1)?.key
    const isCut = key !== undefined && more
    left -= plants.length
    isOver = !isCut || left === 0
    // The rest was deleted by hand: only a list without plants has an empty chunk.
    if (key === undefined && first !== begin) return { done: true, value: undefined }
    const after = isCut ? wire.idOf(key) : undefined
    const value = { json: JSON.stringify(plants), count: plants.length, next: after }
    if (!isCut || isOver) return { value }
    first = wire.nextKey(key)
    const fitting = Math.floor((RANGE_CHARS / JSON.stringify(found).length) * plants.length)
    entries = Math.max(1, Math.min(entries * GROWTH, fitting))
    return { value }
  }
  return { next }
}

/**
 * Reads a range; shared ones that wait when a tick ends share calls of `ask`. A call costs etcd
 * more than reading twenty plants: shared, twice as many lists are read.
 */
export function sharedRanges(ask: (queries: readonly TimedQuery[]) => Promise<EtcdResponse>) {
  const waiting: Waiting[] = []

  /** Never rejects. */
  const answer = async (batch: readonly Waiting[]): Promise<void> => {
    try {
      const parts = wire.partsOf(await ask(batch), batch.length)
      for (const [at, part] of parts.entries()) batch[at]?.resolve(part)
    } catch (error) {
      // One range may be the cause.
      const isOfOne = error instanceof ResponseTooLong || error instanceof EtcdRefusal
      const isRepeated = isOfOne && batch.length > 1
      for (const each of batch) each.resolve(isRepeated ? ask([each]) : Promise.reject(error))
    }
  }

  const answerWaiting = (): void => {
    while (waiting.length > 0) void answer(waiting.splice(0, SHARED_MAX))
  }

  return (query: TimedQuery, isFirst: boolean): Promise<EtcdResponse> => {
    if (!isFirst) return ask([query])
    return new Promise((resolve) => {
      if (waiting.push({ ...query, resolve }) === 1) setImmediate(answerWaiting)
    })
  }
}
