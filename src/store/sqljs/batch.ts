import { hasSameContent, type NewPlant } from '../../plants/plant.ts'
import type { Created } from '../../plants/store.ts'
import { StoreFull } from '../../plants/store.ts'
import type { Capacity } from './capacity.ts'
import type { PlantDatabase, Row } from './database.ts'

/** A create that waits for its batch. */
export interface PendingCreate {
  readonly plant: NewPlant
  readonly row: Row
  readonly resolve: (created: Created) => void
  readonly reject: (error: Error) => void
}

/** Rows that become durable with one write, and the creates to be answered after it. */
export interface Batch {
  readonly rows: readonly Row[]
  readonly answers: readonly { readonly create: PendingCreate; readonly created: Created }[]
}

/** A batch takes no more plants after so much text: its JSON and its inserts then take 10 ms. */
const BATCH_CHARS = 1024 * 1024
/** After so long the batch ends; the other creates wait for the next one. */
const DECIDE_MS = 3

/**
 * Takes creates from the front of `waiting` and decides them, against the database and against the
 * batch itself. What the database alone decides is answered at once, since all of it is durable.
 * What a plant of the batch decides is answered with the batch.
 */
export function takeBatch(
  waiting: PendingCreate[],
  database: PlantDatabase,
  capacity: Capacity,
): Batch {
  const rows: Row[] = []
  const answers: { create: PendingCreate; created: Created }[] = []
  const added = new Map<string, NewPlant>()
  const deadlineMs = performance.now() + DECIDE_MS
  let [chars, taken] = [0, 0]
  capacity.startBatch()
  for (const create of waiting) {
    if (chars > BATCH_CHARS || (taken > 0 && performance.now() > deadlineMs)) break
    const { plant, row } = create
    const [owner, id, name, tag = ''] = row
    const key = `${id} ${owner}`
    const rival = added.get(key)
    const existing = rival ? 'none' : database.existing(row)
    if (rival) answers.push({ create, created: outcomeOf(hasSameContent(rival, plant)) })
    else if (existing !== 'none') create.resolve(outcomeOf(existing === 'same'))
    else if (capacity.take(row)) {
      chars += owner.length + name.length + tag.length
      rows.push(row)
      added.set(key, plant)
      answers.push({ create, created: 'stored' })
      // With the worst case of the batch it does not fit. Retry after it: its real size is less.
    } else if (rows.length > 0) break
    else create.reject(new StoreFull())
    taken += 1
  }
  waiting.splice(0, taken)
  return { rows, answers }
}

function outcomeOf(isSame: boolean): Created {
  return isSame ? 'stored' : 'conflict'
}
