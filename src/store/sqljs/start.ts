import { dirname, resolve as resolvePath } from 'node:path'
import { errorCodeOf } from '../../errors.ts'
import type { Log } from '../../ops/log.ts'
import { PlantDatabase, type StoredRow } from './database.ts'
import type { Files } from './files.ts'
import { journalName } from './journal-format.ts'
import type { Journal } from './journal-writer.ts'
import { type DirectoryScan, scanDirectory } from './directory-scan.ts'
import { type Replay, replay, type ReplayProgress } from './replay.ts'
import type { StoreDirectory } from './store-directory.ts'

const PROGRESS_MS = 1000

/** What a start found in its directory, and the plants in memory. */
export interface Recovery {
  readonly scan: DirectoryScan
  readonly replayed: Replay
  readonly database: PlantDatabase
}

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
  const database = await PlantDatabase.serving(scan.snapshot?.database)
  try {
    const insert = (rows: readonly StoredRow[]): void => database.insertStored(rows)
    const replayed = await replay(scan, insert, reporting(log))
    logTorn(directory, replayed, log)
    await removeObsolete(scan, log)
    return { scan, replayed, database }
  } catch (error) {
    // No garbage collector frees SQLite's memory, and an embedding program tries again.
    database.close()
    throw error
  }
}

/** Logs a line each second. */
function reporting(log: Log): (progress: ReplayProgress) => void {
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

/** The journal that writes go to: the last one's good lines, or a new one after all others. */
export function nextJournal({ scan, replayed: { sequence, last } }: Recovery): Journal {
  const nextSequence = sequence + 1
  if (last?.nextSequence === nextSequence) {
    const { number, firstSequence, goodBytes } = last
    return { number, firstSequence, nextSequence, bytes: goodBytes }
  }
  return { number: scan.nextJournal, firstSequence: nextSequence, nextSequence, bytes: 0 }
}

function logTorn(directory: StoreDirectory, { last }: Replay, log: Log): void {
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

/**
 * The errors of a directory that this process may not read, or of a file system that syncs no
 * directories. No start created such a directory, so its name is durable.
 */
const NOT_OURS: ReadonlySet<string | undefined> = new Set(['EACCES', 'EPERM', 'EROFS', 'EINVAL'])

/**
 * Makes a directory's name durable, and those of all directories above it: any of them may have
 * been created by a start that was killed before it synced them.
 */
async function syncAbove(files: Files, path: string): Promise<void> {
  const above = dirname(path)
  if (above === path) return
  try {
    await files.syncDirectory(above)
  } catch (error) {
    if (!NOT_OURS.has(errorCodeOf(error))) throw error
  }
  await syncAbove(files, above)
}
