/* Bounds what the requests of owners hold: bytes of memory, or places in a queue. */

/** There is no room now: to be tried again. The message, if any, says for what. */
export class Overloaded extends Error {}

/** What one request holds of a budget. To release it, set it to 0. */
export interface Hold {
  /** Holds this much from now on. False, and nothing changes, if there is no room for more. */
  set(amount: number): boolean
}

/** All owners together hold at most `max`, and one of them at most half of what is free. */
export class Budget {
  readonly #max: number
  readonly #byOwner = new Map<string, number>()
  /** By all owners. */
  held = 0

  constructor(max: number) {
    this.#max = max
  }

  /** @throws Overloaded if there is no room. */
  reserve(owner: string, amount: number, what?: string): Hold {
    let own = 0
    const set = (wanted: number): boolean => {
      const ofOwner = (this.#byOwner.get(owner) ?? 0) + wanted - own
      const held = this.held + wanted - own
      if (wanted > own && ofOwner > this.#max - held) return false
      this.held = held
      if (ofOwner === 0) this.#byOwner.delete(owner)
      else this.#byOwner.set(owner, ofOwner)
      own = wanted
      return true
    }
    if (!set(amount)) throw new Overloaded(what)
    return { set }
  }
}
