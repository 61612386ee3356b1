/* What an operation gets, how it does work that takes long, and what bounds its memory. */

import { ClientGone } from '../errors.ts'
import type { Exchange } from '../http/exchange.ts'
import { type HttpResponse, lengthOf, SHORT_MAX_BYTES } from '../http/response.ts'
import type { Budget } from '../limits/budget.ts'
import type { FairQueue } from '../limits/fair-queue.ts'
import type { PlantStore } from '../plants/store.ts'
import type { PageCache } from './page-cache.ts'

/** What operations work with. */
export interface OperationOptions {
  /** @throws StoreUnavailable while the store is not open. */
  readonly store: () => PlantStore
  readonly pageCache: PageCache
  /** Runs work that may take a millisecond or more; owners take turns. */
  readonly queue: FairQueue
  /** For each body, from its announcement until its plant is stored and its response is sent. */
  readonly bodies: Budget
  /** For pages above 64 KiB, and what a part of a longer list has above that. */
  readonly responses: Budget
  readonly maxBodyBytes: number
}

/** A request of an owner who may make it. */
export interface Call {
  readonly exchange: Exchange
  readonly owner: string
  /** What the path has in place of each "{name}" of its pattern. */
  readonly parameters: readonly string[]
  /** The query without "?", as the client sent it. */
  readonly query: string
  readonly options: OperationOptions
}

/** Does work that may take long, once it is the owner's turn. @throws ClientGone */
export function inTurn<T>(call: Call, work: () => T | Promise<T>): T | Promise<T> {
  return call.options.queue.run(call.owner, () => {
    if (call.exchange.req.socket.destroyed) throw new ClientGone()
    return work()
  })
}

/**
 * Reserves a response with plants until it is sent. Each connection may hold a short one.
 * @throws Overloaded without room.
 */
export function reserved({ exchange, owner, options }: Call, response: HttpResponse): HttpResponse {
  const bytes = lengthOf(response.body) ?? 0
  if (bytes <= SHORT_MAX_BYTES || exchange.req.method === 'HEAD') return response
  const hold = options.responses.reserve(owner, bytes)
  exchange.whenDone(() => hold.set(0))
  return response
}
