/* What files a directory has, all open at one moment. */

import { type File, readWhole } from './files.ts'
import { COVERED, goesOn, HEAD_MAX_BYTES, type Head, journalNumber } from './journal-format.ts'
import { MAX_NUMBER, type Position, readHead, RESTORE, StoreCorrupt } from './journal-format.ts'
import { readSnapshot, SNAPSHOT, type Snapshot } from './snapshot.ts'
import type { StoreDirectory } from './store-directory.ts'

const RENUMBER = 'rename it to the number after the last one'

/** A journal of a directory. Its file is open only while the directory is scanned. */
export interface FoundJournal extends Head {
  readonly name: string
  readonly number: number
  readonly file: File
  /** Whether it has an id, and no lines. */
  readonly isEmpty: boolean
  /** Whether the snapshot holds all of its plants: it ends before the next one begins. */
  readonly isCovered: boolean
  /** Whether no later one has its id. Only then may its last line be torn. */
  readonly isLast: boolean
}

export interface DirectoryScan {
  readonly directory: StoreDirectory
  readonly snapshot: Snapshot | undefined
  /** All journals, in order. Of each only the head is read. */
  readonly journals: readonly FoundJournal[]
}

/** Whether a name is that of a snapshot or a journal. */
export function isStoreFile(name: string): boolean {
  return name === SNAPSHOT || journalNumber(name) !== undefined
}

/**
 * Opens the files of a directory, and passes them on. It changes nothing. All files are open before
 * one is read, so what a service does meanwhile changes nothing for the reader. What it did before
 * is noticed: a file has vanished, or the journals are no chain. Then a reader without the lock
 * starts over.
 * @throws StoreCorrupt with file and byte.
 */
export async function scanDirectory<T>(
  directory: StoreDirectory,
  use: (scan: DirectoryScan) => Promise<T>,
): Promise<T> {
  const files = new Map<string, File>()
  try {
    for (const name of (await directory.list()).filter(isStoreFile))
      files.set(name, await directory.openExisting(name))
    const file = files.get(SNAPSHOT)
    const snapshot = file && (await readSnapshot(directory.pathOf(SNAPSHOT), file))
    const scan = { directory, snapshot, journals: await readHeads(directory, files, snapshot) }
    if (snapshot) checkNext(scan, snapshot)
    return await use(scan)
  } finally {
    // What the close of a file reports that was only read does not matter.
    for (const file of files.values()) await file.close().catch(() => {})
  }
}

/**
 * The journal that begins where a snapshot ends must exist, unless the snapshot is `complete`.
 * Otherwise an acknowledged plant is missing.
 */
function checkNext(scan: DirectoryScan, { position, complete, trailerAt }: Snapshot): void {
  if (complete || scan.journals.some(({ begin }) => isNext(begin, position))) return
  const what = `the journal that begins with write ${position.sequence + 1} is missing`
  const advice = `put the missing file back, or ${RESTORE}`
  throw new StoreCorrupt(scan.directory.pathOf(SNAPSHOT), trailerAt, what, advice)
}

/** Whether it is there that the journal must begin which follows a snapshot. */
export function isNext(begin: Position, from: Position): boolean {
  return begin.id === from.id && goesOn(begin, from)
}

/** The last one first: where a journal begins says whether the snapshot covers the one before. */
async function readHeads(
  directory: StoreDirectory,
  files: ReadonlyMap<string, File>,
  snapshot: Snapshot | undefined,
): Promise<readonly FoundJournal[]> {
  const numbered = [...files].map(([name, file]) => ({ name, file, number: journalNumber(name) }))
  const journals: FoundJournal[] = []
  for (const { name, file, number } of numbered.sort((a, b) => (b.number ?? 0) - (a.number ?? 0))) {
    if (number === undefined) continue
    const path = directory.pathOf(name)
    if (number > MAX_NUMBER) throw new StoreCorrupt(path, 0, 'its number is too high', RENUMBER)
    const next = journals[0]?.begin.sequence ?? Infinity
    const isCovered = snapshot !== undefined && next <= snapshot.position.sequence
    const bytes = await readWhole(file, HEAD_MAX_BYTES)
    const head = readHead(path, bytes, isCovered ? COVERED : undefined)
    const { id } = head.begin
    const isEmpty = id > 0 && (await file.lengthBytes()) === head.headBytes
    const isLast = journals.every(({ begin }) => begin.id !== id)
    journals.unshift({ ...head, name, number, file, isEmpty, isCovered, isLast })
  }
  return journals
}
