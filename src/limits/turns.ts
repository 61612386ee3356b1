/** What waits, by owner. Owners take turns; what waits of one owner keeps its order. */
export class Turns<T> {
  /** The owner whose turn is next comes first. */
  readonly #turns: { readonly owner: string; readonly items: T[] }[] = []
  readonly #byOwner = new Map<string, T[]>()
  #count = 0

  get count(): number {
    return this.#count
  }

  add(owner: string, item: T): void {
    const items = this.#byOwner.get(owner) ?? []
    if (items.push(item) === 1) {
      this.#byOwner.set(owner, items)
      this.#turns.push({ owner, items })
    }
    this.#count += 1
  }

  /** What `shift` would return. */
  get first(): T | undefined {
    return this.#turns[0]?.items[0]
  }

  /** Removes what is next, and returns it; undefined if nothing waits. */
  shift(): T | undefined {
    const turn = this.#turns.shift()
    if (!turn) return undefined
    const item = turn.items.shift()
    if (turn.items.length > 0) this.#turns.push(turn)
    else this.#byOwner.delete(turn.owner)
    this.#count -= 1
    return item
  }
}
