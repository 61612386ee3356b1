/** Reads the first ranges of lists: what waits when a tick ends shares transactions. */
import { AnswerTooLong, EtcdRefusal } from './gateway.ts'
import type { RangeQuery, RangePart } from './wire.ts'

/** Eight ranges of 32 plants fit into an answer of 4 MiB if these have 12 KiB each. */
const SHARED_MAX = 8

/** A range, and when its list must have an answer. */
export type TimedQuery = RangeQuery & { readonly deadline: number }
type Waiting = TimedQuery & { readonly resolve: (part: RangePart | Promise<RangePart>) => void }
type ReadRanges = (queries: readonly TimedQuery[]) => Promise<readonly RangePart[]>

/** A call costs etcd more than reading twenty plants: shared, twice as many lists are read. */
export class SharedRanges {
  readonly #read: ReadRanges
  readonly #waiting: Waiting[] = []

  /** @param read resolves with a part for each query */
  constructor(read: ReadRanges) {
    this.#read = read
  }

  /** @throws what the last call with this query throws */
  read(query: TimedQuery, isShared: boolean): Promise<RangePart> {
    return new Promise((resolve) => {
      const waiting = { ...query, resolve }
      if (!isShared) void this.#answer([waiting])
      else if (this.#waiting.push(waiting) === 1) setImmediate(() => this.#start())
    })
  }

  #start(): void {
    while (this.#waiting.length > 0) void this.#answer(this.#waiting.splice(0, SHARED_MAX))
  }

  /** Never rejects. */
  async #answer(batch: readonly Waiting[]): Promise<void> {
    try {
      const parts = await this.#read(batch)
      if (parts.length !== batch.length) throw new Error('etcd has not answered every range')
      for (const [at, part] of parts.entries()) batch[at]?.resolve(part)
    } catch (error) {
      // One range may be the cause.
      const isOfOne = error instanceof AnswerTooLong || error instanceof EtcdRefusal
      if (batch.length > 1 && isOfOne) for (const each of batch) void this.#answer([each])
      else for (const { resolve } of batch) resolve(Promise.reject(error))
    }
  }
}
