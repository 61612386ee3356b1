/* Which waiting creates form a batch, and what becomes of each. */

import type { Turns } from '../../limits/turns.ts'
import { type Created, StoreFull } from '../../plants/store.ts'
import type { PlantDatabase } from './database.ts'
import type { Row } from './journal-format.ts'
import { PAGE_BYTES } from './page-file.ts'

/** A create that waits for its batch. */
export interface PendingCreate {
  readonly row: Row
  readonly resolve: (created: Created) => void
  readonly reject: (error: Error) => void
}

/** Rows that become durable with one write, and the creates to be answered after it. */
export class Batch {
  readonly rows: Row[] = []
  readonly decided: { readonly create: PendingCreate; readonly created: Created }[] = []

  rejectAll(error: Error): void {
    for (const { create } of this.decided) create.reject(error)
  }
}

/** A batch takes no more plants after these: its line and its insertion take a few ms each. */
const BATCH_ROWS = 500
const BATCH_CHARS = 1024 * 1024
/** After this long the batch ends; the other creates wait for the next one. */
const DECIDE_MS = 3
/** How much of a long row one overflow page holds. */
const OVERFLOW_BYTES = PAGE_BYTES - 4
/** Pages that one insert may add when it splits a leaf and the pages above it. */
const SPLIT_PAGES = 3

/**
 * Takes waiting creates, owner by owner, and decides them. If a durable plant has the id, the
 * create is answered at once. If a plant of this batch has it, the create is answered with it.
 */
export function fillBatch(
  { rows, decided }: Batch,
  waiting: Turns<PendingCreate>,
  database: PlantDatabase,
  maxPages: number,
): void {
  const added = new Map<string, Row>()
  const deadlineMs = performance.now() + DECIDE_MS
  let [taken, chars, pages] = [0, 0, database.usedPages]
  for (let create = waiting.first; create; create = waiting.first) {
    if (rows.length === BATCH_ROWS || chars > BATCH_CHARS) break
    if (taken++ > 0 && performance.now() > deadlineMs) break
    const { row } = create
    const [owner, id] = row
    const key = `${id} ${owner}`
    const other = added.get(key)
    const durable = other ? undefined : database.existing(row)
    if (other) decided.push({ create, created: isSame(row, other) ? 'stored' : 'conflict' })
    else if (durable) create.resolve(durable === 'same' ? 'stored' : 'conflict')
    else if (pages + mostPages(row) <= maxPages) {
      added.set(key, row)
      rows.push(row)
      decided.push({ create, created: 'stored' })
      for (const text of row) chars += text?.length ?? 0
      pages += mostPages(row)
    }
    // After this batch it is known how many pages its rows have taken.
    else if (rows.length > 0) break
    else create.reject(new StoreFull())
    waiting.shift()
  }
}

/** How many pages the database may need for a row. */
export function mostPages([owner, , name, tag = '']: Row): number {
  const bytes = Buffer.byteLength(owner) + Buffer.byteLength(name) + Buffer.byteLength(tag)
  return Math.ceil(bytes / OVERFLOW_BYTES) + SPLIT_PAGES
}

function isSame([, , name, tag]: Row, [, , otherName, otherTag]: Row): boolean {
  return name === otherName && tag === otherTag
}
