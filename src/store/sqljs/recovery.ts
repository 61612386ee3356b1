/* What a directory holds: its journals are replayed after the snapshot, and the rest is removed. */

import { resolve as resolvePath } from 'node:path'
import type { Log } from '../../telemetry/log.ts'
import { pausing } from './sqlite/pausing.ts'
import { PlantDatabase } from './memory/database.ts'
import { cureOf, type DirectoryScan, scanDirectory } from './disk/directory-scan.ts'
import { reasonOf } from '../../errors.ts'
import { type Files, freeBytes, readWhole, syncAbove } from './disk/files.ts'
import { isSamePosition, type Journal, journalName, NOWHERE } from './disk/journal-format.ts'
import { type Position, PUT_BACK, readJournal } from './disk/journal-format.ts'
import { StoreCorrupt, TORN, type TornJournal, tornName } from './disk/journal-format.ts'
import { SNAPSHOT, type Snapshot } from './disk/snapshot.ts'
import { takeSqlite } from './sqlite/sqlite.ts'
import type { StoreDirectory } from './disk/store-directory.ts'

const PROGRESS_MS = 1000

/** What the journals after a snapshot hold. */
export interface Replay {
  /** Where the directory's history ends. */
  readonly end: Position
  readonly closed: readonly Journal[]
  /** The last journal. Undefined if the snapshot holds all of it. */
  readonly last: TornJournal | undefined
  /** How many batches were replayed. */
  readonly batches: number
}

/** All that a directory holds, with its plants. */
export interface Recovery extends DirectoryScan, Replay {
  readonly database: PlantDatabase
}

/** Is told how far the replay of a journal is, padding included, and its batches in all. */
export type OnProgress = (name: string, bytes: number, totalBytes: number, batches: number) => void

/**
 * Recovers what a locked directory holds. Damage is found before anything is changed.
 * @throws StoreCorrupt with file and byte.
 */
export async function recover(files: Files, directory: StoreDirectory, log: Log) {
  const fingerprint = await directory.fingerprintOf(SNAPSHOT)
  const recovery: Recovery = await scanDirectory(directory, async (scan) => {
    const database = await PlantDatabase.serving(scan.snapshot, takeSqlite())
    try {
      const replayed = await replay(scan, database, reporting(log))
      await syncFound(scan)
      // A start that was killed may have made the directory, or someone may have moved it here.
      await syncAbove(files, resolvePath(directory.path))
      return { ...scan, ...replayed, database }
    } catch (error) {
      // No garbage collector frees SQLite's memory, and an embedding program tries again.
      database.close()
      throw error
    }
  })
  const { snapshot, last, obsoleteFiles } = recovery
  if (snapshot) directory.watchSnapshot({ own: [snapshot.sha], fingerprint })
  if (last && last.torn.length > 0) {
    const { number, goodBytes: byte, torn } = last
    const [file, kept] = [journalName(number), tornName(last)].map((name) => directory.pathOf(name))
    const what = 'the last line of the journal is torn, and is put aside'
    log.error(`${what}: ${TORN}`, { file, byte, bytes: torn.length, kept })
  }
  await removeObsolete(directory, log, obsoleteFiles)
  return recovery
}

/**
 * Inserts the rows of every batch after the snapshot into a database that has the snapshot's.
 * `onProgress` is called several times a second.
 * @throws StoreCorrupt with file and byte; some rows may have been inserted before.
 */
export async function replay(
  { directory, snapshot, journals, nextJournal, abandoned }: DirectoryScan,
  database: Pick<PlantDatabase, 'insert'>,
  onProgress: OnProgress = () => {},
): Promise<Replay> {
  const from = snapshot?.position ?? NOWHERE
  const pause = pausing()
  const closed: Journal[] = []
  // Where the journals end, and which is the last.
  let [at, before, batches] = [NOWHERE, NaN, 0]
  let last: Replay['last']
  for (const { number, file, begin } of journals) {
    const name = journalName(number)
    const path = directory.pathOf(name)
    const follows = number === before + 1
    // Removals reach the disk in any order: journals may be missing that the snapshot covers.
    const mayFollow = at.sequence <= begin.sequence && begin.sequence <= from.sequence
    if (follows ? !isSamePosition(begin, at) : !mayFollow)
      throw gap(path, begin, follows ? at : later(at, from), snapshot)
    /** A journal that has a line where the snapshot ends has the same lines up to there. */
    const checkLines = (position: Position, byte: number): void => {
      if (position.sequence !== from.sequence || isSamePosition(position, from)) return
      const what = `it has other lines up to write ${from.sequence} than the snapshot`
      throw new StoreCorrupt(path, byte, `${what}: both went on apart`, cureOf(snapshot))
    }
    checkLines(begin, 0)
    const contents = await readWhole(file)
    const isLastJournal = number === nextJournal - 1
    const lines = readJournal(path, contents, isLastJournal)
    let [step, plants] = [lines.next(), 0]
    for (; !step.done; step = lines.next()) {
      const { rows, endsAt, position } = step.value
      plants += rows.length
      checkLines(position, endsAt)
      if (position.sequence <= from.sequence) continue
      try {
        database.insert(rows)
      } catch (error) {
        const why = reasonOf(error)
        throw why.includes('UNIQUE') ? takenId(path, endsAt, why) : error
      }
      batches += 1
      const paused = pause()
      if (!paused) continue
      onProgress(name, endsAt, contents.length, batches)
      await paused
    }
    const extent = step.value
    at = extent.end
    before = number
    // No journal can go on that ends before the snapshot.
    if (isLastJournal && at.sequence >= from.sequence) last = { ...extent, number, plants }
    else if (at.sequence > from.sequence) closed.push({ ...extent, number, plants })
    freeBytes(contents)
  }
  const end = later(at, from)
  // One that begins with write 1 is of a store that never had a plant.
  if (abandoned && ![0, end.sequence].includes(abandoned.begin.sequence))
    throw gap(directory.pathOf(journalName(abandoned.number)), abandoned.begin, end, snapshot)
  return { end, closed, last, batches }
}

function later(a: Position, b: Position): Position {
  return a.sequence > b.sequence ? a : b
}

/** A journal does not begin where what is before it ends. */
function gap(path: string, begin: Position, end: Position, snapshot?: Snapshot): StoreCorrupt {
  const begins = `it begins with write ${begin.sequence + 1}`
  const ends = `${begins}, and what is before it ends with write ${end.sequence}`
  const isMissing = begin.sequence > end.sequence
  const why = isMissing ? 'a file is missing' : 'a file of another store or time is there'
  const advice = cureOf(snapshot, isMissing ? PUT_BACK : undefined)
  return new StoreCorrupt(path, 0, `${ends}: ${why}`, advice)
}

/** Files without an id do not say that they are of one store. Their plants do. */
function takenId(path: string, byte: number, why: string): StoreCorrupt {
  const what = `a plant of the line before it is stored already (${why})`
  return new StoreCorrupt(path, byte, `${what}: a file of another store or time is there`)
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

/** A file that stays does no harm: the next compaction, or start, removes it. */
export async function removeObsolete(directory: StoreDirectory, log: Log, names: Iterable<string>) {
  try {
    for (const name of names) await directory.remove(name)
  } catch (error) {
    log.error('obsolete files could not be removed; that is tried again later', { error })
  }
}
