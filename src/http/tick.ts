/** So many answers wait at most: what they hold is bounded, and more of them bring nothing. */
const WAITING_MAX = 32

/**
 * Sends the answers of one turn of the event loop together at its end. Sent one by one, between the
 * requests that are read, each wakes a client that has gone to sleep, and pushes the code that
 * reads requests out of the processor's caches: at its limit the service answers a tenth to a half
 * more this way (`make bench WORKLOADS='get20 mixed'`). Nobody waits for it where requests come one
 * a turn.
 */
export class TickEnd {
  #waiting: (() => void)[] = []
  /** Answers of this turn so far, and of the last one that had any. */
  #count = 0
  #countBefore = 0

  /**
   * Calls `send` before the turn is over, at once where the last turn had no other answer than one.
   */
  add(send: () => void): void {
    if (++this.#count === 1) {
      setImmediate(() => this.#end())
      if (this.#countBefore <= 1) {
        send()
        return
      }
    }
    if (this.#waiting.push(send) >= WAITING_MAX) this.#sendAll()
  }

  #end(): void {
    this.#countBefore = this.#count
    this.#count = 0
    this.#sendAll()
  }

  #sendAll(): void {
    const waiting = this.#waiting
    this.#waiting = []
    for (const send of waiting) send()
  }
}
