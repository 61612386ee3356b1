const EMPTY: Buffer = Buffer.alloc(0)

/**
 * The bytes of a body so far. Most bodies are one chunk, which is not copied. Further chunks are
 * copied into one buffer: a list of them would take 200 bytes for a chunk of one byte.
 */
export class BodyBuffer {
  #held = EMPTY
  #length = 0

  get bytes(): Buffer {
    return this.#held.subarray(0, this.#length)
  }

  /** How much memory it takes. */
  get capacity(): number {
    return this.#held.length
  }

  /** How much memory it takes with so many bytes more. */
  capacityWith(bytes: number): number {
    const length = this.#length + bytes
    return length <= this.#held.length ? this.#held.length : Math.max(length, 2 * this.#length)
  }

  add(chunk: Buffer): void {
    const capacity = this.capacityWith(chunk.length)
    if (this.#length === 0) this.#held = chunk
    else {
      if (capacity > this.#held.length) this.#held = Buffer.concat([this.bytes], capacity)
      chunk.copy(this.#held, this.#length)
    }
    this.#length += chunk.length
  }
}
