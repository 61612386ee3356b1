import type { FairQueue } from '../../ops/fair-queue.ts'
import type { PlantList, PlantRange } from '../../plants/store.ts'
import { ALL_IDS, type Chunk, type PlantDatabase, type View } from './database.ts'

/**
 * A chunk ends after so many rows or so many bytes: a list of any length takes constant memory and
 * short ticks.
 */
const CHUNK_ROWS = 1000
const CHUNK_BYTES = 96 * 1024
/** Rows that one piece of work counts: 1 ms. */
const COUNT_ROWS = 5_000

/**
 * Lists an owner's plants as of a sequence. Only a list whose limit is beyond its first chunk comes
 * later: its first bytes say where it is cut, so the plants up to there are counted first, a piece
 * of work at a time.
 */
export function listPlants(
  database: PlantDatabase,
  queue: FairQueue,
  owner: string,
  { after, limit }: PlantRange,
  asOf: number,
): PlantList | Promise<PlantList> {
  if (limit === 0 || after === ALL_IDS.to) return new ChunkedList(database, undefined, undefined)
  const view: View = {
    owner,
    from: after === undefined ? ALL_IDS.from : after + 1n,
    to: ALL_IDS.to,
    asOf,
  }
  const first = database.chunk(view, Math.min(limit ?? CHUNK_ROWS, CHUNK_ROWS), CHUNK_BYTES)
  const { cutAt, plants } = first
  if (cutAt === undefined || limit === undefined)
    return new ChunkedList(database, first, restOf(view, cutAt))
  if (plants === limit) return new ChunkedList(database, first, undefined, cutAt)
  // The first chunk is made again after the count: kept meanwhile, it would be memory that nothing
  // bounds.
  return cutByLimit(database, queue, view, cutAt, limit - plants).then(
    (last) => new ChunkedList(database, undefined, { ...view, to: last ?? view.to }, last),
  )
}

function restOf(view: View, cutAt: bigint | undefined): View | undefined {
  return cutAt === undefined || cutAt >= view.to ? undefined : { ...view, from: cutAt + 1n }
}

/** The id of the `plants`-th plant after `cutAt`, where more follow it in the view. */
async function cutByLimit(
  database: PlantDatabase,
  queue: FairQueue,
  view: View,
  cutAt: bigint,
  plants: number,
): Promise<bigint | undefined> {
  let [at, left] = [cutAt, plants]
  while (left > 0) {
    const rest: View | undefined = restOf(view, at)
    const passed =
      rest && (await queue.run(view.owner, () => database.pass(rest, left, COUNT_ROWS)))
    if (passed?.at === undefined) return undefined
    ;({ at, left } = { at: passed.at, left: passed.left })
  }
  const rest = restOf(view, at)
  return rest && database.hasPlant(rest) ? at : undefined
}

/**
 * A list that is read from the database as its reader takes it. It keeps nothing between two chunks
 * but where it is.
 */
class ChunkedList implements PlantList {
  readonly cutAt: bigint | undefined
  readonly #database: PlantDatabase
  #first: Chunk | undefined
  #rest: View | undefined

  constructor(
    database: PlantDatabase,
    first: Chunk | undefined,
    rest: View | undefined,
    cutAt?: bigint,
  ) {
    this.#database = database
    this.#first = first
    this.#rest = rest
    this.cutAt = cutAt
  }

  get ended(): boolean {
    return this.#first === undefined && this.#rest === undefined
  }

  next(): Buffer | undefined {
    const first = this.#first
    this.#first = undefined
    if (first) return first.json
    const view = this.#rest
    if (!view) return undefined
    const { json, cutAt } = this.#database.chunk(view, CHUNK_ROWS, CHUNK_BYTES)
    this.#rest = cutAt === undefined ? undefined : restOf(view, cutAt)
    return json
  }

  close(): void {
    this.#first = undefined
    this.#rest = undefined
  }
}
