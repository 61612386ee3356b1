import { setImmediate as yieldTick } from 'node:timers/promises'
import { errorCodeOf } from '../../errors.ts'
import type { StoredRow } from './database.ts'
import { TEMPORARY, type Files } from './files.ts'
import {
  HEADER_MAX_BYTES,
  type JournalExtent,
  type JournalLine,
  journalName,
  journalNumber,
  readHeader,
  readJournal,
  StoreCorrupt,
} from './journal-format.ts'
import { readSnapshot, SNAPSHOT, type Snapshot } from './snapshot.ts'

/** A directory's files and how they fit together. Of the journals only the headers are read. */
export interface DirectoryScan {
  readonly directory: string
  readonly snapshot: Snapshot | undefined
  /** Journals with something that the snapshot does not hold, in order. */
  readonly journals: readonly number[]
  /** The number for a new journal: after all others, or that of a rotation that did not finish. */
  readonly nextJournal: number
  /** Journals that the snapshot covers, and files that a crash left half written. */
  readonly obsoleteFiles: readonly string[]
}

/** The journal at the end of a replay. */
export interface LastJournal extends JournalExtent {
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

/**
 * Reads a directory and decides what is to be replayed. It changes nothing.
 *
 * Removals reach the disk in any order, so any journal that the snapshot covers may still exist.
 * Without a snapshot, every journal from sequence 1 on must exist. After a snapshot, the journal
 * that begins right after it must exist, unless the snapshot is `complete` and there is none.
 * Otherwise an acknowledged plant is missing.
 * @throws StoreCorrupt with file and byte.
 */
export async function scanDirectory(files: Files, directory: string): Promise<DirectoryScan> {
  const names = await files.list(directory)
  // The journals before the snapshot: one that a compaction removes meanwhile is covered by it.
  const { headers, nextJournal } = await readHeaders(files, directory, names)
  const snapshot = await readSnapshotIfAny(files, `${directory}/${SNAPSHOT}`)
  const covered = snapshot?.sequence ?? 0
  const isCovered = (at: number): boolean => (headers[at + 1]?.first ?? Infinity) <= covered + 1
  const journals = headers.filter((_, at) => !isCovered(at))
  const [oldest] = journals
  if (oldest && oldest.first > covered + 1) {
    const gap = `it begins with write ${oldest.first}, and what is before it ends with`
    const what = `${gap} write ${covered}: a file is missing`
    throw new StoreCorrupt(pathOf(directory, oldest.number), 0, what)
  }
  if (snapshot && !snapshot.complete && !headers.some(({ first }) => first === covered + 1)) {
    const what = `the journal that begins with write ${covered + 1} is missing`
    throw new StoreCorrupt(`${directory}/${SNAPSHOT}`, snapshot.database.length, what)
  }
  return {
    directory,
    snapshot,
    journals: journals.map(({ number }) => number),
    nextJournal,
    obsoleteFiles: [
      ...names.filter((name) => name.endsWith(TEMPORARY)),
      ...headers.filter((_, at) => isCovered(at)).map(({ number }) => journalName(number)),
    ],
  }
}

interface Header {
  readonly number: number
  /** The journal's first sequence. */
  readonly first: number
}

async function readHeaders(
  files: Files,
  directory: string,
  names: readonly string[],
): Promise<{ readonly headers: readonly Header[]; readonly nextJournal: number }> {
  const numbers = names.map(journalNumber).filter((number) => number !== undefined)
  const headers: Header[] = []
  let nextJournal = 1
  for (const number of numbers.sort((a, b) => a - b)) {
    const path = pathOf(directory, number)
    const first = readHeader(path, await files.readStart(path, HEADER_MAX_BYTES))
    if (first !== undefined) {
      headers.push({ number, first })
      nextJournal = number + 1
    } else if (number === numbers.at(-1)) nextJournal = number
    else throw new StoreCorrupt(path, 0, 'its first line is not whole, and a later journal follows')
  }
  return { headers, nextJournal }
}

async function readSnapshotIfAny(files: Files, path: string): Promise<Snapshot | undefined> {
  let bytes
  try {
    bytes = await files.read(path)
  } catch (error) {
    if (errorCodeOf(error) === 'ENOENT') return undefined
    throw error
  }
  return readSnapshot(path, bytes)
}

function pathOf(directory: string, journal: number): string {
  return `${directory}/${journalName(journal)}`
}

/**
 * Inserts the rows of every batch after the snapshot. `onProgress` is called each second with the
 * number of batches so far.
 * @throws StoreCorrupt with file and byte; some rows may have been inserted before.
 */
export async function replay(
  files: Files,
  { directory, snapshot, journals, nextJournal }: DirectoryScan,
  insert: (rows: readonly StoredRow[]) => void,
  onProgress?: (batches: number) => void,
): Promise<Replay> {
  const covered = snapshot?.sequence ?? 0
  const pause = pausing(onProgress)
  const rows = new RowBuffer(insert)
  let [sequence, batches, closedBytes] = [covered, 0, 0]
  let last: LastJournal | undefined
  for (const [i, number] of journals.entries()) {
    const path = pathOf(directory, number)
    const isLast = i === journals.length - 1 && number === nextJournal - 1
    const lines = readJournal(path, await files.read(path), isLast)
    let step = lines.next()
    for (; !step.done; step = lines.next()) {
      if (step.value.sequence <= covered) continue
      rows.add(step.value)
      const paused = pause(++batches)
      if (paused) await paused
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
const PROGRESS_MS = 1000

/** To be called after each batch. Returns a promise to wait for when it is time to yield. */
function pausing(
  onProgress: (batches: number) => void = () => {},
): (batches: number) => Promise<void> | undefined {
  let reportedAtMs = performance.now()
  let yieldedAtMs = reportedAtMs
  return (batches) => {
    const now = performance.now()
    if (now - yieldedAtMs < YIELD_MS) return undefined
    if (now - reportedAtMs >= PROGRESS_MS) {
      onProgress(batches)
      reportedAtMs = now
    }
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
    const byOwner = this.#rows.sort(({ row: [a] }, { row: [b] }) => (a < b ? -1 : a > b ? 1 : 0))
    if (byOwner.length > 0) this.#insert(byOwner)
    this.#rows = []
    this.#chars = 0
  }
}
