import type { Budget } from './budget.ts'
import { Turns } from './turns.ts'

/** Work that waits until it is started. Owners take turns. */
export class WaitingWork {
  readonly #turns: Turns<() => void>
  readonly #places: Budget
  readonly #refusal: string

  /** Work takes `places` until it starts; `refusal` is for the log. `quantum` is as in `Turns`. */
  constructor(places: Budget, refusal: string, quantum?: number) {
    this.#turns = new Turns(quantum)
    this.#places = places
    this.#refusal = refusal
  }

  get count(): number {
    return this.#turns.count
  }

  /**
   * Resolves or rejects as the work does.
   * @throws Overloaded at once if there is no place.
   */
  add<T>(owner: string, work: () => T | Promise<T>, places = 1): Promise<T> {
    const hold = this.#places.reserve(owner, places, this.#refusal)
    const start = async (): Promise<T> => {
      hold.set(0)
      return work()
    }
    return new Promise((resolve) => this.#turns.add(owner, () => resolve(start())))
  }

  /** Says what the work that started last has cost. */
  charge(cost: number): void {
    this.#turns.charge(cost)
  }

  /** Starts what is next. False if nothing waits. */
  startNext(): boolean {
    const start = this.#turns.shift()
    start?.()
    return start !== undefined
  }
}
