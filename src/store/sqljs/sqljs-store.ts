/* The embedded store: its start, its write path and its end. */

import { resolve as resolvePath } from 'node:path'
import { setImmediate as yieldTick } from 'node:timers/promises'
import { reasonOf } from '../../errors.ts'
import { Turns } from '../../limits/turns.ts'
import type { NewPlant } from '../../plants/plant.ts'
import type { Created, PlantList, PlantRange, PlantStore, Recovered } from '../../plants/store.ts'
import { checkSize, StoreUnavailable } from '../../plants/store.ts'
import { Histogram } from '../../telemetry/metrics.ts'
import { Batch, type PendingCreate } from './memory/batch.ts'
import { Compactor } from './compactor.ts'
import type { PlantDatabase } from './memory/database.ts'
import type { Row } from './disk/journal-format.ts'
import { JournalWriter } from './journal-writer.ts'
import type { PlantLists } from './memory/list.ts'
import { DirectoryLocked, type DirectoryLock } from './disk/lock.ts'
import { PAGE_BYTES } from './disk/page-file.ts'
import { type ResolvedOptions, type SqljsStoreOptions, withDefaults } from './store-options.ts'
import { recover, type Recovery } from './recovery.ts'
import { StoreDirectory } from './disk/store-directory.ts'

export type { SqljsStoreOptions }

const CLOSED = 'the store is closed'
const SYNC_BOUNDS_SECONDS = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
]
/** Turns of the event loop that a batch waits for as many creates as the last one had. */
const GATHER_TICKS = 8
const BATCH_BOUNDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]

/**
 * Plants in SQLite in memory, made durable by a journal and a snapshot in one directory.
 *
 * Creates wait undecided while a batch is in flight. Then those that wait are decided, up to the
 * bounds of a `Batch`, appended to the journal as one line in one durable write, inserted, and
 * answered. So the database has durable plants alone, and two creates of one id always meet.
 */
export class SqljsStore implements PlantStore {
  readonly isShared = false
  readonly recovered: Recovered
  readonly #options: ResolvedOptions
  readonly #lock: DirectoryLock
  readonly #database: PlantDatabase
  readonly #lists: PlantLists
  readonly #journal: JournalWriter
  readonly #compactor: Compactor
  readonly #syncSeconds = new Histogram(SYNC_BOUNDS_SECONDS)
  readonly #batchPlants = new Histogram(BATCH_BOUNDS)
  readonly #waiting = new Turns<PendingCreate>()
  #writing: Promise<void> | undefined
  #lastBatchCreates = 0
  /** Why memory and journal may differ, once they may. */
  #fatal: string | undefined
  #closed: Promise<void> | undefined

  private constructor(options: ResolvedOptions, lock: DirectoryLock, recovery: Recovery) {
    this.#options = options
    this.#lock = lock
    this.#database = recovery.database
    this.#lists = recovery.database.lists
    this.#journal = new JournalWriter(options, recovery)
    this.#compactor = new Compactor(options, this.#journal, recovery)
    this.recovered = {
      plants: this.#journal.plants,
      batches: recovery.batches,
      tornBytes: recovery.journals.at(-1)?.torn.length ?? 0,
      ms: recovery.ms,
    }
    this.#addMetrics()
  }

  /**
   * Locks the directory, recovers what it holds, and makes the journal ready to be written to. If
   * the disk does not allow that, the store can still be read.
   * @throws DirectoryLocked if another process holds the directory, StoreCorrupt if it is damaged;
   * nothing is changed then.
   */
  static async open(options: SqljsStoreOptions): Promise<SqljsStore> {
    const given = withDefaults(options)
    const lock = await lockDataDirectory(given)
    const directory = new StoreDirectory(given.files, given.directory, lock.place)
    let recovery: Recovery | undefined
    try {
      recovery = await recover(given.files, directory, given.log)
      if (given.maxOwnerBytes !== undefined) recovery.database.limitOwners()
      const store = new SqljsStore({ ...given, directory }, lock, recovery)
      await store.#compactor.begin()
      return store
    } catch (error) {
      recovery?.database.close()
      await lock.release()
      throw error
    }
  }

