import { setImmediate as yieldTick } from 'node:timers/promises'
import type { StoredRow } from './database.ts'
import type { DirectoryScan } from './directory-scan.ts'
import {
  type JournalExtent,
  type JournalLine,
  journalName,
  readJournal,
  StoreCorrupt,
} from './journal-format.ts'

/** The journal at the end of a replay. */
interface LastJournal extends JournalExtent {
  readonly number: number
}

export interface Replay {
  /** The last sequence in the directory, 0 for an empty store. */
  readonly sequence: number
  /** The last journal, if it has a whole header. */
  readonly last: LastJournal | undefined
  /** How many batches were replayed. */
  readonly batches: number
  /** The length of the journals before the last one. */
  readonly closedBytes: number
}

/** How far a replay is: batches in all, and bytes of the journal that it reads. */
export interface ReplayProgress {
  readonly batches: number
  readonly journal: string
  readonly bytes: number
  /** The length of this journal, padding included. */
  readonly totalBytes: number
  /** How long these bytes took. */
  readonly ms: number
}

/**
 * Inserts the rows of every batch after the snapshot. `onProgress` is called several times a
 * second.
 * @throws StoreCorrupt with file and byte; some rows may have been inserted before.
 */
export async function replay(
  { directory, snapshot, journals, nextJournal }: DirectoryScan,
  insert: (rows: readonly StoredRow[]) => void,
  onProgress: (progress: ReplayProgress) => void = () => {},
): Promise<Replay> {
  const covered = snapshot?.sequence ?? 0
  const pause = pausing()
  const rows = new RowBuffer(insert)
  let [sequence, batches, closedBytes] = [covered, 0, 0]
  let last: LastJournal | undefined
  for (const [i, number] of journals.entries()) {
    const name = journalName(number)
    const path = directory.pathOf(name)
    const isLast = i === journals.length - 1 && number === nextJournal - 1
    const contents = await directory.read(name)
    const startedAtMs = performance.now()
    const lines = readJournal(path, contents, isLast)
    let step = lines.next()
    for (; !step.done; step = lines.next()) {
      if (step.value.sequence <= covered) continue
      rows.add(step.value)
      batches += 1
      const paused = pause()
      if (!paused) continue
      const [bytes, totalBytes] = [step.value.endsAt, contents.length]
      const ms = performance.now() - startedAtMs
      onProgress({ batches, journal: name, bytes, totalBytes, ms })
      await paused
    }
    const extent = step.value
    if (i > 0 && extent.firstSequence !== sequence + 1) {
      const gap = `it begins with write ${extent.firstSequence}`
      const before = `the journal before it ends with write ${sequence}`
      throw new StoreCorrupt(path, 0, `${gap}, and ${before}`)
    }
    sequence = Math.max(sequence, extent.nextSequence - 1)
    if (isLast) last = { ...extent, number }
    else closedBytes += extent.goodBytes
  }
  rows.flush()
  return { sequence, last, batches, closedBytes }
}

/** A replay yields after so long: a probe takes several ticks, and must be answered in a second. */
const YIELD_MS = 50

/** To be called after each batch. Returns a promise to wait for when it is time to yield. */
function pausing(): () => Promise<void> | undefined {
  let yieldedAtMs = performance.now()
  return () => {
    if (performance.now() - yieldedAtMs < YIELD_MS) return undefined
    return yieldTick().then(() => {
      yieldedAtMs = performance.now()
    })
  }
}

/**
 * Rows that are inserted at once: many, so that those of one owner are together, but few or short
 * enough to take little memory and to delay no probe.
 */
const INSERT_ROWS = 4_000
const INSERT_CHARS = 4 * 1024 * 1024

/** Gathers rows and inserts them by owner: neighbours in the tree then follow each other. */
class RowBuffer {
  readonly #insert: (rows: readonly StoredRow[]) => void
  #rows: StoredRow[] = []
  #chars = 0

  constructor(insert: (rows: readonly StoredRow[]) => void) {
    this.#insert = insert
  }

  add({ sequence, rows }: JournalLine): void {
    for (const row of rows()) {
      this.#rows.push({ row, sequence })
      for (const text of row) this.#chars += text?.length ?? 0
    }
    if (this.#rows.length >= INSERT_ROWS || this.#chars >= INSERT_CHARS) this.flush()
  }

  flush(): void {
    const byOwner = this.#rows.sort(({ row: [a] }, { row: [b] }) => {
      if (a === b) return 0
      return a < b ? -1 : 1
    })
    if (byOwner.length > 0) this.#insert(byOwner)
    this.#rows = []
    this.#chars = 0
  }
}
