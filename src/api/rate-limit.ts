/** Counts a request of an owner. Returns the whole seconds to wait if it is one too many. */
export type RateLimit = (owner: string) => number | undefined

/**
 * Limits the requests of each owner: `requestsPerSecond` on average, and as many at once. This is
 * GCRA, the leaky bucket as a meter: for each owner it keeps the time at which the bucket is empty.
 */
export function rateLimitOf(requestsPerSecond: number): RateLimit {
  const intervalMs = 1000 / requestsPerSecond
  const emptyAtMs = new Map<string, number>()
  let sweepAtMs = 0
  return (owner) => {
    const now = performance.now()
    // Drops empty buckets once a second, so the map holds the owners of two seconds at most.
    if (now >= sweepAtMs) {
      sweepAtMs = now + 1000
      for (const [each, emptyAt] of emptyAtMs) if (emptyAt <= now) emptyAtMs.delete(each)
    }
    const emptyAt = Math.max(emptyAtMs.get(owner) ?? 0, now) + intervalMs
    const waitMs = emptyAt - now - Math.max(1000, intervalMs)
    // Not 0: rounding may make the sum of n intervals a little longer than n times one interval.
    if (waitMs > 1e-6) return Math.ceil(waitMs / 1000)
    emptyAtMs.set(owner, emptyAt)
    return undefined
  }
}
