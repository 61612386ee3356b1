/* Which waiting creates form a batch, and what becomes of each. */

import type { Turns } from '../../../limits/turns.ts'
import { type Created, StoreFull } from '../../../plants/store.ts'
import type { PlantDatabase } from './database.ts'
import type { Row } from '../disk/journal-format.ts'
import { PAGE_BYTES } from '../disk/page-file.ts'

/** A create that waits for its batch. */
export interface PendingCreate {
  readonly row: Row
  readonly resolve: (created: Created) => void
  readonly reject: (error: Error) => void
}

/** A batch takes no more after these: its line, insertion and answers take a few ms each. */
const BATCH_CREATES = 500
const BATCH_CHARS = 1024 * 1024
/** After this long the batch ends; the other creates wait for the next one. */
const DECIDE_MS = 3
/** How much of a long row one overflow page holds. */
const OVERFLOW_BYTES = PAGE_BYTES - 4
/** Pages that one insert may add when it splits a leaf and the pages above it. */
const SPLIT_PAGES = 3

/** Creates that are answered together, and the rows that one write makes durable for them. */
export class Batch {
  readonly rows: Row[] = []
  readonly decided: { readonly create: PendingCreate; readonly created: Created }[] = []
  /** What the owners of these rows have with them, if owners are limited. */
  readonly ownerBytes = new Map<string, number>()

  /**
   * Takes waiting creates, owner by owner, and decides each by the plant that has its id: a durable
   * one, or one of this batch. A create without room is refused at once.
   */
  fill(
    waiting: Turns<PendingCreate>,
    database: PlantDatabase,
    maxDataBytes: number,
    maxOwnerBytes = Infinity,
  ): void {
    const { rows, decided, ownerBytes } = this
    const added = new Map<string, Row>()
    const deadlineMs = performance.now() + DECIDE_MS
    let [chars, pages] = [0, database.usedPages]
    for (let create = waiting.first; create; create = waiting.first) {
      const { row } = create
      const [owner, id, name, tag = ''] = row
      const key = `${id} ${owner}`
      const other = added.get(key)
      const found = other ? compared(row, other) : database.existing(row)
      const rowBytes = Buffer.byteLength(owner) + Buffer.byteLength(name) + Buffer.byteLength(tag)
      // How many pages the database may need for it.
      const rowPages = Math.ceil(rowBytes / OVERFLOW_BYTES) + SPLIT_PAGES
      const owned = found ? undefined : database.ownerBytes?.of(owner, rowBytes)
      const ownerTotal = owned ? (ownerBytes.get(owner) ?? owned.bytes) + owned.added : 0
      if (found) decided.push({ create, created: found === 'same' ? 'stored' : 'conflict' })
      // Answered with the batch: the owner may have this much only if it becomes durable.
      else if (ownerTotal > maxOwnerBytes) decided.push({ create, created: 'overQuota' })
      else if ((pages + rowPages) * PAGE_BYTES <= maxDataBytes) {
        added.set(key, row)
        if (owned) ownerBytes.set(owner, ownerTotal)
        rows.push(row)
        decided.push({ create, created: 'stored' })
        chars += owner.length + name.length + tag.length
        pages += rowPages
      }
      // After this batch it is known how many pages its rows have taken.
      else if (rows.length > 0) break
      else create.reject(new StoreFull())
      waiting.shift()
      if (decided.length === BATCH_CREATES || chars > BATCH_CHARS) break
      if (performance.now() > deadlineMs) break
    }
  }
}

function compared([, , name, tag]: Row, [, , otherName, otherTag]: Row): 'same' | 'other' {
  return name === otherName && tag === otherTag ? 'same' : 'other'
}
