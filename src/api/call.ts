import { ClientGone } from '../errors.ts'
import type { Exchange } from '../http/exchange.ts'
import { type MemoryBudget, overloaded } from '../ops/budget.ts'
import type { FairQueue } from '../ops/fair-queue.ts'
import type { PlantStore } from '../plants/store.ts'
import type { PageCache } from './page-cache.ts'

/** What operations work with. */
export interface OperationOptions {
  readonly store: { readonly current: PlantStore }
  readonly pages: PageCache
  /** Runs work that may take a millisecond or more; owners take turns. */
  readonly queue: FairQueue
  /** Memory for bodies that are read, and for creates that wait. */
  readonly bodies: MemoryBudget
  /** Memory for responses that clients have not read yet. */
  readonly answers: MemoryBudget
  readonly maxBodyBytes: number
}

/** A request of an owner who may make it, and its admission to memory and time. */
export class Call {
  readonly exchange: Exchange
  readonly owner: string
  /** What the path has in the place of each "{name}" of its pattern. */
  readonly parameters: readonly string[]
  /** The query without "?", as the client sent it. */
  readonly query: string
  readonly #queue: FairQueue
  readonly #answers: MemoryBudget

  /** @throws HttpError `overloaded` if the owner's clients leave too many responses unread. */
  constructor(
    exchange: Exchange,
    owner: string,
    { parameters, query }: Pick<Call, 'parameters' | 'query'>,
    options: OperationOptions,
  ) {
    this.exchange = exchange
    this.owner = owner
    this.parameters = parameters
    this.query = query
    this.#queue = options.queue
    this.#answers = options.answers
    this.#checkRoom()
  }

  /**
   * Does work that may take long, once it is the owner's turn.
   * @throws ClientGone, HttpError `overloaded`: both may have changed meanwhile.
   */
  turn<T>(work: () => T | Promise<T>): T | Promise<T> {
    return this.#queue.run(this.owner, () => {
      if (this.exchange.req.socket.destroyed) throw new ClientGone()
      this.#checkRoom()
      return work()
    })
  }

  #checkRoom(): void {
    if (!this.#answers.hasRoom(this.owner)) throw overloaded()
  }
}
