import { Budget } from './budget.ts'
import { WaitingWork } from './waiting-work.ts'

/** Bounds how much work of one kind runs at once, and how much waits. Owners take turns. */
export class Limiter {
  /** How much more may run at once. */
  #room: number
  readonly #waiting: WaitingWork

  /**
   * Of the `places` of what waits, one owner has at most half of those that are free. `what` is for
   * the log, in the plural.
   */
  constructor(what: string, maxRunning: number, places: number) {
    this.#room = maxRunning
    this.#waiting = new WaitingWork(new Budget(places), `too many ${what} wait`)
  }

  /**
   * Runs the work once there is room. The work itself must see then whether it is still wanted.
   * @throws Overloaded if too much waits.
   */
  async run<T>(owner: string, work: () => T | Promise<T>): Promise<T> {
    if (this.#room === 0) return this.#waiting.add(owner, () => this.#run(work))
    this.#room--
    return this.#run(work)
  }

  async #run<T>(work: () => T | Promise<T>): Promise<T> {
    try {
      return await work()
    } finally {
      // In the next tick: work that is refused at once must not let all that waits run in this one.
      setImmediate(() => this.#next())
    }
  }

  /** Passes the room of work that ended to the next in turn, so that no newcomer is before it. */
  #next(): void {
    if (!this.#waiting.startNext()) this.#room++
  }
}
