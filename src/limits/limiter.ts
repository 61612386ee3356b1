import { Budget } from './budget.ts'
import { Turns } from './turns.ts'

/** Bounds how much work of one kind runs at once, and how much waits. Owners take turns. */
export class Limiter {
  readonly #refusal: string
  /** How much more may run at once. */
  #room: number
  readonly #places: Budget
  readonly #waiting = new Turns<() => void>()

  /**
   * Of the `places` of what waits, one owner has at most half of those that are free. `what` is for
   * the log, in the plural.
   */
  constructor(what: string, maxRunning: number, places: number) {
    this.#refusal = `too many ${what} wait`
    this.#room = maxRunning
    this.#places = new Budget(places)
  }

  /**
   * Runs the work once there is room. The work itself must see then whether it is still wanted.
   * @throws Overloaded if too much waits.
   */
  async run<T>(owner: string, work: () => T | Promise<T>): Promise<T> {
    const hold = this.#places.reserve(owner, 1, this.#refusal)
    if (this.#room > 0) this.#room--
    else await new Promise<void>((resolve) => this.#waiting.add(owner, resolve))
    hold.set(0)
    try {
      return await work()
    } finally {
      // In the next tick: work that is refused at once must not let all that waits run in this one.
      setImmediate(() => {
        // The room passes to the next in turn, so that no newcomer is before it.
        const start = this.#waiting.shift()
        if (start) start()
        else this.#room++
      })
    }
  }
}
