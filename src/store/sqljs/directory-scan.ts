/* What files a directory has, and how they fit together. */

import { HEADER_MAX_BYTES, journalName, journalNumber } from './journal-format.ts'
import { PUT_BACK, readHeader, StoreCorrupt } from './journal-format.ts'
import { readSnapshot, SNAPSHOT, type Snapshot } from './snapshot.ts'
import { type StoreDirectory, TEMPORARY } from './store-directory.ts'

/** Of the journals only the headers are read. */
export interface DirectoryScan {
  readonly directory: StoreDirectory
  readonly snapshot: Snapshot | undefined
  /** Journals with something that the snapshot does not hold, in order. */
  readonly journals: readonly number[]
  /** The number for a new journal: after all others. */
  readonly nextJournal: number
  /** Journals that the snapshot covers, and files that a crash left half written. */
  readonly obsoleteFiles: readonly string[]
}

/**
 * Reads a directory, decides what is to be replayed, and passes it on, with the snapshot's file
 * open meanwhile. It changes nothing.
 *
 * Removals reach the disk in any order, so any journal that the snapshot covers may still exist.
 * After a snapshot, the journal that begins right after it must exist, unless the snapshot is
 * `complete` and there is none. Otherwise an acknowledged plant is missing. The replay sees whether
 * each journal begins where what is before it ends.
 * @throws StoreCorrupt with file and byte.
 */
export async function scanDirectory<T>(
  directory: StoreDirectory,
  use: (scan: DirectoryScan) => Promise<T>,
): Promise<T> {
  const names = await directory.list()
  // Read before the snapshot: a journal that a compaction removes in between is in that snapshot.
  const headers = await readHeaders(directory, names)
  const file = names.includes(SNAPSHOT) ? await directory.openExisting(SNAPSHOT) : undefined
  try {
    const snapshot = file && (await readSnapshot(directory.pathOf(SNAPSHOT), file))
    const next = 1 + (snapshot?.sequence ?? 0)
    if (snapshot && !snapshot.complete && !headers.some(({ first }) => first === next)) {
      const what = `the journal that begins with write ${next} is missing`
      throw new StoreCorrupt(directory.pathOf(SNAPSHOT), snapshot.trailerAt, what, PUT_BACK)
    }
    const journals: number[] = []
    const obsoleteFiles = names.filter((name) => name.endsWith(TEMPORARY))
    for (const [at, { number }] of headers.entries()) {
      const isCovered = (headers[at + 1]?.first ?? Infinity) <= next
      if (isCovered) obsoleteFiles.push(journalName(number))
      else journals.push(number)
    }
    const nextJournal = 1 + (journals.at(-1) ?? 0)
    return await use({ directory, snapshot, journals, nextJournal, obsoleteFiles })
  } finally {
    // What the close of a file reports that was only read does not matter.
    await file?.close().catch(() => {})
  }
}

/** The journals in order, each with its first sequence. */
async function readHeaders(directory: StoreDirectory, names: readonly string[]) {
  const numbers = names.map(journalNumber).filter((number) => number !== undefined)
  const headers: { readonly number: number; readonly first: number }[] = []
  for (const number of numbers.sort((a, b) => a - b)) {
    const name = journalName(number)
    const start = await directory.read(name, HEADER_MAX_BYTES)
    headers.push({ number, first: readHeader(directory.pathOf(name), start) })
  }
  return headers
}
