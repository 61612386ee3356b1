const EMPTY: Buffer = Buffer.alloc(0)

/**
 * The bytes of a body so far. Most bodies are one chunk, which is not copied. Further chunks are
 * copied into one buffer: a list of them would take 200 bytes for a chunk of one byte.
 */
export class BodyBuffer {
  /** It takes no more memory than this, if the body is no longer. */
  readonly #maxBytes: number
  #held = EMPTY
  #length = 0

  constructor(maxBytes = Infinity) {
    this.#maxBytes = maxBytes
  }

  get length(): number {
    return this.#length
  }

  get bytes(): Buffer {
    return this.#held.subarray(0, this.#length)
  }

  /** How much memory it takes. */
  get capacity(): number {
    return this.#held.length
  }

  /** How much memory it takes with this many bytes more. */
  capacityWith(bytes: number): number {
    const length = this.#length + bytes
    if (length <= this.#held.length) return this.#held.length
    return Math.max(length, Math.min(2 * this.#length, this.#maxBytes))
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
