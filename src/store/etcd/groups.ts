/** Collects the creates of an owner, so that one call of etcd carries those that wait. */
import type { NewPlant } from '../../plants/plant.ts'
import { type Created, StoreUnavailable } from '../../plants/store.ts'
import { WAITING_MAX } from './slots.ts'

/** etcd's default of --max-txn-ops, which counts the comparisons and the puts apart. */
const GROUP_MAX = 128
/** Of a group's request. etcd's default of --max-request-bytes is 1.5 MiB. */
const GROUP_MAX_BYTES = 1024 * 1024
/** What the request has for each plant, besides its key twice, its name and its tag. */
const PLANT_BYTES = 64
/** JSON writes a UTF-16 unit with at most 6 bytes (\u0000). */
const UNIT_BYTES = 6
/** Of one owner: a create with fewer than four others of its owner waits for none of them. */
const RUNNING_MAX = 4

/** What arrived at `since`, for one key. */
export type Create = { readonly key: string; readonly plant: NewPlant; readonly since: number }
/** Undefined if each must be created alone. */
type Answer = Promise<Created | undefined>
type CreateAll = (owner: string, creates: readonly Create[]) => Answer
type Waiting = Create & { readonly answer: (created: Answer) => void }
type Queue = { readonly creates: Waiting[]; running: number }

/**
 * Returns a function that creates a plant with others. A create waits until its tick ends, and
 * while its owner has four groups running. What waits then is the next group. It holds creates of
 * one owner only: another owner's cannot make it fail.
 * @param createAll stores a group: all or none. No key comes twice.
 */
export function createGroups(createAll: CreateAll): (owner: string, create: Create) => Answer {
  const queues = new Map<string, Queue>()
  let waiting = 0

  function start(owner: string, queue: Queue): void {
    while (queue.running < RUNNING_MAX && queue.creates.length > 0) {
      const group = queue.creates.splice(0, groupLength(queue.creates))
      waiting -= group.length
      queue.running += 1
      // etcd refuses a transaction that puts a key twice. A later create of an id goes alone.
      const firsts = new Map(group.toReversed().map((create) => [create.key, create]))
      const created = createAll(owner, [...firsts.values()].reverse())
      const ended = created.catch(() => {}).then(() => undefined)
      for (const each of group) each.answer(firsts.get(each.key) === each ? created : ended)
      void ended.then(() => {
        queue.running -= 1
        start(owner, queue)
      })
    }
    // It may have ended before this tick did, and a new queue may have its place.
    if (queue.running === 0 && queues.get(owner) === queue) queues.delete(owner)
  }

  return async (owner, create) => {
    const queue = queues.get(owner) ?? { creates: [], running: 0 }
    // One owner's waiting creates are never more than may still come, so others find room.
    if (queue.creates.length >= WAITING_MAX - waiting)
      throw new StoreUnavailable('too many creates wait for etcd')
    queues.set(owner, queue)
    waiting += 1
    return new Promise((answer) => {
      queue.creates.push({ ...create, answer })
      if (queue.creates.length === 1) setImmediate(start, owner, queue)
    })
  }
}

/** How many of the first creates fit into one request; at least one. */
function groupLength(creates: readonly Create[]): number {
  let bytes = 0
  const end = creates.findIndex(({ key, plant: { name, tag = '' } }, i) => {
    bytes += PLANT_BYTES + 2 * key.length + UNIT_BYTES * (name.length + tag.length)
    return i > 0 && (i === GROUP_MAX || bytes > GROUP_MAX_BYTES)
  })
  return end < 0 ? creates.length : end
}
