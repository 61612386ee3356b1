import { DatabaseFile } from './database-file.ts'
import { scanDirectory } from './directory-scan.ts'
import type { Files } from './files.ts'
import type { LockPlace } from './lock.ts'
import { replay } from './recovery.ts'
import { SNAPSHOT } from './snapshot.ts'
import { StoreDirectory, TEMPORARY } from './store-directory.ts'

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
 * Builds the next snapshot from the last one and the closed journals, and puts it in place. The
 * caller removes the journals. A crash before the rename leaves the old snapshot and all journals;
 * a crash after it leaves the new snapshot and journals that it covers. Both recover to the same
 * plants.
 */
export async function compact(files: Files, job: CompactionJob): Promise<number> {
  const directory = new StoreDirectory(files, job.directory, job.lock)
  const path = directory.pathOf(SNAPSHOT + TEMPORARY)
  const bytes = await scanDirectory(directory, (scan) =>
    directory.writeTemporary(SNAPSHOT, async (file) => {
      const journals = scan.journals.filter((number) => number <= job.upToJournal)
      const database = await DatabaseFile.begin(path, file, scan.snapshot)
      try {
        const { sequence } = await replay({ ...scan, journals }, database)
        if (sequence !== job.sequence) {
          const end = `the closed journals end with write ${sequence}`
          throw new Error(`${end} instead of ${job.sequence}`)
        }
        return await database.finish({ sequence, complete: job.complete })
      } finally {
        database.close()
      }
    }),
  )
  await directory.renameIntoPlace(SNAPSHOT)
  return bytes
}
