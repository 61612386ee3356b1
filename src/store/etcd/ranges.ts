/** Reads the first ranges of lists: what waits when a tick ends shares transactions. */
import { AnswerTooLong, EtcdRefusal } from './gateway.ts'
import type { Page, RangeQuery } from './wire.ts'

/** Eight ranges of 32 plants fit into an answer of 4 MiB if these have 12 KiB each. */
const SHARED_MAX = 8

/** A range, and when its list must have an answer. */
export type Query = RangeQuery & { readonly deadline: number }
type Waiting = Query & { readonly resolve: (page: Page | Promise<Page>) => void }
type Read = (queries: readonly Query[]) => Promise<readonly Page[]>

/** A call costs etcd more than reading twenty plants: shared, twice as many lists are read. */
export class SharedRanges {
  readonly #read: Read
  readonly #waiting: Waiting[] = []

  /** @param read resolves with a page for each query */
  constructor(read: Read) {
    this.#read = read
  }

  /** @throws what the last call with this query throws */
  page(query: Query, isShared: boolean): Promise<Page> {
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
      const pages = await this.#read(batch)
      if (pages.length !== batch.length) throw new Error('etcd has not answered every range')
      for (const [at, page] of pages.entries()) batch[at]?.resolve(page)
    } catch (error) {
      // One range may be the cause.
      const isOfOne = error instanceof AnswerTooLong || error instanceof EtcdRefusal
      if (batch.length > 1 && isOfOne) for (const each of batch) void this.#answer([each])
      else for (const { resolve } of batch) resolve(Promise.reject(error))
    }
  }
}
