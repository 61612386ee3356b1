import { FILE_MAX_BYTES, PlantDatabase } from './database.ts'
import type { Files } from './files.ts'
import type { LockPlace } from './lock.ts'
import { rebuild, scanDirectory } from './recovery.ts'
import { writeSnapshot } from './snapshot.ts'
import { StoreDirectory } from './store-directory.ts'

export interface CompactionJob {
  readonly directory: string
  /** Journals up to this number are closed, and go into the snapshot. */
  readonly upToJournal: number
  /** The sequence that they must end with. */
  readonly sequence: number
  /** Whether no journal follows: the store is being closed. */
  readonly complete: boolean
  /** Length of the last snapshot; 0 without one. */
  readonly snapshotBytes: number
  /** Length of the journals. */
  readonly journalBytes: number
  /** The lock that must be held while files are put in place. */
  readonly lock?: LockPlace | undefined
}

/**
 * Builds the next snapshot and resolves with its length in bytes. The signal abandons it where it
 * is, as a crash would; then it rejects after its last file call.
 */
export type Compact = (job: CompactionJob, signal?: AbortSignal) => Promise<number>

/**
 * The most bytes that a database grows for one byte of the journal. In the worst case, 489 bytes of
 * a row of 1,003 stay in its page, and the rest takes a page of 4096. Room that is not used takes
 * no memory.
 */
const GROWTH_MAX = 5

/**
 * Builds the next snapshot from the last one and the closed journals, and puts it in place. The
 * caller removes the journals. A crash before the rename leaves the old snapshot and all journals;
 * a crash after it leaves the new snapshot and journals that it covers. Both recover to the same
 * plants.
 */
export async function compact(files: Files, job: CompactionJob): Promise<number> {
  const { snapshotBytes, journalBytes } = job
  const roomBytes = Math.min(GROWTH_MAX * journalBytes, FILE_MAX_BYTES - snapshotBytes)
  const directory = new StoreDirectory(files, job.directory, job.lock)
  const scan = await scanDirectory(directory, roomBytes)
  const journals = scan.journals.filter((number) => number <= job.upToJournal)
  const { database, sequence } = await rebuild({ ...scan, journals }, PlantDatabase.building)
  try {
    if (sequence !== job.sequence)
      throw new Error(`the closed journals end with write ${sequence} instead of ${job.sequence}`)
    const bytes = database.toFile({ sequence, complete: job.complete })
    return await writeSnapshot(directory, bytes, sequence)
  } finally {
    database.close()
  }
}
