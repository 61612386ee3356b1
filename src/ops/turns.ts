/** What waits, by owner. Owners take turns; what waits of one owner keeps its order. */
export class Turns<T> {
  readonly #byOwner = new Map<string, T[]>()
  /**
   * A new iterator each time would pass the places of all owners that were removed. This one never
   * ends: it is asked only while an owner waits, and the owners that it has passed are after it.
   */
  readonly #owners = this.#byOwner.keys()
  /** The owner whose turn it is, once that is known. */
  #owner: string | undefined
  #count = 0

  get count(): number {
    return this.#count
  }

  countOf(owner: string): number {
    return this.#byOwner.get(owner)?.length ?? 0
  }

  add(owner: string, item: T): void {
    const items = this.#byOwner.get(owner)
    if (items) items.push(item)
    else this.#byOwner.set(owner, [item])
    this.#count += 1
  }

  /** What `take` would take. */
  get first(): T | undefined {
    if (this.#count > 0) this.#owner ??= this.#owners.next().value
    return this.#byOwner.get(this.#owner ?? '')?.[0]
  }

  /** Takes what is next; undefined if nothing waits. */
  take(): T | undefined {
    const { first } = this
    const owner = this.#owner
    if (owner === undefined) return undefined
    const items = this.#byOwner.get(owner) ?? []
    items.shift()
    // Deleted and set again, the owner is last.
    this.#byOwner.delete(owner)
    if (items.length > 0) this.#byOwner.set(owner, items)
    this.#owner = undefined
    this.#count -= 1
    return first
  }
}
