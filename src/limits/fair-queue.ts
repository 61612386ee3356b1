import { Budget } from './budget.ts'
import { Turns } from './turns.ts'

/**
 * Time for queued work in one tick of the event loop. Then comes what follows from it: sockets and
 * probes are served, and a plant is written to the disk while lists are made. Not after each piece:
 * a response that is sent between two pieces makes both slower, as in `tick.ts`.
 */
const TICK_MS = 1
/**
 * libuv accepts one connection a tick. While each brings one, queued work runs only this often. Of
 * hundreds that arrive at once, the last then waits for a few pieces, not for hundreds. It is time
 * and not ticks: what takes no turn can make ticks long.
 */
const ARRIVAL_MS = 10
/**
 * An owner's time in each round before the others: of four short bodies or more. All owners may
 * take it before one that has used its own: with 0.5 ms, the slowest lists took 1.4 times as long.
 */
const QUANTUM_MS = 0.2
/** Pieces that wait. Those whose client has left wait too. */
const PLACES = 4096
/** In place of the owner whose token is not verified yet. No owner is empty. */
export const STRANGERS = ''

/**
 * Runs all work that takes more than a few microseconds: whatever is short by itself is multiplied
 * by all connections, because Node delivers them in one tick. A piece runs at once if the tick has
 * time left and no other piece waits. Otherwise it runs in a later tick, where owners take turns:
 * an owner with a thousand pieces delays a piece of another owner by one of them. While strangers
 * wait too, half of the time is theirs: as one more owner they would wait for all owners. It is
 * time and not pieces, or long pieces of theirs would leave little to the owners.
 */
export class FairQueue {
  readonly #places = new Budget(PLACES)
  readonly #owners = new Turns<() => void>(QUANTUM_MS)
  readonly #strangers: (() => void)[] = []
  /** How much longer strangers than owners have run, while both waited. */
  #strangersLeadMs = 0
  #spentMs = 0
  #nextTick: NodeJS.Immediate | undefined
  #ranAtMs = 0
  /** To be set for each accepted connection; more may wait to be accepted. */
  hasArrival = false

  /**
   * While it waits it takes `places`, of which one owner has at most half of those that are free;
   * 0 if the caller bounds how many there are.
   * @throws what `work` throws; as a rejection if it had to wait.
   * @throws Overloaded, as a rejection, if too much waits.
   */
  run<T>(owner: string, work: () => T | Promise<T>, places = 1): T | Promise<T> {
    if (this.#count === 0 && this.#spentMs < TICK_MS) return this.#timed(owner, work)
    return this.#runInTurn(owner, work, places)
  }

  async #runInTurn<T>(owner: string, work: () => T | Promise<T>, places: number): Promise<T> {
    const hold = this.#places.reserve(owner, places, 'too much work waits')
    this.#schedule()
    return new Promise((resolve) => {
      const start = (): void => {
        hold.set(0)
        resolve(this.#timed(owner, async () => work()))
      }
      if (owner === STRANGERS) this.#strangers.push(start)
      else this.#owners.add(owner, start)
    })
  }

  #timed<T>(owner: string, work: () => T): T {
    const startedAtMs = performance.now()
    try {
      return work()
    } finally {
      const tookMs = performance.now() - startedAtMs
      this.#owners.charge(owner, tookMs)
      if (this.#count > 0) this.#strangersLeadMs += owner === STRANGERS ? tookMs : -tookMs
      this.#spentMs += tookMs
      if (this.#spentMs >= TICK_MS) this.#schedule()
    }
  }

  get #count(): number {
    return this.#owners.count + this.#strangers.length
  }

  #schedule(): void {
    this.#nextTick ??= setImmediate(() => {
      this.#nextTick = undefined
      this.#spentMs = 0
      const isSkipped = this.hasArrival && performance.now() < this.#ranAtMs + ARRIVAL_MS
      this.hasArrival = false
      if (isSkipped) return this.#schedule()
      while (this.#count > 0 && this.#spentMs < TICK_MS) this.#startNext()
      this.#ranAtMs = performance.now()
    })
  }

  #startNext(): void {
    const [owners, strangers] = [this.#owners, this.#strangers]
    if (owners.count === 0 || strangers.length === 0) this.#strangersLeadMs = 0
    const stranger = this.#strangersLeadMs <= 0 ? strangers.shift() : undefined
    const start = stranger ?? owners.shift()
    start?.()
  }
}
