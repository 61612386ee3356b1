/* Bounds what the requests of owners hold: bytes of memory, or places in a queue. */

/** There is no room now: to be tried again. The message, if any, says for what. */
export class Overloaded extends Error {}
Overloaded.prototype.name = 'Overloaded'

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

  /** @throws Overloaded if there is no room. */
  reserve(owner: string, amount: number, what?: string): Hold {
    const hold = new Hold(this, owner)
    if (!hold.grow(amount)) throw overloaded(what)
    return hold
  }

  /**
   * For a `Hold` alone: what the owner holds changes by this much. False, and nothing changes, if
   * it would be more than is then left free.
   */
  change(owner: string, amount: number): boolean {
    const ofOwner = (this.#byOwner.get(owner) ?? 0) + amount
    const held = this.#held + amount
    if (amount > 0 && ofOwner > this.#max - held) return false
    this.#held = held
    if (ofOwner === 0) this.#byOwner.delete(owner)
    else this.#byOwner.set(owner, ofOwner)
    return true
  }
}

/** What one request holds. To release it, set it to 0. */
export class Hold {
  readonly #budget: Budget
  readonly #owner: string
  #amount = 0

  constructor(budget: Budget, owner: string) {
    this.#budget = budget
    this.#owner = owner
  }

  /** Holds this much from now on. False, and nothing changes, if there is no room for more. */
  set(amount: number): boolean {
    const hasRoom = this.#budget.change(this.#owner, amount - this.#amount)
    if (hasRoom) this.#amount = amount
    return hasRoom
  }

  /** Holds at least this much. False, and nothing changes, if there is no room for it. */
  grow(amount: number): boolean {
    return amount <= this.#amount || this.set(amount)
  }
}

export function overloaded(what?: string): Overloaded {
  return new Overloaded(what)
}
