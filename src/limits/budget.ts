/* Bounds what the requests of owners hold: bytes of memory, or places in a queue. */

/** There is no room now: to be tried again. The message, if any, says for what. */
export class Overloaded extends Error {}
Overloaded.prototype.name = 'Overloaded'

/** What one request holds of a budget. To release it, set it to 0. */
export interface Hold {
  /** Holds this much from now on. False, and nothing changes, if there is no room for more. */
  set(amount: number): boolean
  /** Holds at least this much. False, and nothing changes, if there is no room for it. */
  grow(amount: number): boolean
}

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
    let own = 0
    const set = (wanted: number): boolean => {
      const hasRoom = this.#change(owner, wanted - own)
      if (hasRoom) own = wanted
      return hasRoom
    }
    const grow = (wanted: number): boolean => wanted <= own || set(wanted)
    if (!grow(amount)) throw new Overloaded(what)
    return { set, grow }
  }

  /** False, and nothing changes, if the owner would hold more than is then left free. */
  #change(owner: string, amount: number): boolean {
    const ofOwner = (this.#byOwner.get(owner) ?? 0) + amount
    const held = this.#held + amount
    if (amount > 0 && ofOwner > this.#max - held) return false
    this.#held = held
    if (ofOwner === 0) this.#byOwner.delete(owner)
    else this.#byOwner.set(owner, ofOwner)
    return true
  }
}
