/* What a directory holds: its files, all open at one moment, and the replay of its journals. */

import { resolve as resolvePath } from 'node:path'
import type { Log } from '../../telemetry/log.ts'
import { pausing } from './sqlite/sqlite.ts'
import { PlantDatabase } from './memory/database.ts'
import { reasonOf } from '../../errors.ts'
import { type File, type Files, freeBytes, readWhole, syncAbove } from './disk/files.ts'
import { COVERED, goesOn, HEAD_MAX_BYTES, type Head, type Journal } from './disk/journal-format.ts'
import { journalNumber, NOWHERE, type Position } from './disk/journal-format.ts'
import { readHead, readJournal, RESTORE, StoreCorrupt } from './disk/journal-format.ts'
import { readSnapshot, SNAPSHOT, type Snapshot } from './disk/snapshot.ts'
import { type StoreDirectory, TEMPORARY } from './disk/store-directory.ts'

const PROGRESS_MS = 1000
const BELONG = 'put the files back that belong together'

/** A journal of a directory. Its file is open only while the directory is scanned. */
interface FoundJournal extends Head {
  readonly name: string
  readonly number: number
  readonly file: File
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

/** What the journals after a snapshot hold. */
export interface Replay {
  /** Where the directory's history ends. */
  readonly end: Position
  /** The journals that the snapshot does not cover, in order. */
  readonly journals: readonly Journal[]
  /** The number for a new journal: after all others. */
  readonly nextJournal: number
  /** Whether creates need a new id, and a snapshot that has it, before the first of them. */
  readonly needsId: boolean
  /** Journals that the snapshot covers. */
  readonly obsolete: readonly string[]
  /** How many batches were replayed. */
  readonly batches: number
}

/** All that a directory holds, with its plants. */
export type Recovery = Awaited<ReturnType<typeof recover>>

/** Is told how far the replay of a journal is, padding included, and its batches in all. */
export type OnProgress = (name: string, bytes: number, totalBytes: number, batches: number) => void

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
function isNext(begin: Position, from: Position): boolean {
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
    const next = journals[0]?.begin.sequence ?? Infinity
    const isCovered = snapshot !== undefined && next <= snapshot.position.sequence
    const bytes = await readWhole(file, HEAD_MAX_BYTES)
    const head = readHead(directory.pathOf(name), bytes, isCovered ? COVERED : undefined)
    const isLast = journals.every(({ begin }) => begin.id !== head.begin.id)
    journals.unshift({ ...head, name, number, file, isCovered, isLast })
  }
  return journals
}

/**
 * Recovers what a locked directory holds. Damage is found before anything is changed.
 * @throws StoreCorrupt with file and byte.
 */
export async function recover(files: Files, directory: StoreDirectory, log: Log) {
  const startedAtMs = performance.now()
  let toldAtMs = startedAtMs
  const onProgress: OnProgress = (journal, bytes, totalBytes, batches) => {
    if (performance.now() - toldAtMs < PROGRESS_MS) return
    toldAtMs = performance.now()
    log.info('recovering', { batches, journal, bytes, totalBytes })
  }
  const fingerprint = await directory.fingerprintOf(SNAPSHOT)
  const recovery = await scanDirectory(directory, async (scan) => {
    // Later writes rely on it. A copy that was put back by hand may not be durable. A process that
    // was killed may have renamed the snapshot without syncing the directory: the journals that it
    // covers are obsolete only after that.
    await scan.snapshot?.pages.sync()
    for (const { file } of scan.journals) await file.sync()
    await directory.sync()
    // A start that was killed may have made the directory, or someone may have moved it here.
    await syncAbove(files, resolvePath(directory.path))
    return load(scan, onProgress)
  })
  const { snapshot } = recovery
  if (snapshot) directory.watchSnapshot(snapshot.sha, fingerprint)
  // This may make the room that a new journal needs. One that stays does no harm: it may be another
  // program's, and neither creates nor the removal of journals may depend on it.
  for (const name of await directory.list())
    if (name.endsWith(TEMPORARY)) await directory.remove(name).catch(() => {})
  return { ...recovery, ms: Math.round(performance.now() - startedAtMs) }
}

/** Reads the plants of a directory into memory. */
export async function load(scan: DirectoryScan, onProgress: OnProgress) {
  const database = await PlantDatabase.serving(scan.snapshot)
  try {
    return { ...(await replay(scan, database, onProgress)), snapshot: scan.snapshot, database }
  } catch (error) {
    // No garbage collector frees SQLite's memory, and an embedding program tries again.
    database.close()
    throw error
  }
}

/**
 * Inserts the rows of every batch after the snapshot into a database that has the snapshot's.
 * `onProgress` is called several times a second.
 *
 * All journals are one chain, and all are read: each begins where the one before it ends. 3.0.0
 * removed them in any order, so some may be missing that the snapshot covers. Lines after the
 * snapshot have its id. Before its first journal there may be those of another id, without a gap: a
 * kill left them, after a new id was given. A journal of another id without lines may be the last,
 * if a new id is due: a start left it that was killed before its snapshot was in place.
 * @throws StoreCorrupt with file and byte; some rows may have been inserted before.
 */
