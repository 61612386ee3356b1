/* Bounds the memory that requests of owners hold: their bodies, or their responses. */

import { HttpError } from '../errors.ts'

/** All owners together hold at most `maxBytes`, and one of them at most half of what is free. */
export class MemoryBudget {
  readonly #maxBytes: number
  #heldBytes = 0
  readonly #byOwner = new Map<string, number>()

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  get heldBytes(): number {
    return this.#heldBytes
  }

  /** @throws HttpError `overloaded` if there is no room. */
  reserve(owner: string, bytes: number): Hold {
    const hold = new Hold(this, owner)
    if (!hold.grow(bytes)) throw overloaded()
    return hold
  }

  /** True if the owner then holds at most as much as is left free. */
  hasRoom(owner: string, bytes: number): boolean {
    return (this.#byOwner.get(owner) ?? 0) + bytes <= this.#maxBytes - this.#heldBytes - bytes
  }

  /** For a `Hold` alone: what the owner holds changes by this many bytes. */
  change(owner: string, bytes: number): void {
    const ofOwner = (this.#byOwner.get(owner) ?? 0) + bytes
    this.#heldBytes += bytes
    if (ofOwner === 0) this.#byOwner.delete(owner)
    else this.#byOwner.set(owner, ofOwner)
  }
}

/** The memory that one request holds. */
export class Hold {
  readonly #budget: MemoryBudget
  readonly #owner: string
  #bytes = 0

  constructor(budget: MemoryBudget, owner: string) {
    this.#budget = budget
    this.#owner = owner
  }

  /** Sets how many bytes it holds from now on; 0 releases them. */
  set(bytes: number): void {
    this.#budget.change(this.#owner, bytes - this.#bytes)
    this.#bytes = bytes
  }

  /** Holds at least this many bytes. False, and nothing changes, if there is no room for them. */
  grow(bytes: number): boolean {
    if (bytes <= this.#bytes) return true
    if (!this.#budget.hasRoom(this.#owner, bytes - this.#bytes)) return false
    this.set(bytes)
    return true
  }
}

export function overloaded(cause?: string): HttpError {
  return new HttpError('overloaded', ['Retry-After', '1'], cause)
}
