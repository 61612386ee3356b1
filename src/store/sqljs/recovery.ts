/* What a directory holds: its journals are replayed after the snapshot, and the rest is removed. */

import { resolve as resolvePath } from 'node:path'
import type { Log } from '../../telemetry/log.ts'
import { pausing } from './pausing.ts'
import { PlantDatabase } from './database.ts'
import { type DirectoryScan, scanDirectory } from './directory-scan.ts'
import { type Files, freeBytes, syncAbove } from './files.ts'
import { type JournalExtent, journalName, PUT_BACK, readJournal } from './journal-format.ts'
import { readHeader, StoreCorrupt, TORN } from './journal-format.ts'
import { takeSqlite } from './sqlite.ts'
import { SNAPSHOT } from './snapshot.ts'
import type { StoreDirectory } from './store-directory.ts'

const PROGRESS_MS = 1000

/** What the journals after a snapshot hold. */
export interface Replay {
  /** The last sequence in the directory, 0 for an empty store. */
  readonly sequence: number
  /** The last journal, and how many plants it has. Undefined if the snapshot holds all of it. */
  readonly last: (JournalExtent & { readonly number: number; readonly plants: number }) | undefined
  /** How many batches were replayed. */
  readonly batches: number
  /** The length of the journals before the last one. */
  readonly closedBytes: number
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
  const { last, obsoleteFiles } = recovery
  if (last && last.torn.length > 0) {
    const { number, goodBytes: byte, torn, tornName } = last
    const [file, kept] = [journalName(number), tornName].map((name) => directory.pathOf(name))
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
  { directory, snapshot, journals, nextJournal }: DirectoryScan,
  database: Pick<PlantDatabase, 'insert'>,
  onProgress: OnProgress = () => {},
): Promise<Replay> {
  const covered = snapshot?.sequence ?? 0
  const pause = pausing()
  let [sequence, batches, closedBytes] = [covered, 0, 0]
  let last: Replay['last']
  for (const [i, number] of journals.entries()) {
    const name = journalName(number)
    const path = directory.pathOf(name)
    const isLastJournal = number === nextJournal - 1
    const contents = await directory.read(name)
    const firstSequence = readHeader(path, contents)
    // The first one too: since the scan, a stop and a start may have made another one of its name.
    const begins = `it begins with write ${firstSequence}`
    const ends = `${begins}, and what is before it ends with write ${sequence}`
    if (firstSequence > sequence + 1)
      throw new StoreCorrupt(path, 0, `${ends}: a file is missing`, PUT_BACK)
    if (i > 0 && firstSequence <= sequence)
      throw new StoreCorrupt(path, 0, `${ends}: a file of another store or time is there`)
    const lines = readJournal(path, contents, isLastJournal)
    let [step, plants] = [lines.next(), 0]
    for (; !step.done; step = lines.next()) {
      const { rows, endsAt } = step.value
      plants += rows.length
      if (step.value.sequence <= covered) continue
      database.insert(rows)
      batches += 1
      const paused = pause()
      if (!paused) continue
      onProgress(name, endsAt, contents.length, batches)
      await paused
    }
    const extent = step.value
    sequence = Math.max(sequence, extent.nextSequence - 1)
    // No journal can go on that ends before the snapshot.
    const isAtEnd = extent.nextSequence === sequence + 1
    if (isLastJournal && isAtEnd) last = { ...extent, number, plants }
    else closedBytes += extent.goodBytes
    freeBytes(contents)
  }
  return { sequence, last, batches, closedBytes }
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
  for (const name of [...(snapshot ? [SNAPSHOT] : []), ...journals.map(journalName)]) {
    const file = await directory.openExisting(name)
    await file.sync().finally(file.close)
  }
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