export async function replay(
  scan: DirectoryScan,
  database: Pick<PlantDatabase, 'insert'>,
  onProgress: OnProgress = () => {},
): Promise<Replay> {
  const from = scan.snapshot?.position ?? NOWHERE
  const needsId = !scan.snapshot || scan.snapshot.complete || from.id === 0
  // Without ids a journal of another store could fit by its sequence alone.
  const hasOwn = from.id > 0 && scan.journals.some(({ begin }) => begin.id === from.id)
  const pause = pausing()
  const journals: Journal[] = []
  const obsolete: string[] = []
  let [batches, nextJournal, previous]: [number, number, Journal | undefined] = [0, 1, undefined]
  for (const found of scan.journals) {
    const { name, number, begin, headBytes, file, isCovered, isLast } = found
    const path = scan.directory.pathOf(name)
    const contents = await readWhole(file)
    const isEmpty = begin.id > 0 && contents.length === headBytes
    const isOwn = begin.id === from.id
    const isUnused = !isOwn && isEmpty && goesOn(begin, endOf(previous, from))
    nextJournal = needsId && isUnused ? number : number + 1
    if (nextJournal === number && found === scan.journals.at(-1)) break
    if (!isOwn && ((needsId && !hasOwn) || previous?.begin.id === from.id)) {
      const its = scan.snapshot ? `beside the snapshot of store ${from.id}` : 'without its snapshot'
      throw misplaced(scan, name, 0, `it is of store ${begin.id}, ${its}`)
    }
    checkPlace(scan, found, previous)
    checkLines(scan, name, 0, begin)
    const lines = readJournal(path, contents, isLast, isCovered ? COVERED : undefined)
    let [step, plants] = [lines.next(), 0]
    for (; !step.done; step = lines.next()) {
      const { rows, endsAt, position } = step.value
      plants += rows.length
      checkLines(scan, name, endsAt, position)
      if (position.sequence <= from.sequence) continue
      refusingTaken(path, endsAt, () => database.insert(rows))
      batches += 1
      const paused = pause()
      if (!paused) continue
      onProgress(name, endsAt, contents.length, batches)
      await paused
    }
    freeBytes(contents)
    previous = { ...step.value, name, number, plants }
    const isPast = isOwn && isLast ? previous.end.sequence < from.sequence : isCovered
    if (isPast) obsolete.push(name)
    else journals.push(previous)
  }
  return { end: endOf(previous, from), journals, nextJournal, needsId, obsolete, batches }
}

/** Where all ends that was read so far. */
function endOf(previous: Journal | undefined, from: Position): Position {
  return previous && previous.end.sequence >= from.sequence ? previous.end : from
}

/** A journal begins where the one before it ends, or where the snapshot has all that is missing. */
function checkPlace(scan: DirectoryScan, found: FoundJournal, previous?: Journal): void {
  const { begin, number, name } = found
  const from = scan.snapshot?.position ?? NOWHERE
  const at = previous?.end ?? { ...NOWHERE, id: begin.id }
  const isPast = at.sequence <= begin.sequence && begin.sequence <= from.sequence
  const follows = number - 1 === previous?.number
  if (follows ? goesOn(begin, at) : at.id === begin.id && isPast) return
  const begins = `begins with write ${begin.sequence + 1}`
  // The start would miss this one, or it has the store's id, which the one before it has not.
  const first = scan.journals.find((each) => isNext(each.begin, from))
  if (previous && (found === first || at.id !== begin.id)) {
    const what = `it ends with write ${at.sequence}, and ${name} ${begins}`
    throw misplaced(scan, previous.name, previous.goodBytes, what)
  }
  const { sequence } = follows ? at : endOf(previous, from)
  const isMissing = begin.sequence > sequence
  const why = isMissing ? 'a file is missing' : 'a file of another store or time is there'
  const what = `it ${begins}, and what is before it ends with write ${sequence}: ${why}`
  throw misplaced(scan, name, 0, what)
}

/** A journal that has a line where the snapshot ends has the same lines up to there. */
function checkLines(scan: DirectoryScan, name: string, byte: number, at: Position): void {
  const { position } = scan.snapshot ?? {}
  if (at.sequence !== position?.sequence || goesOn(at, position)) return
  const what = `it has other lines up to write ${at.sequence} than the snapshot`
  throw misplaced(scan, name, byte, `${what}: both went on apart`)
}

/** A journal is sound, and does not belong to the others. Without it there is a store, or none. */
function misplaced(scan: DirectoryScan, name: string, byte: number, what: string): StoreCorrupt {
  const cure = scan.snapshot ? 'move this file elsewhere' : RESTORE
  return new StoreCorrupt(scan.directory.pathOf(name), byte, what, `${BELONG}, or ${cure}`)
}

/** Files without an id do not say that they are of one store. Their plants do. */
export function refusingTaken(path: string, byte: number, insert: () => void): void {
  try {
    insert()
  } catch (error) {
    const why = reasonOf(error)
    if (!why.includes('UNIQUE')) throw error
    const what = `up to there it has a plant that another file has too (${why})`
    throw new StoreCorrupt(path, byte, what, `${BELONG}, or ${RESTORE}`)
  }
}