  #addMetrics(): void {
    const { metrics, maxDataBytes } = this.#options
    const journal = this.#journal
    const limit = 'PLANTS_MAX_DATA_BYTES: above it POST answers 507.'
    const length = 'Length of the journals not compacted yet.'
    const dataBytes = () => (this.#closed ? undefined : this.#database.usedPages * PAGE_BYTES)
    metrics.add('gauge', 'plant_store_plants', 'Plants that are stored.', () => journal.plants)
    metrics.add('gauge', 'plant_store_data_bytes', 'Size of the database in memory.', dataBytes)
    metrics.add('gauge', 'plant_store_data_limit_bytes', limit, () => maxDataBytes)
    metrics.add('gauge', 'plant_store_journal_bytes', length, () => journal.lengthBytes)
    metrics.add('counter', 'plant_store_compactions_total', 'Compactions of the journals.', () =>
      Object.entries(this.#compactor.results).map(([result, count]) => [{ result }, count]),
    )
    const [sync, batch] = ['Time until a batch was durable.', 'Plants made durable by one sync.']
    metrics.add('histogram', 'plant_store_sync_seconds', sync, () => this.#syncSeconds.samples())
    metrics.add('histogram', 'plant_store_batch_plants', batch, () => this.#batchPlants.samples())
  }

  create(owner: string, plant: NewPlant): Promise<Created> {
    const { id, name, tag } = plant
    const digits = id.toString()
    const row: Row = tag === undefined ? [owner, digits, name] : [owner, digits, name, tag]
    return new Promise((resolve, reject) => {
      this.#checkUse()
      checkSize(plant)
      this.#waiting.add(owner, { row, resolve, reject })
      // After the creates that follow at once, so that they share a batch.
      this.#writing ??= Promise.resolve().then(() => this.#writeBatches())
    })
  }

  list(owner: string, range: PlantRange): PlantList {
    return this.#lists.list(owner, range, () => this.#checkUse())
  }

  unavailableReason(): string | undefined {
    // Once it is closed, the directory may be another store's. The next call has the outcome.
    if (!this.#closed) void this.#journal.append([])
    return this.#fatal ?? this.#journal.unavailableReason ?? this.#compactor.failure
  }

  close(): Promise<void> {
    return (this.#closed ??= this.#close())
  }

  /** @throws StoreUnavailable once it is closed, or SQLite's memory may hold anything. */
  #checkUse(): void {
    const refusal = this.#fatal ?? (this.#closed && CLOSED)
    if (refusal !== undefined) throw new StoreUnavailable(refusal)
  }

  /**
   * The write path. A crash before the append has finished may lose creates that were not answered.
   * A crash after it loses nothing, because the next start replays the batch.
   */
  async #writeBatches(): Promise<void> {
    const { maxDataBytes, maxOwnerBytes } = this.#options
    let batch = new Batch()
    try {
      if (this.#compactor.needsSnapshot) await this.#compactor.attempted
      while (this.#waiting.count > 0) {
        // Who was answered with the last batch may send the next create: one sync is for all.
        let ticks = GATHER_TICKS
        if (this.#waiting.count + this.#lastBatchCreates > 2)
          do await yieldTick()
          while (--ticks > 0 && this.#waiting.count < this.#lastBatchCreates)
        // Decide. Also what durable plants decide is answered with the batch.
        batch = new Batch()
        batch.fill(this.#waiting, this.#database, maxDataBytes, maxOwnerBytes)
        const { rows, decided } = batch
        this.#lastBatchCreates = decided.length
        // Append. It is durable when this returns (O_DSYNC): after it the batch survives a crash.
        const startedAtMs = performance.now()
        if (this.#compactor.needsSnapshot || !(await this.#journal.append(rows))) {
          const refusal = new StoreUnavailable(this.unavailableReason() ?? CLOSED)
          for (const { create } of decided) create.reject(refusal)
          continue
        }
        if (rows.length > 0) {
          this.#syncSeconds.observe((performance.now() - startedAtMs) / 1000)
          this.#batchPlants.observe(rows.length)
        }
        // Insert. After this lists show the batch. If it fails, only the next start can show it.
        this.#database.insert(rows)
        this.#database.ownerBytes?.set(batch.ownerBytes)
        // Answer. After this clients rely on the batch.
        for (const { create, created } of decided) create.resolve(created)
        this.#compactor.compactIfDue()
      }
    } catch (error) {
      this.#fail(error, batch)
    } finally {
      this.#writing = undefined
    }
  }

  /** The database failed: what it holds may differ from the journal. */
  #fail(error: unknown, batch: Batch): void {
    this.#fatal = `memory and journal may differ: ${reasonOf(error)}`
    // If the process goes on, no create waits for ever. The next start finds what is durable.
    const unavailable = new StoreUnavailable(this.#fatal)
    for (const { create } of batch.decided) create.reject(unavailable)
    while (this.#waiting.count > 0) this.#waiting.shift()?.reject(unavailable)
    this.#options.onFatal(error)
  }

  async #close(): Promise<void> {
    await Promise.all([this.#compactor.stop(), this.#writing])
    if (this.#fatal === undefined) await this.#compactor.finish()
    await this.#journal.close()
    this.#database.close()
    await this.#lock.release()
  }
}

/** Makes the directory, unless it exists, and locks it. */
async function lockDataDirectory({ directory, files, lock }: Required<SqljsStoreOptions>) {
  try {
    await files.makeDirectory(resolvePath(directory))
    return await lock(directory)
  } catch (cause) {
    if (cause instanceof DirectoryLocked) throw cause
    const which = 'the data directory (PLANTS_DATA, or the option data)'
    throw new Error(`${directory} cannot be ${which}`, { cause })
  }
}
