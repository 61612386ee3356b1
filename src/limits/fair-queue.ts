import { Budget } from './budget.ts'
import { WaitingWork } from './waiting-work.ts'

/** Time for queued work in one tick of the event loop, so that sockets and probes are served. */
const TICK_MS = 3
/** While less than this is spent, no tick is scheduled to reset it: most pieces are that short. */
const RESET_MS = 1
/**
 * libuv accepts one connection a tick. While connections arrive, queued work runs only this often.
 * Of hundreds that arrive at once, the last one then waits for a few pieces, not for hundreds.
 */
const ARRIVAL_MS = 10
/** An owner's time in each round before the others: of ten short bodies. */
const QUANTUM_MS = 0.5
/** Pieces that wait. Those whose client has left wait too. */
const PLACES = 4096
const TOO_MUCH = 'too much work waits'
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
  readonly #owners = new WaitingWork(this.#places, TOO_MUCH, QUANTUM_MS)
  readonly #strangers = new WaitingWork(this.#places, TOO_MUCH)
  /** How much longer strangers than owners have run, while both waited. */
  #strangersLeadMs = 0
  #spentMs = 0
  #nextTick: NodeJS.Immediate | undefined
  #hasArrival = false
  #ranAtMs = 0

  /**
   * While it waits it takes `places`, of which one owner has at most half of those that are free;
   * 0 if the caller bounds how many there are.
   * @throws what `work` throws; as a rejection if it had to wait.
   * @throws Overloaded if too much waits.
   */
  run<T>(owner: string, work: () => T | Promise<T>, places = 1): T | Promise<T> {
    if (this.#count === 0 && this.#spentMs < TICK_MS) return this.#timed(work)
    const waiting = owner === STRANGERS ? this.#strangers : this.#owners
    const result = waiting.add(owner, () => this.#timed(work), places)
    this.#schedule()
    return result
  }

  /** Call this for each accepted connection; more may wait to be accepted. */
  readonly connectionArrived = (): void => {
    this.#hasArrival = true
  }

  get #count(): number {
    return this.#owners.count + this.#strangers.count
  }

  #startNext(): void {
    const [owners, strangers] = [this.#owners, this.#strangers]
    const doBothWait = owners.count > 0 && strangers.count > 0
    const areStrangers = doBothWait ? this.#strangersLeadMs <= 0 : strangers.count > 0
    const beforeMs = this.#spentMs
    const waiting = areStrangers ? strangers : owners
    waiting.startNext()
    const tookMs = this.#spentMs - beforeMs
    waiting.charge(tookMs)
    if (doBothWait) this.#strangersLeadMs += areStrangers ? tookMs : -tookMs
    else this.#strangersLeadMs = 0
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
    this.#nextTick ??= setImmediate(() => this.#tick())
  }

  #tick(): void {
    this.#nextTick = undefined
    const isArriving = this.#hasArrival && performance.now() - this.#ranAtMs < ARRIVAL_MS
    this.#hasArrival = false
    // Work that ran at once before this tick counts: as much again must not follow it.
    const isSpent = this.#spentMs >= TICK_MS
    this.#spentMs = 0
    if (!isArriving && !isSpent) {
      while (this.#count > 0 && this.#spentMs < TICK_MS) this.#startNext()
      this.#spentMs = 0
      this.#ranAtMs = performance.now()
    }
    if (this.#count > 0) this.#schedule()
  }
}
