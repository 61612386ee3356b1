/**
 * Time that queued work may take in one tick of the event loop, before sockets and probes have
 * their turn.
 */
const BUDGET_MS = 3
/**
 * What was spent is counted across ticks until it is worth a reset: lone small pieces of work set
 * no timer.
 */
const RESET_MS = 1

/**
 * libuv accepts one connection a tick. While they arrive, waiting work stays back for so long
 * between two ticks that run some: of hundreds that arrive at once, the last one then waits for a
 * few pieces of work and not for hundreds.
 */
const ARRIVAL_MS = 10

/**
 * Runs pieces of work that may take a millisecond or more. A piece runs at once while the tick has
 * time left and nothing waits. Otherwise it waits for a later tick, where owners take turns: an
 * owner with a thousand pieces delays another owner's piece by one of them.
 */
export class FairQueue {
  /** Owners in the order of their turns. */
  readonly #waiting = new Map<string, (() => void)[]>()
  #spentMs = 0
  #scheduled = false
  #hasArrival = false
  #ranAtMs = 0

  /** @throws whatever `work` throws; as a rejection where it had to wait. */
  run<T>(owner: string, work: () => T | Promise<T>): T | Promise<T> {
    if (this.#waiting.size === 0 && this.#spentMs < BUDGET_MS) return this.#timed(work)
    return new Promise((resolve, reject) => {
      const piece = (): void => {
        try {
          resolve(this.#timed(work))
        } catch (error) {
          reject(error)
        }
      }
      const pieces = this.#waiting.get(owner)
      if (pieces) pieces.push(piece)
      else this.#waiting.set(owner, [piece])
      this.#schedule()
    })
  }

  /** A connection was accepted; more may wait for it. */
  connectionArrived(): void {
    this.#hasArrival = true
  }

  #timed<T>(work: () => T): T {
    const startedAtMs = performance.now()
    try {
      return work()
    } finally {
      this.#spentMs += performance.now() - startedAtMs
      if (this.#spentMs >= RESET_MS) this.#schedule()
    }
  }

  #schedule(): void {
    if (this.#scheduled) return
    this.#scheduled = true
    setImmediate(() => this.#tick())
  }

  #tick(): void {
    this.#scheduled = false
    const staysBack = this.#hasArrival && performance.now() - this.#ranAtMs < ARRIVAL_MS
    this.#hasArrival = false
    // Work that ran at once in this tick counts: it is not followed by as much again.
    const isSpent = this.#spentMs >= BUDGET_MS
    this.#spentMs = 0
    if (!staysBack && !isSpent) this.#runSome()
    if (this.#waiting.size > 0) this.#schedule()
  }

  #runSome(): void {
    for (const [owner, pieces] of this.#waiting) {
      // To the end of the order, which this loop comes to again.
      this.#waiting.delete(owner)
      const piece = pieces.shift()
      if (pieces.length > 0) this.#waiting.set(owner, pieces)
      piece?.()
      if (this.#spentMs >= BUDGET_MS) break
    }
    this.#spentMs = 0
    this.#ranAtMs = performance.now()
  }
}
