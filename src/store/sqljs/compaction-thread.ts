import { on } from 'node:events'
import { setPriority } from 'node:os'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import type { Compact, Compacted, CompactionJob } from './compaction.ts'

/*
 * The thread that compacts. It runs this file first, still at the priority of the threads that
 * answer. So this file imports no other one of the service: on one core, requests would wait for
 * each module.
 */

/** The priority of the thread that compacts, as nice(1) counts. */
const NICENESS = 10
/**
 * For V8's objects in that thread. With V8's defaults they take 20 MiB more on Node 20 and 60 on
 * Node 24, and no less time. The longest line needs four times its bytes: its text and the texts of
 * its rows, each with two bytes a character.
 */
const YOUNG_GENERATION_MIB = 8
const OLD_GENERATION_MIB = 32
const LINE_FACTOR = 4
const MIB = 2 ** 20

/** Runs a job in a worker thread, so that requests never wait for it. Rejects if it dies. */
export const compactInWorker: Compact = async (job, signal) => {
  // The worker inherits the process's options: loaders that find its packages.
  const resourceLimits = {
    maxYoungGenerationSizeMb: YOUNG_GENERATION_MIB,
    maxOldGenerationSizeMb: OLD_GENERATION_MIB + LINE_FACTOR * Math.ceil(job.journalBytes / MIB),
  }
  const worker = new Worker(new URL(import.meta.url), { workerData: ours(job), resourceLimits })
  // The first error ends the loop, which listens no more. Another one would end the process.
  worker.on('error', () => {})
  try {
    for await (const [message] of on(worker, 'message', { signal, close: ['exit'] })) {
      // What the process's options load in each thread may post messages of its own.
      const made = oursOf<Compacted>(message)
      if (made) return made
    }
    throw new Error("the compaction's thread ended before its work was done")
  } finally {
    // What the options load may also keep the thread alive.
    await worker.terminate()
  }
}

// The service itself may run in another program's worker thread, which has other data.
const given = isMainThread ? undefined : oursOf<CompactionJob>(workerData)
// An error of it ends the thread, and is passed on.
if (given) void compactHere(given).then((made) => parentPort?.postMessage(ours(made)))

/**
 * Requests come first where all threads share one core; compacting still gets a tenth of it. Only
 * Linux has priorities of single threads.
 */
async function compactHere(job: CompactionJob): Promise<Compacted> {
  try {
    if (process.platform === 'linux') setPriority(NICENESS)
  } catch {
    // A sandbox may forbid the call. Then compacting costs requests more time, and nothing else.
  }
  const { compact } = await import('./compaction.ts')
  const { nodeFiles } = await import('./disk/files.ts')
  return compact(nodeFiles, job)
}

/** What is passed to the thread, and back: it has a member that nothing else has. */
function ours<T>(data: T): { readonly plantStoreCompaction: T } {
  return { plantStoreCompaction: data }
}

function oursOf<T extends object>(data: unknown): T | undefined {
  // Only `ours` makes this member. Any value but null and undefined may be asked for one.
  return (data as Partial<ReturnType<typeof ours<T>>> | null | undefined)?.plantStoreCompaction
}
