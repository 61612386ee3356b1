/** What waits, by owner. Owners take turns; what waits of one owner keeps its order. */
export class Turns<T> {
  readonly #byOwner = new Map<string, T[]>()
  /**
   * One iterator for the life of the map. A map leaves a hole for each owner that was removed, and
   * a new iterator would step over all holes. All owners who wait are after it. It is asked only
   * while one waits: once it has returned its end, it finds no later owner.
   */
  readonly #turns = this.#byOwner.entries()
  /** The owner whose turn it is, and what waits of it, once that is known. */
  #turn: readonly [owner: string, items: T[]] | undefined
  #count = 0

  get count(): number {
    return this.#count
  }

  add(owner: string, item: T): void {
    const items = this.#byOwner.get(owner)
    if (items) items.push(item)
    else this.#byOwner.set(owner, [item])
    this.#count += 1
  }

  /** What `shift` would return. */
  get first(): T | undefined {
    if (this.#count > 0) this.#turn ??= this.#turns.next().value
    return this.#turn?.[1][0]
  }

  /** Removes what is next, and returns it; undefined if nothing waits. */
  shift(): T | undefined {
    const { first } = this
    if (!this.#turn) return undefined
    const [owner, items] = this.#turn
    items.shift()
    // Deleted and set again, the owner is last.
    this.#byOwner.delete(owner)
    if (items.length > 0) this.#byOwner.set(owner, items)
    this.#turn = undefined
    this.#count -= 1
    return first
  }
}
