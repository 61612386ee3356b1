/* The options of the store, and their defaults. */

import type { Log } from '../../telemetry/log.ts'
import { Metrics } from '../../telemetry/metrics.ts'
import { compactInWorker } from './compaction-thread.ts'
import { nodeFiles } from './disk/files.ts'
import { lockDirectory } from './disk/lock.ts'
import type { StoreDirectory } from './disk/store-directory.ts'

export interface SqljsStoreOptions extends Partial<Readonly<typeof DEFAULTS>> {
  readonly directory: string
  /** Size of the database in memory above which creates are refused. */
  readonly maxDataBytes: number
  /** Data of one owner above which its creates are refused; undefined: no limit. */
  readonly maxOwnerBytes?: number | undefined
  readonly log: Log
  /** Called when memory and journal may differ: the process must end, and start again. */
  readonly onFatal: (error: unknown) => void
  readonly metrics?: Metrics
}

const DEFAULTS = {
  files: nodeFiles,
  lock: lockDirectory,
  compact: compactInWorker,
  /** Journals are compacted if they are longer than this, and than this share of the snapshot. */
  compactBytes: 8 * 1024 * 1024,
  /** A start inserts a journal's rows one by one, in many times the time of a snapshot's. */
  compactShare: 1 / 3,
  /** The next journal is begun before one is longer: a start reads a whole one into memory. */
  maxJournalBytes: 2 ** 30,
  /**
   * Zeros that are written after the journal's last line at a time. Writing them takes 1 ms (seen).
   * Fewer than one in a hundred small batches waits for it.
   */
  paddingBytes: 512 * 1024,
  /** Delay before the first retry after a failed write or compaction. */
  retryMs: 100,
}

/** What the parts of an open store need of its options. */
export type ResolvedOptions = Omit<Required<SqljsStoreOptions>, 'directory' | 'files' | 'lock'> & {
  readonly directory: StoreDirectory
}

/** The options of a store, with defaults for those that are not set. */
export function withDefaults(options: SqljsStoreOptions): Required<SqljsStoreOptions> {
  return { maxOwnerBytes: undefined, metrics: new Metrics(), ...DEFAULTS, ...options }
}
