import { StoreUnavailable } from '../../plants/store.ts'

/** Enough for etcd to write many with one sync, few enough to bound what their answers hold. */
const PLACES = 64
/** Calls that wait, of all owners: about a second's work of etcd. */
const WAITING_MAX = 4096

/**
 * Places for calls under way. Owners who wait take turns, however many calls each has waiting,
 * so an owner with one call waits for one place and not for another owner's thousand calls.
 */
export class Places {
  #free = PLACES
  #waiting = 0
  /** Of each owner who waits, the calls in order; the owner whose turn is next comes first. */
  readonly #queues = new Map<string, Set<() => void>>()

  /** @throws StoreUnavailable when too many wait, or none is free in time. */
  async enter(owner: string, timeoutMs: number): Promise<void> {
    if (this.#free > 0) {
      this.#free -= 1
      return
    }
    if (this.#waiting >= WAITING_MAX) throw new StoreUnavailable('too many calls wait for etcd')
    this.#waiting += 1
    const queue = this.#queues.get(owner) ?? new Set()
    this.#queues.set(owner, queue)
    await new Promise<void>((resolve, reject) => {
      const enter = (): void => {
        clearTimeout(timer)
        resolve()
      }
      const timer = setTimeout(() => {
        this.#remove(owner, queue, enter)
        reject(new StoreUnavailable('etcd did not answer in time: too many calls wait for it'))
      }, timeoutMs)
      queue.add(enter)
    })
  }

  leave(): void {
    for (const [owner, queue] of this.#queues) {
      for (const enter of queue) {
        this.#remove(owner, queue, enter)
        // To the end: the others' turns come first.
        if (this.#queues.delete(owner)) this.#queues.set(owner, queue)
        return enter()
      }
    }
    this.#free += 1
  }

  #remove(owner: string, queue: Set<() => void>, enter: () => void): void {
    this.#waiting -= 1
    queue.delete(enter)
    if (queue.size === 0) this.#queues.delete(owner)
  }
}
