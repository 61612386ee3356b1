/* One wait for all responses of a tick of the event loop. */

/** When this many responses wait, they are sent at once. This bounds their memory. */
const WAITING_MAX = 32

/**
 * Sends the responses of one tick of the event loop together at its end. A response that is sent
 * between two reads wakes a sleeping client, and pushes the code that reads requests out of the
 * processor's caches: at full load cached lists would have half the rate
 * (`make bench WORKLOADS=get20`). With one request a tick nothing waits.
 */
export class TickEnd {
  #waiting: (() => void)[] = []
  /** Responses of this tick so far. */
  #count = 0
  /** Responses of the last tick that had any. */
  #lastCount = 0

  /** Calls `send` before the tick ends. If ticks bring one response each, calls it at once. */
  add(send: () => void): void {
    if (++this.#count === 1) {
      setImmediate(() => this.#end())
      if (this.#lastCount <= 1) return send()
    }
    if (this.#waiting.push(send) >= WAITING_MAX) this.#sendAll()
  }

  #end(): void {
    this.#lastCount = this.#count
    this.#count = 0
    this.#sendAll()
  }

  #sendAll(): void {
    const waiting = this.#waiting
    this.#waiting = []
    for (const send of waiting) send()
  }
}

/** One for the process, which has one event loop. */
export const tickEnd = new TickEnd()
