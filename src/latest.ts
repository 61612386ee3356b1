/* A map that keeps what was added or found last, up to a size. */

interface Entry<V> {
  /** As it was added: the same text in a request may be a part of a longer one. */
  readonly key: string
  readonly value: V
  readonly size: number
}

/**
 * It has two halves. Once the newer one is full it becomes the older one, and what that had is
 * dropped. What is found in the older half moves to the newer one. So the oldest entry need not be
 * found: a new iterator of a Map steps over the holes of its removed entries, and an iterator that
 * is kept keeps every table that its Map ever had.
 */
export class Latest<V> {
  readonly #halfMax: number
  #older = new Map<string, Entry<V>>()
  #newer = new Map<string, Entry<V>>()
  #newerSize = 0

  constructor(maxSize: number) {
    this.#halfMax = maxSize / 2
  }

  get(key: string): V | undefined {
    const newer = this.#newer.get(key)
    const entry = newer ?? this.#older.get(key)
    if (entry && !newer) this.set(entry.key, entry.value, entry.size)
    return entry?.value
  }

  /** The size must be below half of the map's. */
  set(key: string, value: V, size: number): void {
    const oldSize = this.#newer.get(key)?.size ?? 0
    this.#newerSize += size - oldSize
    if (this.#newerSize > this.#halfMax) {
      this.#older = this.#newer
      this.#newer = new Map()
      this.#newerSize = size
    }
    this.#newer.set(key, { key, value, size })
  }
}
