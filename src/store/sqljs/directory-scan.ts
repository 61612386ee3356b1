import { errorCodeOf } from '../../errors.ts'
import {
  HEADER_MAX_BYTES,
  journalName,
  journalNumber,
  readHeader,
  StoreCorrupt,
} from './journal-format.ts'
import { readSnapshot, SNAPSHOT, type Snapshot } from './snapshot.ts'
import { type StoreDirectory, TEMPORARY } from './store-directory.ts'

/** A directory's files and how they fit together. Of the journals only the headers are read. */
export interface DirectoryScan {
  readonly directory: StoreDirectory
  readonly snapshot: Snapshot | undefined
  /** Journals with something that the snapshot does not hold, in order. */
  readonly journals: readonly number[]
  /** The number for a new journal: after all others, or that of a rotation that did not finish. */
  readonly nextJournal: number
  /** Journals that the snapshot covers, and files that a crash left half written. */
  readonly obsoleteFiles: readonly string[]
}

/**
 * Reads a directory and decides what is to be replayed. It changes nothing.
 *
 * Removals reach the disk in any order, so any journal that the snapshot covers may still exist.
 * Without a snapshot, every journal from sequence 1 on must exist. After a snapshot, the journal
 * that begins right after it must exist, unless the snapshot is `complete` and there is none.
 * Otherwise an acknowledged plant is missing.
 *
 * `roomBytes` is room after the snapshot in memory, for what a database made of it will add.
 * @throws StoreCorrupt with file and byte.
 */
export async function scanDirectory(
  directory: StoreDirectory,
  roomBytes = 0,
): Promise<DirectoryScan> {
  const names = await directory.list()
  // Before the snapshot: it then covers any journal that a compaction removes meanwhile.
  const { headers, nextJournal } = await readHeaders(directory, names)
  const snapshot = await readSnapshotIfAny(directory, names, roomBytes)
  const covered = snapshot?.sequence ?? 0
  const isCovered = (at: number): boolean => (headers[at + 1]?.first ?? Infinity) <= covered + 1
  const journals = headers.filter((_, at) => !isCovered(at))
  const [oldest] = journals
  if (oldest && oldest.first > covered + 1) {
    const gap = `it begins with write ${oldest.first}, and what is before it ends with`
    const what = `${gap} write ${covered}: a file is missing`
    throw new StoreCorrupt(directory.pathOf(journalName(oldest.number)), 0, what)
  }
  if (snapshot && !snapshot.complete && !headers.some(({ first }) => first === covered + 1)) {
    const what = `the journal that begins with write ${covered + 1} is missing`
    throw new StoreCorrupt(directory.pathOf(SNAPSHOT), snapshot.trailerAt, what)
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
  directory: StoreDirectory,
  names: readonly string[],
): Promise<{ readonly headers: readonly Header[]; readonly nextJournal: number }> {
  const numbers = names.map(journalNumber).filter((number) => number !== undefined)
  const headers: Header[] = []
  let nextJournal = 1
  for (const number of numbers.sort((a, b) => a - b)) {
    const name = journalName(number)
    const path = directory.pathOf(name)
    const first = readHeader(path, await directory.readStart(name, HEADER_MAX_BYTES))
    if (first !== undefined) {
      headers.push({ number, first })
      nextJournal = number + 1
    } else if (number === numbers.at(-1)) nextJournal = number
    else throw new StoreCorrupt(path, 0, 'its first line is not whole, and a later journal follows')
  }
  return { headers, nextJournal }
}

async function readSnapshotIfAny(
  directory: StoreDirectory,
  names: readonly string[],
  roomBytes: number,
): Promise<Snapshot | undefined> {
  let bytes
  try {
    bytes = await directory.read(SNAPSHOT, roomBytes)
  } catch (error) {
    // Nothing of the store removes a snapshot: one that was there must not be taken for none.
    if (errorCodeOf(error) === 'ENOENT' && !names.includes(SNAPSHOT)) return undefined
    throw error
  }
  return readSnapshot(directory.pathOf(SNAPSHOT), bytes, roomBytes)
}
