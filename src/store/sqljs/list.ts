import type { FairQueue } from '../../ops/fair-queue.ts'
import type { PlantList, RangeOf } from '../../plants/store.ts'
import { ALL_IDS, type Chunk, type ListQueries, type View } from './list-queries.ts'

/**
 * A chunk ends after this many rows or bytes: any list takes constant memory and short ticks. With
 * the plant that reaches the bytes, a chunk of short plants is no longer than a piece of 64 KiB.
 */
const CHUNK_ROWS = 1000
const CHUNK_BYTES = 60 * 1024
/** Rows that one piece of work counts: 1 ms. */
const COUNT_ROWS = 5_000

/**
 * Opens a list of an owner's plants as of a sequence. It is ready at once unless its limit is
 * beyond the first chunk, or rows of a later batch follow: the response's headers say whether and
 * where the list is cut, so its plants are counted first, a piece of work at a time.
 */
export function listAsOf(
  queries: ListQueries,
  queue: FairQueue,
  owner: string,
  { after, limit }: RangeOf<'after' | 'limit'>,
  asOf: number,
): PlantList | Promise<PlantList> {
  if (limit === 0 || after === ALL_IDS.to) return chunkedList(queries, undefined, undefined)
  const from = after === undefined ? ALL_IDS.from : after + 1n
  const view: View = { owner, from, to: ALL_IDS.to, asOf }
  const first = queries.chunk(view, Math.min(limit ?? CHUNK_ROWS, CHUNK_ROWS), CHUNK_BYTES)
  const { cutAt, plants, isNextShown } = first
  if (cutAt === undefined || limit === undefined)
    return chunkedList(queries, first, restOf(view, cutAt))
  if (plants === limit && isNextShown) return chunkedList(queries, first, undefined, cutAt)
  // The first chunk is dropped, and read again after the count: no budget counts lists that wait.
  return findCut({ queries, queue, view }, cutAt, limit - plants).then((last) =>
    chunkedList(queries, undefined, { ...view, to: last ?? view.to }, last),
  )
}

function restOf(view: View, cutAt: bigint | undefined): View | undefined {
  return cutAt === undefined || cutAt >= view.to ? undefined : { ...view, from: cutAt + 1n }
}

/** What a search passes, and how. */
interface Search {
  readonly queries: ListQueries
  readonly queue: FairQueue
  readonly view: View
}

/** The id of the `plants`-th plant after `start`; undefined if none follows it in the view. */
async function findCut(search: Search, start: bigint, plants: number): Promise<bigint | undefined> {
  const last = await skipPlants(search, start, plants)
  if (last === undefined) return undefined
  return (await skipPlants(search, last, 1)) === undefined ? undefined : last
}

/** The id of the `plants`-th plant after `start`, found a piece at a time; undefined if none is. */
async function skipPlants(
  { queries, queue, view }: Search,
  start: bigint,
  plants: number,
): Promise<bigint | undefined> {
  let skipped: { readonly at: bigint | undefined; readonly left: number } = {
    at: start,
    left: plants,
  }
  while (skipped.left > 0) {
    const rest: View | undefined = restOf(view, skipped.at)
    if (!rest) return undefined
    const { left } = skipped
    skipped = await queue.run(view.owner, () => queries.skip(rest, left, COUNT_ROWS))
  }
  return skipped.at
}

/** Reads each chunk when it is asked for. Between two chunks the list keeps only its position. */
function chunkedList(
  queries: ListQueries,
  first: Chunk | undefined,
  rest: View | undefined,
  cutAt?: bigint,
): PlantList {
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
      const chunk = queries.chunk(rest, CHUNK_ROWS, CHUNK_BYTES)
      rest = restOf(rest, chunk.cutAt)
      return chunk.json
    },
    close() {
      first = undefined
      rest = undefined
    },
  }
}
