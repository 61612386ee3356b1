/** Collects creates, so that one call of etcd carries those that wait. */
import { Turns } from '../../limits/turns.ts'
import type { NewPlant } from '../../plants/plant.ts'
import { type Created, StoreUnavailable } from '../../plants/store.ts'
import { WAITING_MAX } from './slots.ts'

/** etcd's default of --max-txn-ops, which counts the comparisons and the puts apart. */
const GROUP_MAX = 128
/** A group's request has 1 MiB at most. etcd's default of --max-request-bytes is 1.5 MiB. */
const SHORT_BYTES = 2 ** 20 / GROUP_MAX
/** What the request has for each plant, besides its key twice, its name and its tag. */
const PLANT_BYTES = 64
/** JSON writes a UTF-16 unit with at most 6 bytes (\u0000). */
const UNIT_BYTES = 6
/** Groups of a queue that run at once. While fewer run, a create waits for none. */
const RUNNING_MAX = 4
/** How long an owner is apart. */
const APART_MS = 60_000

/** A plant that arrived at `since`, and its key. */
export interface Create {
  readonly owner: string
  readonly key: string
  readonly plant: NewPlant
  readonly since: number
}
/** Undefined if each must be created alone. */
type Answer = Promise<Created | undefined>
type CreateAll = (creates: readonly Create[]) => Answer
type Waiting = Create & { readonly answer: (created: Answer) => void }

class Queue {
  readonly waiting = new Turns<Waiting>()
  running = 0
}

/**
 * A create waits until its tick ends, and while four groups of its queue run. What waits then is
 * the next group; owners take turns. A key that exists spoils its whole group. So owners who sent
 * such a key are apart for a minute: they share a queue of their own.
 */
export class CreateGroups {
  readonly #createAll: CreateAll
  readonly #shared = new Queue()
  readonly #apart = new Queue()
  readonly #apartOwners = new Set<string>()

  /** @param createAll stores a group: all or none. No key comes twice. */
  constructor(createAll: CreateAll) {
    this.#createAll = createAll
  }

  /** Puts a short plant with others. @throws StoreUnavailable if too many wait. */
  async create(create: Create): Answer {
    const { owner } = create
    const queues = [this.#shared.waiting, this.#apart.waiting]
    const ofOwner = queues.reduce((sum, waiting) => sum + waiting.countOf(owner), 0)
    const ofAll = queues.reduce((sum, { count }) => sum + count, 0)
    // One owner's waiting creates are never more than may still come, so others find room.
    if (ofOwner >= WAITING_MAX - ofAll)
      throw new StoreUnavailable('too many creates wait for etcd')
    return new Promise((answer) => this.#add({ ...create, answer }))
  }

  /** From now on this owner's creates share groups only with other owners who are apart. */
  setApart(owner: string): void {
    if (this.#apartOwners.has(owner)) return
    this.#apartOwners.add(owner)
    setTimeout(() => this.#apartOwners.delete(owner), APART_MS).unref()
  }

  #queueOf({ owner }: Create): Queue {
    return this.#apartOwners.has(owner) ? this.#apart : this.#shared
  }

  #add(create: Waiting): void {
    const queue = this.#queueOf(create)
    queue.waiting.add(create.owner, create)
    if (queue.waiting.count === 1) setImmediate(() => this.#start(queue))
  }

  #start(queue: Queue): void {
    while (queue.running < RUNNING_MAX) {
      const group = this.#take(queue)
      if (group.length === 0) return
      queue.running += 1
      // etcd refuses a transaction that puts a key twice. A later create of an id goes alone.
      const firsts = new Map(group.toReversed().map((create) => [create.key, create]))
      const created = this.#createAll([...firsts.values()].reverse())
      const ended = created.catch(() => {}).then(() => undefined)
      for (const each of group) each.answer(firsts.get(each.key) === each ? created : ended)
      void ended.then(() => {
        queue.running -= 1
        this.#start(queue)
      })
    }
  }

  /** Takes the next group. Meanwhile owners may have been set apart, or their minute has ended. */
  #take(queue: Queue): readonly Waiting[] {
    const group: Waiting[] = []
    while (group.length < GROUP_MAX) {
      const create = queue.waiting.shift()
      if (!create) break
      if (this.#queueOf(create) === queue) group.push(create)
      else this.#add(create)
    }
    return group
  }
}

/** True if as many as a group may have fit into one request. Others must be created alone. */
export function isShort({ key, plant: { name, tag = '' } }: Create): boolean {
  return PLANT_BYTES + 2 * key.length + UNIT_BYTES * (name.length + tag.length) <= SHORT_BYTES
}
