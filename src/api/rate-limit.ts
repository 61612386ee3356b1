/**
 * Limits the requests of each owner: `requestsPerSecond` on average, and as many at once. This is
 * GCRA, the leaky bucket as a meter: for each owner it keeps the time at which the bucket is empty.
 */
export class RateLimit {
  readonly #intervalMs: number
  readonly #emptyAtMs = new Map<string, number>()
  #sweepAtMs = 0

  constructor(requestsPerSecond: number) {
    this.#intervalMs = 1000 / requestsPerSecond
  }

  /** Counts a request. Returns the whole seconds to wait if it is one too many. */
  waitSecondsFor(owner: string): number | undefined {
    const now = performance.now()
    this.#sweep(now)
    const emptyAt = Math.max(this.#emptyAtMs.get(owner) ?? 0, now) + this.#intervalMs
    const waitMs = emptyAt - now - Math.max(1000, this.#intervalMs)
    // Not 0: rounding may make the sum of n intervals a little longer than n times one interval.
    if (waitMs > 1e-6) return Math.ceil(waitMs / 1000)
    this.#emptyAtMs.set(owner, emptyAt)
    return undefined
  }

  /** Drops empty buckets once a second, so the map holds the owners of two seconds at most. */
  #sweep(now: number): void {
    if (now < this.#sweepAtMs) return
    this.#sweepAtMs = now + 1000
    for (const [owner, emptyAt] of this.#emptyAtMs)
      if (emptyAt <= now) this.#emptyAtMs.delete(owner)
  }
}
