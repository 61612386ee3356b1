interface Turn<T> {
  readonly owner: string
  readonly items: T[]
  /** What its items have cost since its place in the round came. */
  used: number
  isEarly: boolean
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
  readonly #early: Turn<T>[] = []
  readonly #round: Turn<T>[] = []
  readonly #byOwner = new Map<string, Turn<T>>()
  #last: Turn<T> | undefined
  #count = 0

  /** Without a quantum each turn is one item. */
  constructor(quantum = 0) {
    this.#quantum = quantum
  }

  get count(): number {
    return this.#count
  }

  add(owner: string, item: T): void {
    const turn = this.#byOwner.get(owner) ?? { owner, items: [], used: 0, isEarly: false }
    if (!this.#byOwner.has(owner)) this.#round.push(turn)
    this.#byOwner.set(owner, turn)
    turn.items.push(item)
    this.#count += 1
    this.#letGoFirst(turn)
  }

  /** What `shift` would return. */
  get first(): T | undefined {
    return this.#next()?.items[0]
  }

  /** Removes what is next, and returns it; undefined if nothing waits. */
  shift(): T | undefined {
    const turn = this.#next()
    if (!turn) return undefined
    if (turn.isEarly) this.#early.shift()
    else {
      turn.used = 0
      this.#round.shift()
      this.#round.push(turn)
    }
    turn.isEarly = false
    this.#last = turn
    this.#count -= 1
    const item = turn.items.shift()
    if (this.#count === 0) this.#endRound()
    return item
  }

  /** Says what the item that `shift` returned last has cost. */
  charge(cost: number): void {
    if (!this.#last) return
    this.#last.used += cost
    if (this.#last.items.length > 0) this.#letGoFirst(this.#last)
  }

  #letGoFirst(turn: Turn<T>): void {
    if (turn.isEarly || turn.used >= this.#quantum) return
    turn.isEarly = true
    this.#early.push(turn)
  }

  #next(): Turn<T> | undefined {
    // An early turn has items: it leaves this list with each of them.
    if (this.#early.length > 0) return this.#early[0]
    while (this.#round[0]?.items.length === 0)
      this.#byOwner.delete(this.#round.shift()?.owner ?? '')
    return this.#round[0]
  }

  /** Nothing waits, so no owner is before another. */
  #endRound(): void {
    this.#byOwner.clear()
    this.#round.length = 0
    this.#last = undefined
  }
}
