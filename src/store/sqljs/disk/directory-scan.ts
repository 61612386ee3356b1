/* What files a directory has, and how they fit together. */

import { type File, readWhole } from './files.ts'
import { HEAD_MAX_BYTES, type Head, isSamePosition, journalName } from './journal-format.ts'
import { journalNumber, NOWHERE, type Position, PUT_BACK, readHead } from './journal-format.ts'
import { RESTORE, StoreCorrupt } from './journal-format.ts'
import { readSnapshot, SNAPSHOT, type Snapshot } from './snapshot.ts'
import { type StoreDirectory, TEMPORARY } from './store-directory.ts'

const BELONG = `put the files back that belong together, or ${RESTORE}`

const PUT_ITS_BACK = `put the ${SNAPSHOT} back that belongs to it`
const NO_PLANT = `it holds no plant: ${PUT_ITS_BACK}, or move the journal elsewhere`

/** A journal of a directory. Its file is open only while the directory is scanned. */
export interface FoundJournal extends Head {
  readonly number: number
  readonly file: File
  /** Whether it has an id, and no lines. */
  readonly isEmpty: boolean
}

/** Of the journals only the heads are read. */
export interface DirectoryScan {
  readonly directory: StoreDirectory
  readonly snapshot: Snapshot | undefined
  /** The journals of the snapshot's id, in order. */
  readonly journals: readonly FoundJournal[]
  /** The number for a new journal: after all others. */
  readonly nextJournal: number
  /** The unused journal that a start has left which was killed before its snapshot was in place. */
  readonly abandoned: FoundJournal | undefined
  /** Whether creates need a new id, and a snapshot that has it, before the first of them. */
  readonly needsId: boolean
  /** Journals that the snapshot covers, and files that a crash left half written. */
  readonly obsoleteFiles: readonly string[]
}

/**
 * Opens the files of a directory, decides what is to be replayed, and passes it on. It changes
 * nothing. All files are open before one is read, so what a service does meanwhile changes nothing
 * for the reader.
 *
 * Removals reach the disk in any order, so any journal that the snapshot covers may still exist.
 * All files must be of one store. After a snapshot, the journal that begins where it ends must
 * exist, unless the snapshot is `complete`. Otherwise an acknowledged plant is missing. The replay
 * reads all journals, and sees whether each begins where what is before it ends.
 * @throws StoreCorrupt with file and byte.
 */
export async function scanDirectory<T>(
  directory: StoreDirectory,
  use: (scan: DirectoryScan) => Promise<T>,
  read = readSnapshot,
): Promise<T> {
  const { names, files } = await openFiles(directory)
  try {
    const found = await readHeads(directory, files)
    const file = files.get(SNAPSHOT)
    const snapshot = file && (await read(directory.pathOf(SNAPSHOT), file))
    const { obsolete, ...arranged } = arrange(directory, snapshot, found)
    const temporary = names.filter((name) => name.endsWith(TEMPORARY))
    const obsoleteFiles = [...temporary, ...obsolete.map(({ number }) => journalName(number))]
    return await use({ directory, snapshot, ...arranged, obsoleteFiles })
  } finally {
    await closeAll(files)
  }
}

/** The names in a directory, and its snapshot and journals, open, as they were at one moment. */
async function openFiles(directory: StoreDirectory) {
  const isOfStore = (name: string): boolean =>
    name === SNAPSHOT || journalNumber(name) !== undefined
  for (;;) {
    const names = await directory.list()
    const files = new Map<string, File>()
    let failure: unknown
    try {
      for (const name of names.filter(isOfStore))
        files.set(name, await directory.openExisting(name))
    } catch (error) {
      failure = error
    }
    // A compaction replaces the snapshot before it removes a journal, and after it began one. So
    // if the names are the same, the files belong together.
    const now = await directory.list().catch(() => [])
    const [before, after] = [names, now].map((all) => all.filter(isOfStore).sort().join())
    const isSame = before === after
    if (isSame && failure === undefined) return { names, files }
    await closeAll(files)
    if (isSame) throw failure
  }
}

async function closeAll(files: ReadonlyMap<string, File>): Promise<void> {
  // What the close of a file reports that was only read does not matter.
  for (const file of files.values()) await file.close().catch(() => {})
}

/** The journals in order. */
async function readHeads(directory: StoreDirectory, files: ReadonlyMap<string, File>) {
  const journals: FoundJournal[] = []
  for (const [name, file] of files) {
    const number = journalNumber(name)
    if (number === undefined) continue
    const head = readHead(directory.pathOf(name), await readWhole(file, HEAD_MAX_BYTES))
    const isEmpty = head.begin.id > 0 && (await file.lengthBytes()) === head.headBytes
    journals.push({ ...head, number, file, isEmpty })
  }
  return journals.sort((a, b) => a.number - b.number)
}

/** Which journals follow a snapshot, and which may be removed. */
function arrange(
  directory: StoreDirectory,
  snapshot: Snapshot | undefined,
  found: readonly FoundJournal[],
) {
  const from = snapshot?.position ?? NOWHERE
  const needsId = !snapshot || snapshot.complete || from.id === 0
  const { replaced } = snapshot ?? {}
  const obsolete: FoundJournal[] = []
  const own: FoundJournal[] = []
  let abandoned: FoundJournal | undefined
  for (const journal of found) {
    const { begin, number, isEmpty } = journal
    // Nothing was ever written under its id.
    const isUnused = isEmpty && begin.checksum === 0
    const isLast = journal === found.at(-1)
    if (begin.id === from.id) own.push(journal)
    else if (needsId && isLast && isUnused) abandoned = journal
    else if (!needsId && begin.id === replaced?.id && number <= replaced.upToJournal)
      obsolete.push(journal)
    else {
      const its = snapshot ? `beside the snapshot of ${storeOf(from)}` : 'without its snapshot'
      const what = `it is of ${storeOf(begin)}, ${its}`
      const cure = isEmpty && snapshot ? NO_PLANT : cureOf(snapshot)
      throw new StoreCorrupt(directory.pathOf(journalName(number)), 0, what, cure)
    }
  }
  if (snapshot && !snapshot.complete && !own.some(({ begin }) => isSamePosition(begin, from))) {
    const what = `the journal that begins with write ${from.sequence + 1} is missing`
    throw new StoreCorrupt(directory.pathOf(SNAPSHOT), snapshot.trailerAt, what, PUT_BACK)
  }
  const isCovered = (at: number): boolean =>
    (own[at + 1]?.begin.sequence ?? Infinity) <= from.sequence
  obsolete.push(...own.filter((_, at) => isCovered(at)))
  const nextJournal = abandoned?.number ?? 1 + (found.at(-1)?.number ?? 0)
  return { journals: own, nextJournal, abandoned, needsId, obsolete }
}

/** What the operator can do about files that do not belong together. */
export function cureOf(snapshot: Snapshot | undefined, otherwise = BELONG): string {
  if (!snapshot?.complete) return otherwise
  const lacking = 'this export lacks what they hold'
  return `${PUT_ITS_BACK}, or move all journals elsewhere: ${lacking}`
}

function storeOf({ id }: Position): string {
  return id === 0 ? 'a store of an older release' : `store ${id}`
}
