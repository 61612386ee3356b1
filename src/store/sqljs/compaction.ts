import { setPriority } from 'node:os'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { PlantDatabase, type Row, type StoredRow } from './database.ts'
import { type Files, nodeFiles } from './files.ts'
import { type Replay, replay, type DirectoryScan, scanDirectory } from './recovery.ts'
import { SNAPSHOT, writeSnapshot } from './snapshot.ts'

export interface CompactionJob {
  readonly directory: string
  /** Journals up to this number are closed, and go into the snapshot. */
  readonly upToJournal: number
  /**
   * The sequence that they end with; anything else that is found means that something is lost or
   * not acknowledged.
   */
  readonly sequence: number
  /** Whether no journal follows: the store is being closed. */
  readonly complete: boolean
}

/** Builds the next snapshot and resolves with its length in bytes. */
export type Compact = (job: CompactionJob) => Promise<number>

/**
 * What is handed to SQLite at once: so many rows that those of one owner stand together, and few
 * enough, or of so little text, to stay small in memory and not to keep a start from answering
 * probes.
 */
const BATCH_ROWS = 4_000
const BATCH_CHARACTERS = 4 * 1024 * 1024
/** Of the thread that compacts, as nice(1) counts. */
const NICENESS = 10

/**
 * Builds the next snapshot from the last one and the closed journals, and puts it in place; the
 * journals it covers are left to the caller to remove. A crash before the rename leaves the old
 * snapshot and all journals, one after it the new snapshot and journals that it covers: both
 * recover to the same plants.
 */
export async function compact(files: Files, job: CompactionJob): Promise<number> {
  const found = await scanDirectory(files, job.directory)
  const closed: DirectoryScan = {
    ...found,
    journals: found.journals.filter((number) => number <= job.upToJournal),
  }
  const { database, replayed } = await buildDatabase(files, closed)
  const { sequence } = replayed
  try {
    if (sequence !== job.sequence)
      throw new Error(`the closed journals end with write ${sequence} instead of ${job.sequence}`)
    return await writeSnapshot(
      files,
      job.directory,
      SNAPSHOT,
      database.toFile({ sequence, complete: job.complete }),
      sequence,
    )
  } finally {
    database.close()
  }
}

/** A database of all that a scanDirectory found, to become a file. */
export async function buildDatabase(
  files: Files,
  found: DirectoryScan,
): Promise<{ readonly database: PlantDatabase; readonly replayed: Replay }> {
  const database = await PlantDatabase.building(found.snapshot?.database)
  try {
    const batch = batched((rows) => database.insertStored(rows))
    const replayed = await replay(files, found, batch.add)
    batch.end()
    return { database, replayed }
  } catch (error) {
    // SQLite's memory is nothing that a garbage collector sees, and whoever reads without a lock
    // tries again.
    database.close()
    throw error
  }
}

/**
 * Gathers batches and inserts their rows by owner: rows that are neighbours in the tree then follow
 * each other.
 */
export function batched(insert: (rows: readonly StoredRow[]) => void): {
  add(rows: readonly Row[], sequence: number): void
  end(): void
} {
  let waiting: StoredRow[] = []
  let characters = 0
  const end = (): void => {
    if (waiting.length > 0)
      insert(waiting.sort(({ row: [a] }, { row: [b] }) => (a < b ? -1 : a > b ? 1 : 0)))
    waiting = []
    characters = 0
  }
  return {
    add(rows, sequence) {
      for (const row of rows) {
        waiting.push({ row, sequence })
        for (const text of row) characters += text?.length ?? 0
      }
      if (waiting.length >= BATCH_ROWS || characters >= BATCH_CHARACTERS) end()
    },
    end,
  }
}

/**
 * Runs a job in a worker thread, so that requests never wait for it; a worker that dies rejects.
 */
export const compactInWorker: Compact = (job) =>
  new Promise((resolve, reject) => {
    // With the options that the process has: loaders that find its packages may be among them, and
    // what it is permitted.
    const worker = new Worker(new URL(import.meta.url), { workerData: job })
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
  compact(nodeFiles, workerData).then(
    (bytes) => parentPort?.postMessage(bytes),
    (error: unknown) =>
      parentPort?.postMessage(
        error instanceof Error ? (error.stack ?? error.message) : String(error),
      ),
  )
}

/**
 * Where all share one core, requests come first; compacting still gets a tenth of it. On Linux
 * priorities are a thread's own, elsewhere the process's.
 */
function yieldToRequests(): void {
  if (process.platform !== 'linux') return
  try {
    setPriority(NICENESS)
  } catch {
    // A sandbox may forbid the call, which costs time and nothing else.
  }
}

/** The service itself may run in somebody's worker thread: then the data is not ours. */
function isJob(data: unknown): data is CompactionJob {
  return (
    typeof data === 'object' &&
    data !== null &&
    'upToJournal' in data &&
    'directory' in data &&
    'complete' in data
  )
}
