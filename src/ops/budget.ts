import { HttpError } from '../errors.ts'

/** The memory that one request holds. */
export interface Hold {
  /** Sets how many bytes it holds from now on, with or without room; 0 releases them. */
  set(bytes: number): void
  /** Holds at least this many bytes. False, and nothing changes, if there is no room for them. */
  grow(bytes: number): boolean
}

/** Bounds the memory that all requests hold for one purpose: their bodies, or their responses. */
export class MemoryBudget {
  readonly #maxBytes: number
  #heldBytes = 0
  readonly #byOwner = new Map<string, number>()
  /** The owners of whom a request holds more than there was room for. */
  readonly #exceeding = new Set<string>()

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  get heldBytes(): number {
    return this.#heldBytes
  }

  /**
   * True if, after taking these bytes, the owner holds at most as much as is left free. So a single
   * owner can hold half of the budget.
   */
  hasRoom(owner: string, bytes = 0): boolean {
    return (this.#byOwner.get(owner) ?? 0) + bytes <= this.#maxBytes - this.#heldBytes - bytes
  }

  /**
   * Lets one request of an owner at a time hold more than there is room for, unless all owners
   * together hold more than the budget. If this returns true, call `endExceeding` afterwards.
   */
  beginExceeding(owner: string): boolean {
    if (this.#heldBytes > this.#maxBytes || this.#exceeding.has(owner)) return false
    this.#exceeding.add(owner)
    return true
  }

  endExceeding(owner: string): void {
    this.#exceeding.delete(owner)
  }

  /** @throws HttpError `overloaded` if there is no room. */
  reserve(owner: string, bytes: number): Hold {
    if (!this.hasRoom(owner, bytes)) throw overloaded()
    return this.hold(owner, bytes)
  }

  /** Counts bytes that are already in memory, with or without room for them. */
  hold(owner: string, bytes: number): Hold {
    let held = 0
    const set = (needed: number): void => {
      this.#add(owner, needed - held)
      held = needed
    }
    const grow = (needed: number): boolean => {
      if (needed <= held) return true
      if (!this.hasRoom(owner, needed - held)) return false
      set(needed)
      return true
    }
    set(bytes)
    return { set, grow }
  }

  #add(owner: string, bytes: number): void {
    if (bytes === 0) return
    const ofOwner = (this.#byOwner.get(owner) ?? 0) + bytes
    this.#heldBytes += bytes
    if (ofOwner === 0) this.#byOwner.delete(owner)
    else this.#byOwner.set(owner, ofOwner)
  }
}

export function overloaded(cause?: string): HttpError {
  return new HttpError('overloaded', ['Retry-After', '1'], cause)
}
