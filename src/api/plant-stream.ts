/* A list that is made while its client reads it. */

import { type BodyStream, SHORT_MAX_BYTES } from '../http/response.ts'
import { type Hold, overloaded } from '../limits/budget.ts'
import type { PlantList } from '../plants/store.ts'
import type { Call } from './call.ts'

const COMMA = 0x2c
const EMPTY_LIST_BYTES = '[]'.length

/**
 * A list as one JSON array. One chunk at a time is in memory: each is made when the one before it
 * has been taken, and once it is the owner's turn. What is above the length that each connection
 * may hold is reserved.
 */
export class PlantStream implements BodyStream {
  readonly #list: PlantList
  readonly #call: Call
  readonly #hold: Hold
  #first: Buffer | undefined
  #isClosed = false

  /** @throws HttpError `overloaded` if there is no room for the first chunk. */
  constructor(list: PlantList, first: string, call: Call) {
    this.#list = list
    this.#call = call
    this.#first = Buffer.from(first)
    this.#hold = call.options.responses.reserve(call.owner, this.#excessOf(this.#first))
  }

  close(): void {
    if (!this.#isClosed) this.#list.close()
    this.#isClosed = true
    this.#first = undefined
    this.#hold.set(0)
  }

  /**
   * Each chunk is an array. All but the first begin with "," in place of "[", and each is sent
   * without its "]", which comes once, at the end.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer, void, undefined> {
    let hasBegun = false
    let chunk = this.#first
    this.#first = undefined
    while (chunk !== undefined) {
      if (chunk.length > EMPTY_LIST_BYTES) {
        if (hasBegun) chunk[0] = COMMA
        hasBegun = true
        yield chunk.subarray(0, -1)
      }
      // It is free while the next one waits for its turn.
      chunk = undefined
      chunk = await this.#next()
    }
    yield Buffer.from(hasBegun ? ']' : '[]')
  }

  /** @throws HttpError `overloaded` if there is no room: the list cannot go on. */
  async #next(): Promise<Buffer | undefined> {
    const { owner, options } = this.#call
    this.#hold.set(0)
    const next = () => (this.#isClosed ? undefined : this.#list.next())
    const json = await options.queue.run(owner, next)
    if (json === undefined || this.#isClosed) return undefined
    const chunk = Buffer.from(json)
    if (!this.#hold.grow(this.#excessOf(chunk))) throw overloaded()
    return chunk
  }

  #excessOf(chunk: Buffer): number {
    return Math.max(0, chunk.length + (this.#list.heldBytes ?? 0) - SHORT_MAX_BYTES)
  }
}
