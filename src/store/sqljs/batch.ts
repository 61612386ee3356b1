import type { Turns } from '../../limits/turns.ts'
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

/** Rows that become durable with one write, and the creates to be answered after it. */
export interface Batch {
  readonly rows: readonly Row[]
  readonly decided: readonly { readonly create: PendingCreate; readonly created: Created }[]
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
  waiting: Turns<PendingCreate>,
  database: PlantDatabase,
  capacity: Capacity,
  sequence: number,
): Batch {
  const rows: Row[] = []
  const decided: { create: PendingCreate; created: Created }[] = []
  const deadlineMs = performance.now() + DECIDE_MS
  let [chars, taken] = [0, 0]
  try {
    for (let create = waiting.first; create; create = waiting.first) {
      if (chars > BATCH_CHARS || (taken > 0 && performance.now() > deadlineMs)) break
      const { row } = create
      if (capacity.tryReserve(row) && database.add(row, sequence)) {
        rows.push(row)
        decided.push({ create, created: 'stored' })
        for (const text of row) chars += text?.length ?? 0
      } else {
        const existing = database.existing(row)
        const created = existing?.isSame ? 'stored' : 'conflict'
        if (!existing) create.reject(new StoreFull())
        else if (existing.sequence === sequence) decided.push({ create, created })
        else create.resolve(created)
      }
      waiting.shift()
      taken += 1
    }
  } catch (error) {
    // They wait again: the caller rejects all that wait.
    for (const { create } of decided) waiting.add(create.row[0], create)
    throw error
  }
  return { rows, decided }
}
