/** Delays between failed attempts: each is twice the one before, up to a limit. */
export class Backoff {
  readonly #firstMs: number
  readonly #lastMs: number
  #nextMs: number

  constructor(firstMs: number, lastMs: number) {
    this.#firstMs = firstMs
    this.#lastMs = lastMs
    this.#nextMs = firstMs
  }

  /** The delay before the next attempt, in milliseconds. */
  nextMs(): number {
    const delayMs = this.#nextMs
    this.#nextMs = Math.min(delayMs * 2, this.#lastMs)
    return delayMs
  }

  /** Call this after an attempt that succeeded. */
  reset(): void {
    this.#nextMs = this.#firstMs
  }
}
