/** Collects creates, so that one call of etcd carries those that wait. */
import { Turns } from '../../ops/turns.ts'
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
/** A create with fewer than four groups before it waits for none of them. */
const RUNNING_MAX = 4
/** How long an owner is apart. */
const APART_MS = 60_000
/** The queue of all owners that are not apart. No owner has this name. */
const SHARED = ''

/** A plant that arrived at `since`, and its key. */
export interface Create {
  readonly owner: string
  readonly key: string
  readonly plant: NewPlant
  readonly since: number
}
/** Undefined if each must be created alone. */
type Answer = Promise<Created | undefined>
type CreateAll = (queue: string, creates: readonly Create[]) => Answer
type Waiting = Create & { readonly answer: (created: Answer) => void }
type Queue = { readonly waiting: Turns<Waiting>; running: number }

/**
 * A create waits until its tick ends, and while four groups of its queue run. What waits then is
 * the next group; owners take turns. Owners share a queue, but a key that exists spoils its whole
 * group. So an owner who had one is apart for a while, in a queue of its own.
 */
export class CreateGroups {
  readonly #createAll: CreateAll
  readonly #queues = new Map<string, Queue>()
  readonly #apart = new Set<string>()
  #waiting = 0

  /** @param createAll stores a group: all or none. No key comes twice. */
  constructor(createAll: CreateAll) {
    this.#createAll = createAll
  }

  /** Puts a plant with others. @throws StoreUnavailable if too many wait. */
  async create(create: Create): Answer {
    const { owner } = create
    if (!isShort(create)) return undefined
    const name = this.#apart.has(owner) ? owner : SHARED
    const queue = this.#queues.get(name) ?? { waiting: new Turns(), running: 0 }
    // One owner's waiting creates are never more than may still come, so others find room.
    if (queue.waiting.countOf(owner) >= WAITING_MAX - this.#waiting)
      throw new StoreUnavailable('too many creates wait for etcd')
    this.#queues.set(name, queue)
    this.#waiting += 1
    return new Promise((answer) => {
      queue.waiting.add(owner, { ...create, answer })
      if (queue.waiting.count === 1) setImmediate(() => this.#start(name, queue))
    })
  }

  /** From now on this owner's creates spoil no other owner's. */
  setApart(owner: string): void {
    if (this.#apart.has(owner)) return
    this.#apart.add(owner)
    setTimeout(() => this.#apart.delete(owner), APART_MS).unref()
  }

  #start(name: string, queue: Queue): void {
    while (queue.running < RUNNING_MAX && queue.waiting.count > 0) {
      const group = Array.from({ length: GROUP_MAX }, () => queue.waiting.take())
        .filter((create) => create !== undefined)
      this.#waiting -= group.length
      queue.running += 1
      // etcd refuses a transaction that puts a key twice. A later create of an id goes alone.
      const firsts = new Map(group.toReversed().map((create) => [create.key, create]))
      const created = this.#createAll(name, [...firsts.values()].reverse())
      const ended = created.catch(() => {}).then(() => undefined)
      for (const each of group) each.answer(firsts.get(each.key) === each ? created : ended)
      void ended.then(() => {
        queue.running -= 1
        this.#start(name, queue)
      })
    }
    // It may have ended before this tick did, and a new queue may have its place.
    if (queue.running === 0 && this.#queues.get(name) === queue) this.#queues.delete(name)
  }
}

/** True if as many as a group may have fit into one request. */
function isShort({ key, plant: { name, tag = '' } }: Create): boolean {
  return PLANT_BYTES + 2 * key.length + UNIT_BYTES * (name.length + tag.length) <= SHORT_BYTES
}
