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
    if (newer) return newer.value
    const older = this.#older.get(key)
    if (older) this.set(older.key, older.value, older.size)
    return older?.value
  }

  /** What is larger than half of the map is not kept. */
  set(key: string, value: V, size: number): void {
    this.delete(key)
    if (size > this.#halfMax) return
    if (this.#newerSize + size > this.#halfMax) {
      this.#older = this.#newer
      this.#newer = new Map()
      this.#newerSize = 0
    }
    this.#newer.set(key, { key, value, size })
    this.#newerSize += size
  }

  delete(key: string): void {
    this.#newerSize -= this.#newer.get(key)?.size ?? 0
    this.#newer.delete(key)
    this.#older.delete(key)
  }
}
