/* A map that keeps what was added or found last, up to a size. */

interface Entry<V> {
  /** As it was added: the same text in a request may be a part of a longer one. */
  readonly key: string
  readonly value: V
  readonly size: number
}

interface Half<V> {
  readonly entries: Map<string, Entry<V>>
  size: number
}

/**
 * It has two halves. Once the newer one is full it becomes the older one, and what that had is
 * dropped. What is found in the older half moves to the newer one. So the oldest entry need not be
 * found: a new iterator of a Map steps over the holes of its removed entries, and an iterator that
 * is kept keeps every table that its Map ever had.
 */
export class Latest<V> {
  readonly #halfMax: number
  #newer: Half<V> = { entries: new Map(), size: 0 }
  #older: Half<V> = { entries: new Map(), size: 0 }

  constructor(maxSize: number) {
    this.#halfMax = maxSize / 2
  }

  /** Of all entries. */
  get size(): number {
    return this.#newer.size + this.#older.size
  }

  get(key: string): V | undefined {
    const newer = this.#newer.entries.get(key)
    if (newer) return newer.value
    const older = this.#older.entries.get(key)
    if (older) this.set(older.key, older.value, older.size)
    return older?.value
  }

  /** What is larger than half of the map is not kept. */
  set(key: string, value: V, size: number): void {
    this.delete(key)
    if (size > this.#halfMax) return
    if (this.#newer.size + size > this.#halfMax) {
      this.#older = this.#newer
      this.#newer = { entries: new Map(), size: 0 }
    }
    this.#newer.entries.set(key, { key, value, size })
    this.#newer.size += size
  }

  delete(key: string): void {
    for (const half of [this.#newer, this.#older]) {
      half.size -= half.entries.get(key)?.size ?? 0
      half.entries.delete(key)
    }
  }
}
