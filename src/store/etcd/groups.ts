/** Collects what waits, creates or reads, so that one call of etcd carries much of it. */
import { Turns } from '../../ops/turns.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { WAITING_MAX } from './slots.ts'

/** Groups of a queue that run at once. While fewer run, an item waits for none. */
const RUNNING_MAX = 4
/** How long an owner is apart. */
const APART_MS = 60_000

/** Returns the result of each item; undefined if the item must run alone. */
type RunGroup<T, R> = (items: readonly T[]) => Promise<readonly (R | undefined)[]>
interface Waiting<T, R> {
  readonly item: T
  readonly settle: (result: Promise<R | undefined>) => void
}

class Queue<T, R> {
  readonly waiting = new Turns<Waiting<T, R>>()
  running = 0
}

/**
 * An item waits until its tick ends, and while four groups of its queue run. What waits then is
 * the next group; owners take turns. One item can spoil its whole group, so that each must run
 * alone. So owners who sent such an item are apart for a minute: they share a queue of their own.
 */
export class Groups<T extends { readonly owner: string }, R> {
  readonly #max: number
  readonly #run: RunGroup<T, R>
  readonly #shared = new Queue<T, R>()
  readonly #apart = new Queue<T, R>()
  readonly #apartOwners = new Set<string>()

  /** @param max items of a group */
  constructor(max: number, run: RunGroup<T, R>) {
    this.#max = max
    this.#run = run
  }

  /** Runs an item with others. @throws what its group throws; StoreUnavailable if many wait. */
  async add(item: T): Promise<R | undefined> {
    const { owner } = item
    const queues = [this.#shared.waiting, this.#apart.waiting]
    const ofOwner = queues.reduce((sum, waiting) => sum + waiting.countOf(owner), 0)
    const ofAll = queues.reduce((sum, { count }) => sum + count, 0)
    // One owner's waiting items are never more than may still come, so others find room.
    if (ofOwner >= WAITING_MAX - ofAll) throw new StoreUnavailable('too many calls wait for etcd')
    return new Promise((settle) => this.#add({ item, settle }))
  }

  /** From now on this owner's items share groups only with those of other owners who are apart. */
  setApart(owner: string): void {
    if (this.#apartOwners.has(owner)) return
    this.#apartOwners.add(owner)
    setTimeout(() => this.#apartOwners.delete(owner), APART_MS).unref()
  }

  #queueOf({ item }: Waiting<T, R>): Queue<T, R> {
    return this.#apartOwners.has(item.owner) ? this.#apart : this.#shared
  }

  #add(waiting: Waiting<T, R>): void {
    const queue = this.#queueOf(waiting)
    queue.waiting.add(waiting.item.owner, waiting)
    if (queue.waiting.count === 1) setImmediate(() => this.#start(queue))
  }

  #start(queue: Queue<T, R>): void {
    while (queue.running < RUNNING_MAX) {
      const group = this.#take(queue)
      if (group.length === 0) return
      queue.running += 1
      const results = this.#run(group.map(({ item }) => item))
      group.forEach(({ settle }, i) => settle(results.then((all) => all[i])))
      const end = (): void => {
        queue.running -= 1
        this.#start(queue)
      }
      results.then(end, end)
    }
  }

  /** Takes the next group. Meanwhile owners may have been set apart, or their minute has ended. */
  #take(queue: Queue<T, R>): readonly Waiting<T, R>[] {
    const group: Waiting<T, R>[] = []
    while (group.length < this.#max) {
      const waiting = queue.waiting.take()
      if (!waiting) break
      if (this.#queueOf(waiting) === queue) group.push(waiting)
      else this.#add(waiting)
    }
    return group
  }
}
