import { setPriority } from 'node:os'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { FILE_MAX_BYTES, PlantDatabase } from './database.ts'
import { blockingFiles, type Files, nodeFiles } from './files.ts'
import { type DirectoryScan, scanDirectory } from './directory-scan.ts'
import { type Replay, replay, type ReplayProgress } from './replay.ts'
import { writeSnapshot } from './snapshot.ts'

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
}

/** Builds the next snapshot and resolves with its length in bytes. */
export type Compact = (job: CompactionJob) => Promise<number>

/** The priority of the thread that compacts, as nice(1) counts. */
const NICENESS = 10
/**
 * How many bytes a database grows for a byte of the journal: a row of 1,003 bytes keeps 489 of them
 * in its page, and takes a page of 4096 for the rest. Room that is not used takes no memory.
 */
const GROWTH_MAX = 5
/** Of V8's objects in that thread. With V8's default they take 20 MiB more, and no less time. */
const YOUNG_GENERATION_MIB = 8

/**
 * Builds the next snapshot from the last one and the closed journals, and puts it in place. The
 * caller removes the journals. A crash before the rename leaves the old snapshot and all journals;
 * a crash after it leaves the new snapshot and journals that it covers. Both recover to the same
 * plants.
 */
export async function compact(files: Files, job: CompactionJob): Promise<number> {
  const { snapshotBytes, journalBytes } = job
  const roomBytes = Math.min(GROWTH_MAX * journalBytes, FILE_MAX_BYTES - snapshotBytes)
  const scan = await scanDirectory(files, job.directory, roomBytes)
  const journals = scan.journals.filter((number) => number <= job.upToJournal)
  const { database, replayed } = await buildDatabase(files, { ...scan, journals })
  const { sequence } = replayed
  try {
    if (sequence !== job.sequence)
      throw new Error(`the closed journals end with write ${sequence} instead of ${job.sequence}`)
    const bytes = database.toFile({ sequence, complete: job.complete })
    return await writeSnapshot(files, job.directory, bytes, sequence)
  } finally {
    database.close()
  }
}

/** A database, to become a file, of all that a directory holds. The caller closes it. */
export async function buildDatabase(
  files: Files,
  scan: DirectoryScan,
  onProgress?: (progress: ReplayProgress) => void,
): Promise<{ readonly database: PlantDatabase; readonly replayed: Replay }> {
  const database = await PlantDatabase.building(scan.snapshot?.database)
  try {
    const insert = database.insertStored.bind(database)
    return { database, replayed: await replay(files, scan, insert, onProgress) }
  } catch (error) {
    // No garbage collector frees SQLite's memory, and a reader without the lock tries again.
    database.close()
    throw error
  }
}

/** A store of this length is compacted in 10 to 20 ms. A thread takes 100 ms to start. */
const SMALL_BYTES = 64 * 1024

/** Runs a job in a thread, unless the store is small and being closed: then no request waits. */
export const compactFiles: Compact = (job) =>
  job.complete && job.snapshotBytes + job.journalBytes <= SMALL_BYTES
    ? compact(nodeFiles, job)
    : compactInWorker(job)

/** Runs a job in a worker thread, so that requests never wait for it. Rejects if it dies. */
export const compactInWorker: Compact = (job) =>
  new Promise((resolve, reject) => {
    // The worker inherits the process's options: loaders that find its packages, and permissions.
    const resourceLimits = { maxYoungGenerationSizeMb: YOUNG_GENERATION_MIB }
    const worker = new Worker(new URL(import.meta.url), { workerData: job, resourceLimits })
    worker.once('message', (bytes: unknown) =>
      typeof bytes === 'number' ? resolve(bytes) : reject(new Error(String(bytes))),
    )
    worker.once('error', reject)
    worker.once('exit', (code) =>
      reject(new Error(`the compaction's thread ended with ${code} before its work was done`)),
    )
  })

if (!isMainThread && isJob(workerData)) {
  yieldToRequests()
  compact(blockingFiles, workerData).then(
    (bytes) => parentPort?.postMessage(bytes),
    (error: unknown) =>
      parentPort?.postMessage(
        error instanceof Error ? (error.stack ?? error.message) : String(error),
      ),
  )
}

/**
 * Requests come first where all threads share one core; compacting still gets a tenth of it. Only
 * Linux has priorities of single threads.
 */
function yieldToRequests(): void {
  if (process.platform !== 'linux') return
  try {
    setPriority(NICENESS)
  } catch {
    // A sandbox may forbid the call. Then compacting costs requests more time, and nothing else.
  }
}

/** The service itself may run in another program's worker thread, which has other data. */
function isJob(data: unknown): data is CompactionJob {
  return typeof data === 'object' && data !== null && 'upToJournal' in data
}
