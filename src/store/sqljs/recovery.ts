/* What a directory holds: its journals are replayed after the snapshot, and the rest is removed. */

import { resolve as resolvePath } from 'node:path'
import type { Log } from '../../telemetry/log.ts'
import { pausing } from './sqlite/pausing.ts'
import { PlantDatabase } from './memory/database.ts'
import { type DirectoryScan, type FoundJournal, scanDirectory } from './disk/directory-scan.ts'
import { reasonOf } from '../../errors.ts'
import { type Files, freeBytes, readWhole, syncAbove } from './disk/files.ts'
import { COVERED, goesOn, type Journal, NOWHERE, type Position } from './disk/journal-format.ts'
import { readJournal, RESTORE, StoreCorrupt, TORN, tornName } from './disk/journal-format.ts'
import { NONE, type Replaced, SNAPSHOT, type Snapshot } from './disk/snapshot.ts'
import { takeSqlite } from './sqlite/sqlite.ts'
import { type StoreDirectory, TEMPORARY } from './disk/store-directory.ts'

const PROGRESS_MS = 1000
const MISSING = 'put the missing file back'
const BELONG = 'put the files back that belong together'
const MOVE = 'move this file elsewhere'
const OTHER = 'a file of another store or time is there'

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
export interface Recovery extends Replay {
  readonly snapshot: Snapshot | undefined
  readonly database: PlantDatabase
  /** What the next snapshot says of an earlier id. */
  readonly replaced: Replaced
}

/** Is told how far the replay of a journal is, padding included, and its batches in all. */
export type OnProgress = (name: string, bytes: number, totalBytes: number, batches: number) => void

/**
 * Recovers what a locked directory holds. Damage is found before anything is changed.
 * @throws StoreCorrupt with file and byte.
 */
export async function recover(
  files: Files,
  directory: StoreDirectory,
  log: Log,
): Promise<Recovery> {
  const fingerprint = await directory.fingerprintOf(SNAPSHOT)
  const recovery = await scanDirectory(directory, async (scan) => {
    const { snapshot } = scan
    const database = await PlantDatabase.serving(snapshot, takeSqlite())
    try {
      const replayed = await replay(scan, database, reporting(log))
      await syncFound(scan)
      // A start that was killed may have made the directory, or someone may have moved it here.
      await syncAbove(files, resolvePath(directory.path))
      return { ...replayed, snapshot, database }
    } catch (error) {
      // No garbage collector frees SQLite's memory, and an embedding program tries again.
      database.close()
      throw error
    }
  })
  const { snapshot, journals, obsolete, nextJournal } = recovery
  if (snapshot) directory.watchSnapshot({ own: [snapshot.sha], fingerprint })
  const last = journals.at(-1)
  if (last && last.torn.length > 0) {
    const { name, goodBytes: byte, torn } = last
    const [file, kept] = [name, tornName(last)].map((each) => directory.pathOf(each))
    const what = 'the last line of the journal is torn, and is put aside'
    log.error(`${what}: ${TORN}`, { file, byte, bytes: torn.length, kept })
  }
  const temporary = (await directory.list()).filter((name) => name.endsWith(TEMPORARY))
  const isClean = await removeObsolete(directory, log, [...temporary, ...obsolete])
  const found = { id: snapshot?.position.id ?? 0, upToJournal: nextJournal - 1 }
  const kept = isClean || !snapshot ? NONE : snapshot.replaced
  return { ...recovery, replaced: recovery.needsId ? found : kept }
}

/**
 * Inserts the rows of every batch after the snapshot into a database that has the snapshot's.
 * Removals reach the disk in any order, so any journal that the snapshot covers may still exist.
 * All are read: each must begin where the one before it ends.
 * `onProgress` is called several times a second.
 * @throws StoreCorrupt with file and byte; some rows may have been inserted before.
 */
