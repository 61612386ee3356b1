/* A list that is made while its client reads it. */

import { type BodyStream, SHORT_MAX_BYTES } from '../http/response.ts'
import { type Hold, overloaded } from '../limits/budget.ts'
import type { PlantList } from '../plants/store.ts'
import type { Call } from './call.ts'

const COMMA = 0x2c

/**
 * A chunk's array as a part of a longer one: without its "]", and after the first one with ","
 * in place of "[".
 */
export function pieceOf(json: string, hasBegun: boolean): Buffer {
  const bytes = Buffer.from(json)
  if (hasBegun) bytes[0] = COMMA
  return bytes.subarray(0, -1)
}

/**
 * A list of several chunks as one JSON array. One chunk at a time is in memory: each is made when
 * the one before it has been taken, and once it is the owner's turn. What is above the length that
 * each connection may hold is reserved.
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
    this.#first = pieceOf(first, false)
    this.#hold = call.options.responses.reserve(call.owner, excessOf(this.#first))
  }

  close(): void {
    this.#isClosed = true
    this.#first = undefined
    this.#hold.set(0)
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer, void, undefined> {
    let text = this.#first
    this.#first = undefined
    while (text !== undefined) {
      yield text
      // It is free while the next one waits for its turn.
      text = undefined
      text = await this.#next()
    }
    yield Buffer.from(']')
  }

  /** @throws HttpError `overloaded` if there is no room: the list cannot go on. */
  async #next(): Promise<Buffer | undefined> {
    const { owner, options } = this.#call
    this.#hold.set(0)
    const next = () => (this.#isClosed ? undefined : this.#list.next())
    const chunk = (await options.queue.run(owner, next))?.value
    if (chunk === undefined || this.#isClosed) return undefined
    const text = pieceOf(chunk.json, true)
    if (!this.#hold.grow(excessOf(text))) throw overloaded()
    return text
  }
}

function excessOf(text: Buffer): number {
  return Math.max(0, text.length - SHORT_MAX_BYTES)
}
