import type { Created } from '../../plants/store.ts'
import { StoreFull } from '../../plants/store.ts'
import type { Capacity } from './capacity.ts'
import type { PlantDatabase, Row } from './database.ts'

/** A create that waits for its batch. */
export interface PendingCreate {
  readonly row: Row
  readonly resolve: (created: Created) => void
  readonly reject: (error: Error) => void
}

/** Creates that wait. Owners take turns; the creates of one owner keep their order. */
export class WaitingCreates {
  /** By owner. The first owner is next. */
  readonly #queues = new Map<string, PendingCreate[]>()
  #count = 0

  get count(): number {
    return this.#count
  }

  add(create: PendingCreate): void {
    const [owner] = create.row
    const queue = this.#queues.get(owner)
    if (queue) queue.push(create)
    else this.#queues.set(owner, [create])
    this.#count += 1
  }

  /** A create leaves when the caller asks for the next one: if the caller throws, it stays. */
  *inTurn(): Generator<PendingCreate> {
    for (const [owner, queue] of this.#queues) {
      const [create] = queue
      if (create) yield create
      queue.shift()
      this.#count -= 1
      // Deleted and set again, the owner is last, and this loop reaches it once more.
      this.#queues.delete(owner)
      if (queue.length > 0) this.#queues.set(owner, queue)
    }
  }
}

/** Rows that become durable with one write, and the creates to be answered after it. */
export interface Batch {
  readonly rows: readonly Row[]
  readonly answers: readonly { readonly create: PendingCreate; readonly created: Created }[]
}

/** A batch takes no more plants after this much text: making its line then takes 8 ms. */
const BATCH_CHARS = 1024 * 1024
/** After this long the batch ends; the other creates wait for the next one. */
const DECIDE_MS = 3

/**
 * Takes waiting creates, owner by owner, and decides them. A new plant is added to the database
 * with the batch's sequence, which no list shows yet. If a durable plant has the id, the create is
 * answered at once. If a plant of this batch has it, the create is answered with the batch.
 */
export function takeBatch(
  waiting: WaitingCreates,
  database: PlantDatabase,
  capacity: Capacity,
  sequence: number,
): Batch {
  const rows: Row[] = []
  const answers: { create: PendingCreate; created: Created }[] = []
  const deadlineMs = performance.now() + DECIDE_MS
  let [chars, taken] = [0, 0]
  try {
    for (const create of waiting.inTurn()) {
      if (chars > BATCH_CHARS || (taken > 0 && performance.now() > deadlineMs)) break
      const { row } = create
      if (capacity.take(row) && database.add(row, sequence)) {
        rows.push(row)
        answers.push({ create, created: 'stored' })
        for (const text of row) chars += text?.length ?? 0
      } else {
        const existing = database.existing(row)
        const created = existing?.isSame ? 'stored' : 'conflict'
        if (!existing) create.reject(new StoreFull())
        else if (existing.sequence === sequence) answers.push({ create, created })
        else create.resolve(created)
      }
      taken += 1
    }
  } catch (error) {
    // They wait again: the caller rejects all that wait.
    for (const { create } of answers) waiting.add(create)
    throw error
  }
  return { rows, answers }
}
