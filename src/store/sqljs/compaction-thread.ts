import { setPriority } from 'node:os'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import type { Compact, CompactionJob } from './compaction.ts'

/*
 * Where a compaction runs. This file loads no other file of the service before it must: the thread
 * runs it first, at the priority of the threads that answer, and on one core each module that it
 * loads then makes requests wait.
 */

/** A store of this length is compacted in 10 to 20 ms. A thread takes 100 ms to start. */
const SMALL_BYTES = 64 * 1024
/** The priority of the thread that compacts, as nice(1) counts. */
const NICENESS = 10
/** Of V8's objects in that thread. With V8's default they take 20 MiB more, and no less time. */
const YOUNG_GENERATION_MIB = 8

/** Runs a job in a thread, unless the store is small and being closed: then no request waits. */
export const compactFiles: Compact = (job) =>
  job.complete && job.snapshotBytes + job.journalBytes <= SMALL_BYTES
    ? compactHere(job, 'nodeFiles')
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

async function compactHere(
  job: CompactionJob,
  access: 'nodeFiles' | 'blockingFiles',
): Promise<number> {
  const [{ compact }, files] = await Promise.all([import('./compaction.ts'), import('./files.ts')])
  return compact(files[access], job)
}

if (!isMainThread && isJob(workerData)) {
  yieldToRequests()
  compactHere(workerData, 'blockingFiles').then(
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
