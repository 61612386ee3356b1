/* Bounds what the requests of owners hold: bytes of memory, or places in a queue. */

import { HttpError } from '../errors.ts'

/** All owners together hold at most `max`, and one of them at most half of what is free. */
export class Budget {
  readonly #max: number
  #held = 0
  readonly #byOwner = new Map<string, number>()

  constructor(max: number) {
    this.#max = max
  }

  get held(): number {
    return this.#held
  }

  /** @throws HttpError `overloaded` if there is no room. */
  reserve(owner: string, amount: number, cause?: string): Hold {
    const hold = new Hold(this, owner)
    if (!hold.grow(amount)) throw overloaded(cause)
    return hold
  }

  /** True if the owner then holds at most as much as is left free. */
  hasRoom(owner: string, amount: number): boolean {
    return (this.#byOwner.get(owner) ?? 0) + amount <= this.#max - this.#held - amount
  }

  /** For a `Hold` alone: what the owner holds changes by this much. */
  change(owner: string, amount: number): void {
    const ofOwner = (this.#byOwner.get(owner) ?? 0) + amount
    this.#held += amount
    if (ofOwner === 0) this.#byOwner.delete(owner)
    else this.#byOwner.set(owner, ofOwner)
  }
}

/** What one request holds, until it is released. From then on it holds and reserves nothing. */
export class Hold {
  readonly #budget: Budget
  readonly #owner: string
  #amount = 0
  #isReleased = false

  constructor(budget: Budget, owner: string) {
    this.#budget = budget
    this.#owner = owner
  }

  /** Sets how much it holds from now on. */
  set(amount: number): void {
    if (this.#isReleased) return
    this.#budget.change(this.#owner, amount - this.#amount)
    this.#amount = amount
  }

  /** Holds at least this much. False, and nothing changes, if there is no room for it. */
  grow(amount: number): boolean {
    if (amount <= this.#amount) return true
    if (this.#isReleased || !this.#budget.hasRoom(this.#owner, amount - this.#amount)) return false
    this.set(amount)
    return true
  }

  release(): void {
    this.set(0)
    this.#isReleased = true
  }
}

export function overloaded(cause?: string): HttpError {
  return new HttpError('overloaded', ['Retry-After', '1'], cause)
}
