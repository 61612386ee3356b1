/** Limits the calls to etcd that run at once. */
import { StoreUnavailable } from '../../plants/store.ts'

/** Enough for etcd to write many calls with one sync, few enough to bound their answers' memory. */
const SLOTS = 64
/** Of all owners: about one second of work for etcd. */
export const WAITING_MAX = 4096

/**
 * Limits the calls that run at once. Owners that wait take turns: an owner with one call waits for
 * one slot, not for another owner's thousand calls.
 */
export class Slots {
  /** Running and waiting. A call waits only while all slots are taken. */
  #calls = 0
  /** Of each owner, in order; the first owner is next. No `Turns`: a late call leaves its queue. */
  readonly #queues = new Map<string, Set<() => void>>()

  /**
   * One owner's waiting calls are never more than may still come, so others find room.
   * @throws StoreUnavailable if too many calls wait, or no slot is free in time.
   */
  async enter(owner: string, timeoutMs: number): Promise<void> {
    const queue = this.#queues.get(owner) ?? new Set()
    if (queue.size >= SLOTS + WAITING_MAX - this.#calls)
      throw new StoreUnavailable('too many calls wait for etcd')
    this.#calls += 1
    if (this.#calls <= SLOTS) return
    this.#queues.set(owner, queue)
    await new Promise<void>((resolve, reject) => {
      const enter = (): void => {
        clearTimeout(timer)
        resolve()
      }
      const timer = setTimeout(() => {
        this.#calls -= 1
        this.#remove(owner, queue, enter)
        reject(new StoreUnavailable('etcd did not answer in time: too many calls wait for it'))
      }, timeoutMs)
      queue.add(enter)
    })
  }

  leave(): void {
    this.#calls -= 1
    for (const [owner, queue] of this.#queues) {
      for (const enter of queue) {
        this.#remove(owner, queue, enter)
        // To the end of the map: the other owners are next.
        if (this.#queues.delete(owner)) this.#queues.set(owner, queue)
        return enter()
      }
    }
  }

  #remove(owner: string, queue: Set<() => void>, enter: () => void): void {
    queue.delete(enter)
    if (queue.size === 0) this.#queues.delete(owner)
  }
}
