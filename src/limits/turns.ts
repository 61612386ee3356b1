/** What waits, by owner. Owners take turns; what waits of one owner keeps its order. */
export class Turns<T> {
  readonly #byOwner = new Map<string, T[]>()
  /**
   * One iterator for the life of the map. A map leaves a hole for each owner that was removed, and
   * a new iterator would step over all holes. All owners who wait are after
   * it. It is asked only while one waits: asked at the end, it would be done for ever.
   */
  readonly #owners = this.#byOwner.keys()
  /** The owner whose turn it is, once that is known. */
  #owner: string | undefined
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
    if (this.#count > 0) this.#owner ??= this.#owners.next().value
    return this.#byOwner.get(this.#owner ?? '')?.[0]
  }

  /** Removes what is next, and returns it; undefined if nothing waits. */
  shift(): T | undefined {
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
