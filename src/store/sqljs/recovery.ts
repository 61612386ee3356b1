import { resolve as resolvePath } from 'node:path'
import { setImmediate as yieldTick } from 'node:timers/promises'
import { errorCodeOf } from '../../errors.ts'
import type { Log } from '../../ops/log.ts'
import { PlantDatabase, type StoredRow } from './database.ts'
import { type Files, syncAbove } from './files.ts'
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
import { takeSqlite } from './sqlite.ts'
import { type StoreDirectory, TEMPORARY } from './store-directory.ts'

/* What a directory holds: its files are scanned, the journals replayed, and the rest removed. */

const PROGRESS_MS = 1000

/** A directory's files and how they fit together. Of the journals only the headers are read. */
interface DirectoryScan {
  readonly directory: StoreDirectory
  readonly snapshot: Snapshot | undefined
  /** Journals with something that the snapshot does not hold, in order. */
  readonly journals: readonly number[]
  /** The number for a new journal: after all others, or that of a rotation that did not finish. */
  readonly nextJournal: number
  /** Journals that the snapshot covers, and files that a crash left half written. */
  readonly obsoleteFiles: readonly string[]
}

/** What the journals after a snapshot hold. */
interface Replay {
  /** The last sequence in the directory, 0 for an empty store. */
  readonly sequence: number
  /** The last journal, if it has a whole header. */
  readonly last: (JournalExtent & { readonly number: number }) | undefined
  /** How many batches were replayed. */
  readonly batches: number
  /** The length of the journals before the last one. */
  readonly closedBytes: number
}

/** All that a directory holds, with the plants in memory. */
export interface Recovery extends DirectoryScan, Replay {
  readonly database: PlantDatabase
}

/** How far a replay is: batches in all, and bytes of the journal that it reads. */
interface ReplayProgress {
  readonly batches: number
  readonly journal: string
  readonly bytes: number
  /** The length of this journal, padding included. */
  readonly totalBytes: number
  /** How long these bytes took. */
  readonly ms: number
}
type OnProgress = (progress: ReplayProgress) => void

/**
 * Recovers what a locked directory holds. Damage is found before anything is changed.
 * @throws StoreCorrupt with file and byte.
 */
export async function recover(
  files: Files,
  directory: StoreDirectory,
  log: Log,
): Promise<Recovery> {
  const scan = await scanDirectory(directory)
  if (scan.snapshot === undefined && scan.journals.length === 0)
    await syncAbove(files, resolvePath(directory.path))
  const serve = (file?: Uint8Array) => PlantDatabase.serving(file, takeSqlite())
  const recovery = await rebuild(scan, serve, reporting(log))
  logTorn(recovery, log)
  await removeObsolete(recovery, log)
  return recovery
}

/**
 * Makes a database of what a scan found. The caller closes it.
 * @throws StoreCorrupt with file and byte.
 */
export async function rebuild(
  scan: DirectoryScan,
  make: (snapshot?: Uint8Array) => Promise<PlantDatabase>,
  onProgress?: OnProgress,
): Promise<Recovery> {
  const database = await make(scan.snapshot?.database)
  try {
    const insert = database.insert.bind(database)
    return { ...scan, ...(await replay(scan, insert, onProgress)), database }
  } catch (error) {
    // No garbage collector frees SQLite's memory, and the caller may try again.
    database.close()
    throw error
  }
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
  // Read before the snapshot: a journal that a compaction removes in between is in that snapshot.
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

/**
 * Inserts the rows of every batch after the snapshot. `onProgress` is called several times a
 * second.
 * @throws StoreCorrupt with file and byte; some rows may have been inserted before.
 */
export async function replay(
  { directory, snapshot, journals, nextJournal }: DirectoryScan,
  insert: (rows: readonly StoredRow[]) => void,
  onProgress: OnProgress = () => {},
): Promise<Replay> {
  const covered = snapshot?.sequence ?? 0
  const pause = pausing()
  const rows = new RowBuffer(insert)
  let [sequence, batches, closedBytes] = [covered, 0, 0]
  let last: Replay['last']
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

/** A replay yields after this long: a probe takes several ticks, and has a second for all. */
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

/** Logs a line each second. */
function reporting(log: Log): OnProgress {
  let loggedAtMs = performance.now()
  return ({ batches: groups, journal, bytes, totalBytes, ms }) => {
    if (performance.now() - loggedAtMs < PROGRESS_MS) return
    loggedAtMs = performance.now()
    const bytesPerSecond = Math.round((bytes * 1000) / ms)
    const secondsLeft = Math.ceil(((totalBytes - bytes) * ms) / bytes / 1000)
    const fields = { groups, journal, bytes, totalBytes, bytesPerSecond, secondsLeft }
    log.info('recovering', fields)
  }
}

function logTorn({ directory, last }: Recovery, log: Log): void {
  if (!last || last.tornBytes === 0) return
  const { number, goodBytes: byte, tornBytes: bytes } = last
  const what = 'the last line of the journal is torn: it was never acknowledged, and is cut off'
  log.error(what, { file: directory.pathOf(journalName(number)), byte, bytes })
}

/** A failure here does not keep the store from serving: the next start tries again. */
async function removeObsolete(
  { directory, obsoleteFiles }: DirectoryScan,
  log: Log,
): Promise<void> {
  if (obsoleteFiles.length === 0) return
  try {
    // A process that was killed may have renamed the snapshot without syncing the directory. The
    // journals that it covers are obsolete only after that.
    await directory.sync()
    for (const name of obsoleteFiles) await directory.remove(name)
  } catch (error) {
    const fields = { directory: directory.path, files: obsoleteFiles, error }
    log.error('obsolete files could not be removed', fields)
  }
}
