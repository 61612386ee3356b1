/**
 * At most so many requests a second for each owner, as many at once (GCRA, the leaky bucket as a
 * meter: what is kept for an owner is the time at which its bucket is empty).
 */
export class RateLimit {
  readonly #intervalMs: number
  readonly #now: () => number
  readonly #emptyAtMs = new Map<string, number>()
  #sweepAtMs = 0

  constructor(requestsPerSecond: number, now: () => number = () => performance.now()) {
    this.#intervalMs = 1000 / requestsPerSecond
    this.#now = now
  }

  /** Counts a request; returns the seconds to wait, rounded up, where it is one too many. */
  take(owner: string): number | undefined {
    const now = this.#now()
    this.#sweep(now)
    const emptyAt = Math.max(this.#emptyAtMs.get(owner) ?? 0, now) + this.#intervalMs
    const waitMs = emptyAt - now - Math.max(1000, this.#intervalMs)
    // The tolerance is for rounding: the sum of n intervals may be a little more than n times one.
    if (waitMs > 1e-6) return Math.ceil(waitMs / 1000)
    this.#emptyAtMs.set(owner, emptyAt)
    return undefined
  }

  /**
   * An empty bucket is as good as none, and a bucket is empty after a second: what is kept is
   * bounded by two seconds' requests.
   */
  #sweep(now: number): void {
    if (now < this.#sweepAtMs) return
    this.#sweepAtMs = now + 1000
    for (const [owner, emptyAt] of this.#emptyAtMs)
      if (emptyAt <= now) this.#emptyAtMs.delete(owner)
  }
}