export async function replay(
  scan: DirectoryScan,
  database: Pick<PlantDatabase, 'insert'>,
  onProgress: OnProgress = () => {},
): Promise<Replay> {
  const { directory, snapshot } = scan
  const { from, own, unused, obsolete, ...rest } = sortOut(scan)
  const pause = pausing()
  const journals: Journal[] = []
  let [previous, batches]: [Journal | undefined, number] = [undefined, 0]
  for (const found of own) {
    const { name, number, file, isCovered, isLast } = found
    const path = directory.pathOf(name)
    checkPlace(path, found, previous, snapshot)
    const contents = await readWhole(file)
    const lines = readJournal(path, contents, isLast, isCovered ? COVERED : undefined)
    let [step, plants] = [lines.next(), 0]
    for (; !step.done; step = lines.next()) {
      const { rows, endsAt, position } = step.value
      plants += rows.length
      checkLines(path, endsAt, position, from)
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
    if (isLast ? previous.end.sequence < from.sequence : isCovered) obsolete.push(name)
    else journals.push(previous)
  }
  const end = later(previous?.end ?? NOWHERE, from)
  if (unused && !goesOn(unused.begin, end)) throw foreign(scan, unused)
  return { ...rest, end, journals, obsolete, batches }
}

function later(a: Position, b: Position): Position {
  return a.sequence > b.sequence ? a : b
}

/**
 * Which journals have the snapshot's id. After a snapshot, the journal that begins where it ends
 * must exist, unless the snapshot is `complete`. Otherwise an acknowledged plant is missing.
 */
function sortOut(scan: DirectoryScan) {
  const { directory, snapshot, journals } = scan
  const from = snapshot?.position ?? NOWHERE
  const needsId = !snapshot || snapshot.complete || from.id === 0
  const { replaced } = snapshot ?? {}
  const own: FoundJournal[] = []
  const obsolete: string[] = []
  // A start left it that was killed before its snapshot was in place.
  let unused: FoundJournal | undefined
  for (const journal of journals) {
    const { begin, name, number, isEmpty } = journal
    if (begin.id === from.id) own.push(journal)
    else if (needsId && isEmpty && journal === journals.at(-1)) unused = journal
    else if (!needsId && begin.id === replaced?.id && number <= replaced.upToJournal)
      obsolete.push(name)
    else throw foreign(scan, journal)
  }
  if (snapshot && !hasNext(scan)) {
    const what = `the journal that begins with write ${from.sequence + 1} is missing`
    const advice = `${MISSING}, or ${RESTORE}`
    throw new StoreCorrupt(directory.pathOf(SNAPSHOT), snapshot.trailerAt, what, advice)
  }
  const nextJournal = unused?.number ?? 1 + (journals.at(-1)?.number ?? 0)
  return { from, own, unused, obsolete, nextJournal, needsId }
}

/** Whether a directory has its snapshot, and what must follow it: the start needs no more files. */
function hasNext({ snapshot, journals }: DirectoryScan): boolean {
  if (!snapshot || snapshot.complete) return snapshot !== undefined
  const { position } = snapshot
  return journals.some(({ begin }) => begin.id === position.id && goesOn(begin, position))
}

/** A journal of another store, or that nothing leads to. */
function foreign(scan: DirectoryScan, { name, begin, isEmpty }: FoundJournal): StoreCorrupt {
  const its = scan.snapshot ? `beside the snapshot of ${storeOf(scan.snapshot.position)}` : ALONE
  const what = `it is of ${storeOf(begin)}, ${its}`
  const advice = `${BELONG}, or ${hasNext(scan) ? MOVE : RESTORE}`
  const path = scan.directory.pathOf(name)
  return new StoreCorrupt(path, 0, what, isEmpty ? `it holds no plant: ${advice}` : advice)
}

const ALONE = 'without its snapshot'

function storeOf({ id }: Position): string {
  return id === 0 ? 'a store of an older release' : `store ${id}`
}

/** A journal begins where the one before it ends. Those between may be missing if it is covered. */
function checkPlace(
  path: string,
  { number, begin }: FoundJournal,
  previous: Journal | undefined,
  snapshot: Snapshot | undefined,
): void {
  const from = snapshot?.position ?? NOWHERE
  const at = previous?.end ?? NOWHERE
  const follows = number - 1 === previous?.number
  const mayFollow = at.sequence <= begin.sequence && begin.sequence <= from.sequence
  if (follows ? goesOn(begin, at) : mayFollow) return checkLines(path, 0, begin, from)
  const end = follows ? at : later(at, from)
  const begins = `it begins with write ${begin.sequence + 1}`
  const ends = `${begins}, and what is before it ends with write ${end.sequence}`
  const isMissing = begin.sequence > end.sequence
  const why = isMissing ? 'a file is missing' : OTHER
  const before = `the snapshot holds what is in ${previous?.name}: move that file elsewhere`
  const advice = `${isMissing ? MISSING : BELONG}, or ${snapshot ? MOVE : RESTORE}`
  const isHeld = previous && begin.sequence <= from.sequence
  throw new StoreCorrupt(path, 0, `${ends}: ${why}`, isHeld ? before : advice)
}

/** A journal that has a line where the snapshot ends has the same lines up to there. */
function checkLines(path: string, byte: number, position: Position, from: Position): void {
  if (position.sequence !== from.sequence || goesOn(position, from)) return
  const what = `it has other lines up to write ${from.sequence} than the snapshot`
  throw new StoreCorrupt(path, byte, `${what}: both went on apart`, `${BELONG}, or ${MOVE}`)
}

/** Files without an id do not say that they are of one store. Their plants do. */
export function refusingTaken(path: string, byte: number, insert: () => void): void {
  try {
    insert()
  } catch (error) {
    const why = reasonOf(error)
    if (!why.includes('UNIQUE')) throw error
    const what = `up to there it has a plant that another file has too (${why})`
    throw new StoreCorrupt(path, byte, `${what}: ${OTHER}`, `${BELONG}, or ${RESTORE}`)
  }
}

/** Logs a line each second. */
function reporting(log: Log): OnProgress {
  let loggedAtMs = performance.now()
  return (journal, bytes, totalBytes, groups) => {
    if (performance.now() - loggedAtMs < PROGRESS_MS) return
    loggedAtMs = performance.now()
    log.info('recovering', { groups, journal, bytes, totalBytes })
  }
}

/**
 * Makes durable what later writes rely on. A copy that was put back by hand may not be. A process
 * that was killed may have renamed the snapshot without syncing the directory: the journals that it
 * covers are obsolete only after that.
 */
async function syncFound({ directory, snapshot, journals }: DirectoryScan): Promise<void> {
  await snapshot?.pages.sync()
  for (const { file } of journals) await file.sync()
  await directory.sync()
}

/**
 * A file that stays does no harm: the next compaction, or start, removes it. Returns whether none
 * does: then the next snapshot need not say which id it replaces.
 */
export async function removeObsolete(directory: StoreDirectory, log: Log, names: Iterable<string>) {
  try {
    for (const name of names) await directory.remove(name)
    await directory.sync()
    return true
  } catch (error) {
    log.error('obsolete files could not be removed; that is tried again later', { error })
    return false
  }
}
