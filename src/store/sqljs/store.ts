import { resolve as resolvePath } from 'node:path'
import { setImmediate as yieldTick } from 'node:timers/promises'
import { FairQueue } from '../../ops/fair-queue.ts'
import { type Histogram, Metrics } from '../../ops/metrics.ts'
import type { NewPlant } from '../../plants/plant.ts'
import {
  type Created,
  type PlantList,
  type PlantRange,
  type PlantStore,
  type Recovered,
  StoreFull,
  StoreUnavailable,
} from '../../plants/store.ts'
import { batched, type Compact, compactInWorker } from './compaction.ts'
import { PlantDatabase, type Row } from './database.ts'
import { makeDirectories, removeObsolete, syncAbove, syncJournal } from './directory.ts'
import { type Files, nodeFiles } from './files.ts'
import { batchLine, journalName, journalNumber } from './journal.ts'
import { JournalWriter, type JournalPlan, type StoreLog } from './keeper.ts'
import { listPlants } from './listing.ts'
import { type DirectoryLock, lockDirectory } from './lock.ts'
import { type Replay, replay, type DirectoryScan, scanDirectory } from './recovery.ts'

export interface SqljsStoreOptions {
  readonly directory: string
  /** Size of the database in memory above which creates are refused. */
  readonly maxDataBytes: number
  readonly log: StoreLog
  /**
   * Called when memory and journal may differ: the process must end, and start from the journal.
   */
  readonly onFatal: (error: unknown) => void
  /** Where its metrics are told. */
  readonly metrics?: Metrics
  /** Where work that may take a millisecond or more waits for its turn. */
  readonly queue?: FairQueue
  readonly files?: Files
  readonly lock?: (directory: string) => Promise<DirectoryLock>
  readonly compact?: Compact
  /**
   * Length of the journals in bytes above which they are compacted, where the snapshot is no longer
   * than that.
   */
  readonly compactBytes?: number
  /** Zeros that are written behind the journal's last line at a time. */
  readonly reserveBytes?: number
  /** How long after a failed write or compaction another way is tried at first. */
  readonly retryMs?: { readonly write: number; readonly compaction: number }
}

interface Waiting {
  readonly row: Row
  readonly resolve: (created: Created) => void
  readonly reject: (error: Error) => void
}

interface Group {
  readonly rows: readonly Row[]
  /** What to tell whom once the rows are durable. */
  readonly answers: readonly { readonly waiting: Waiting; readonly created: Created }[]
}

/**
 * Journals are compacted when they outgrow the snapshot, so that a write costs O(1) amortized and a
 * start O(size).
 */
const COMPACT_BYTES = 4 * 1024 * 1024
const RETRY_MS = { write: 100, compaction: 1000 } as const
const LAST_COMPACT_RETRY_MS = 60_000
/**
 * A batch takes no more plants once their text is so long: writing it as JSON and applying it take
 * 10 ms.
 */
const BATCH_CHARS = 1024 * 1024
/** Deciding goes on in a later tick once it took so long. */
const DECIDE_MS = 3
/** SQLite's default page, and what of it an overflow page carries. */
const PAGE_BYTES = 4096
const OVERFLOW_BYTES = PAGE_BYTES - 4
/**
 * SQLite's memory that must be left beside a row's own: for the rest of its group, and for reading.
 */
const RESERVE_BYTES = 16 * 1024 * 1024
/** What an insert takes of a row's bytes: as they are bound, as a record, as pages. */
const ROW_COPIES = 3
/** Pages that one insert may add by splitting a leaf and what is above it. */
const SPLIT_PAGES = 3
/**
 * Turns of the event loop that a group waits for more creates, as long as each turn brings some.
 */
const GATHER_TURNS = 8
const CLOSED = 'the store is closed'
const SYNC_BOUNDS_SECONDS = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
]
const GROUP_BOUNDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]

/**
 * Plants in SQLite in memory, made durable by a journal and a snapshot in one directory.
 *
 * A create waits undecided while a group is in flight; then all that wait are decided at once,
 * appended as one line with one sync, applied to the database, and answered. So nothing is
 * answered, and nothing can be read, that is not durable, and two creates of one id always meet.
 */
export class SqljsStore implements PlantStore {
  readonly #options: SqljsStoreOptions
  readonly #files: Files
  readonly #directory: string
  readonly #compact: Compact
  readonly #lock: DirectoryLock
  readonly #database: PlantDatabase
  readonly #keeper: JournalWriter
  readonly #queue: FairQueue
  readonly #maxPages: number
  readonly #compactBytes: number
  readonly #firstCompactRetryMs: number
  readonly #syncSeconds: Histogram
  readonly #groupPlants: Histogram
  readonly #compactions = { success: 0, failure: 0 }
  readonly recovered: Recovered

  #waiting: Waiting[] = []
  #writing: Promise<void> | undefined
  #sequence: number
  /** The last sequence of a snapshot that is complete by itself, or -1. */
  #completeAt: number
  #snapshotBytes: number
  #compacting: Promise<void> | undefined
  #compactTimer: NodeJS.Timeout | undefined
  #compactRetryMs: number
  /** The length of the journals that are closed and wait for a compaction. */
  #closedBytes: number
  /** The database's size when it was last asked for, and the most that was added since. */
  #pages: number
  #pagesAdded = 0
  #closed: Promise<void> | undefined
  /** Why nothing can be kept any more. */
  #dead: string | undefined

  private constructor(
    options: SqljsStoreOptions,
    lock: DirectoryLock,
    database: PlantDatabase,
    found: DirectoryScan,
    replayed: Replay,
    keeper: JournalWriter,
    recovered: Recovered,
  ) {
    this.#options = options
    this.#files = options.files ?? nodeFiles
    this.#directory = options.directory
    this.#compact = options.compact ?? compactInWorker
    this.#lock = lock
    this.#database = database
    this.#keeper = keeper
    this.#queue = options.queue ?? new FairQueue()
    this.#maxPages = Math.floor(options.maxDataBytes / PAGE_BYTES)
    this.#compactBytes = options.compactBytes ?? COMPACT_BYTES
    this.#firstCompactRetryMs = this.#compactRetryMs = (options.retryMs ?? RETRY_MS).compaction
    this.#pages = database.pageCount()
    this.#sequence = replayed.sequence
    this.#completeAt =
      found.snapshot === undefined ? 0 : found.snapshot.complete ? found.snapshot.sequence : -1
    this.#snapshotBytes = found.snapshot?.fileBytes ?? 0
    this.#closedBytes = replayed.closedBytes
    this.recovered = recovered
    const metrics = options.metrics ?? new Metrics()
    this.#syncSeconds = metrics.histogram(
      'plant_store_sync_seconds',
      'Time in which the writes of one group became durable.',
      SYNC_BOUNDS_SECONDS,
    )
    this.#groupPlants = metrics.histogram(
      'plant_store_group_plants',
      'Plants that became durable with one sync.',
      GROUP_BOUNDS,
    )
    this.#addMetrics(metrics)
  }

  #addMetrics(metrics: Metrics): void {
    metrics.gauge('plant_store_plants', 'Plants that are stored.', () => this.#database.count)
    metrics.gauge('plant_store_data_bytes', 'Size of the database in memory.', () =>
      this.#closed ? undefined : this.#database.pageCount() * PAGE_BYTES,
    )
    metrics.gauge(
      'plant_store_data_limit_bytes',
      'PLANTS_MAX_DATA_BYTES: above it POST answers 507.',
      () => this.#options.maxDataBytes,
    )
    metrics.gauge(
      'plant_store_journal_bytes',
      'Length of the journals that are not compacted yet.',
      () => this.#closedBytes + this.#keeper.bytes,
    )
    metrics.gauge(
      'plant_store_snapshot_bytes',
      'Length of the snapshot.',
      () => this.#snapshotBytes,
    )
    metrics.gauge(
      'plant_store_waiting_writes',
      'Creates that wait for the group in flight.',
      () => this.#waiting.length,
    )
    metrics.counter('plant_store_compactions_total', 'Compactions of the journals.', () =>
      Object.entries(this.#compactions).map(([result, count]) => [{ result }, count]),
    )
    metrics.gauge(
      'plant_store_recovery_seconds',
      'How long the start took to recover the plants.',
      () => this.recovered.ms / 1000,
    )
    metrics.gauge(
      'plant_store_recovered_groups',
      'Groups that the start replayed from the journals.',
      () => this.recovered.groups,
    )
  }

  /**
   * Locks the directory, recovers what it holds, and makes it ready to be written to where the disk
   * allows it.
   * @throws DirectoryLocked when another process holds it, StoreCorrupt when it is damaged; nothing
   * is changed then.
   */
  static async open(options: SqljsStoreOptions): Promise<SqljsStore> {
    const {
      directory,
      log,
      files = nodeFiles,
      lock: takeLock = lockDirectory,
      retryMs = RETRY_MS,
    } = options
    const startedAtMs = performance.now()
    await makeDirectories(files, resolvePath(directory))
    const lock = await takeLock(directory)
    try {
      const found = await scanDirectory(files, directory)
      if (found.snapshot === undefined && found.journals.length === 0)
        await syncAbove(files, resolvePath(directory))
      const database = await PlantDatabase.serving(found.snapshot?.database)
      const batch = batched((rows) => database.insertStored(rows))
      const replayed = await replay(files, found, batch.add, (groups) =>
        log('info', 'recovering', { groups }),
      )
      batch.end()
      const { last } = replayed
      if (last && last.tornBytes > 0) {
        const file = `${directory}/${journalName(last.number)}`
        log(
          'error',
          'the last line of the journal is torn: it was never acknowledged, and is cut off',
          { file, byte: last.goodBytes, bytes: last.tornBytes },
        )
      }
      await removeObsolete(files, found, log)
      const keeper = new JournalWriter(
        files,
        directory,
        log,
        planJournal(found, replayed),
        retryMs.write,
        options.reserveBytes,
      )
      await keeper.renew()
      // Where there is no room for that, reading goes on all the same, but not from what only
      // memory may hold.
      if (!keeper.ready && last)
        await syncJournal(files, `${directory}/${journalName(last.number)}`)
      const ms = Math.round(performance.now() - startedAtMs)
      const recovered = {
        plants: database.count,
        groups: replayed.groups,
        tornBytes: last?.tornBytes ?? 0,
        ms,
      }
      const store = new SqljsStore(options, lock, database, found, replayed, keeper, recovered)
      // What a kill interrupted: where nothing is written any more, nothing else would ever bring
      // it on.
      store.#compactWhenDue()
      return store
    } catch (error) {
      await lock.release()
      throw error
    }
  }

  create(owner: string, plant: NewPlant): Promise<Created> {
    const id = plant.id.toString()
    const row: Row =
      plant.tag === undefined ? [owner, id, plant.name] : [owner, id, plant.name, plant.tag]
    return new Promise((resolve, reject) => {
      if (this.#closed || this.#dead !== undefined) {
        reject(new StoreUnavailable(this.#dead ?? CLOSED))
        return
      }
      this.#waiting.push({ row, resolve, reject })
      // Begun behind this turn's other creates, which so share a group.
      this.#writing ??= Promise.resolve().then(() => this.#write())
    })
  }

  list(owner: string, range: PlantRange): PlantList | Promise<PlantList> {
    if (this.#closed) throw new StoreUnavailable(CLOSED)
    return listPlants(this.#database, this.#queue, owner, range, this.#sequence)
  }

  unavailableReason(): string | undefined {
    return this.#dead ?? this.#keeper.unavailableReason
  }

  close(): Promise<void> {
    return (this.#closed ??= this.#close())
  }

  async #close(): Promise<void> {
    clearTimeout(this.#compactTimer)
    await this.#writing
    await this.#compacting
    await this.#keeper.close()
    try {
      if (this.#dead === undefined) await this.#leaveComplete()
    } catch (error) {
      // Nothing acknowledged depends on it: the next start replays the journals.
      this.#options.log(
        'error',
        'no snapshot could be left at the end; the next start replays the journals',
        { error },
      )
    }
    this.#database.close()
    await this.#lock.release()
  }

  async #write(): Promise<void> {
    let group: Group = { rows: [], answers: [] }
    try {
      while (this.#waiting.length > 0) {
        await this.#gather()
        if (!this.#keeper.ready) {
          for (const waiting of this.#waiting.splice(0)) waiting.reject(this.#refusal(waiting.row))
          continue
        }
        group = this.#decide()
        if (group.rows.length > 0) await this.#writeGroup(group)
      }
    } catch (error) {
      this.#dead = `memory and journal may differ: ${String(error)}`
      try {
        this.#options.onFatal(error)
      } finally {
        // Only where the process goes on: what of it is durable, the next start finds.
        reject(
          [...group.answers.map(({ waiting }) => waiting), ...this.#waiting.splice(0)],
          new StoreUnavailable(this.#dead),
        )
      }
    } finally {
      this.#writing = undefined
    }
  }

  /**
   * Lets creates that are on their way join the group: a sync costs as much for one as for all of
   * them.
   */
  async #gather(): Promise<void> {
    for (let turns = 0, seen = 0; turns < GATHER_TURNS && this.#waiting.length > seen; turns++) {
      seen = this.#waiting.length
      await yieldTick()
    }
  }

  /**
   * Makes a group durable, applies it, and answers it. @throws when it is durable and cannot be
   * applied.
   */
  async #writeGroup({ rows, answers }: Group): Promise<void> {
    try {
      const startedAtMs = performance.now()
      await this.#keeper.append(batchLine(this.#sequence + 1, rows))
      this.#syncSeconds.observe((performance.now() - startedAtMs) / 1000)
      this.#groupPlants.observe(rows.length)
    } catch (error) {
      reject(
        answers.map(({ waiting }) => waiting),
        error instanceof StoreUnavailable
          ? error
          : new StoreUnavailable('the write failed', { cause: error }),
      )
      return
    }
    this.#sequence += 1
    this.#database.insert(rows, this.#sequence)
    for (const { waiting, created } of answers) waiting.resolve(created)
    this.#compactWhenDue()
  }

  /**
   * Decides what waits, against the database and the group itself. What rests on the database alone
   * is answered at once, since all of that is durable; what rests on a plant of the group shares
   * its fate.
   */
  #decide(): Group {
    const rows: Row[] = []
    const answers: { waiting: Waiting; created: Created }[] = []
    const inGroup = new Map<string, Row>()
    let chars = 0
    let taken = this.#waiting.length
    let groupPages = 0
    const startedAtMs = performance.now()
    for (const [i, waiting] of this.#waiting.entries()) {
      if (chars > BATCH_CHARS || (i > 0 && performance.now() - startedAtMs > DECIDE_MS)) {
        taken = i
        break
      }
      const { row } = waiting
      const [owner, id, name, tag] = row
      const key = `${id} ${owner}`
      const rival = inGroup.get(key)
      if (rival) {
        answers.push({
          waiting,
          created: rival[2] === name && rival[3] === tag ? 'stored' : 'conflict',
        })
        continue
      }
      const existing = this.#database.existing(row)
      if (existing !== 'none') {
        waiting.resolve(existing === 'same' ? 'stored' : 'conflict')
        continue
      }
      const pages = this.#room(row, groupPages)
      if (pages === undefined) {
        // Counted as the worst case behind the others of the group there is no room: with those
        // applied it is known better.
        if (rows.length > 0) {
          taken = i
          break
        }
        waiting.reject(new StoreFull())
        continue
      }
      groupPages += pages
      chars += owner.length + name.length + (tag?.length ?? 0)
      rows.push(row)
      inGroup.set(key, row)
      answers.push({ waiting, created: 'stored' })
    }
    this.#waiting.splice(0, taken)
    return { rows, answers }
  }

  /**
   * Why a row cannot be kept while the journal is in doubt: where it could not be anyway, waiting
   * for the disk is in vain.
   */
  #refusal(row: Row): Error {
    const hasRoom = this.#database.existing(row) !== 'none' || this.#room(row, 0) !== undefined
    return hasRoom ? new StoreUnavailable(this.#keeper.unavailableReason) : new StoreFull()
  }

  /**
   * The most pages that a row may add, or undefined where there may be no room for them, be it in
   * memory.
   */
  #room([owner, , name, tag]: Row, groupPages: number): number | undefined {
    const bytes = Buffer.byteLength(owner) + Buffer.byteLength(name) + Buffer.byteLength(tag ?? '')
    // Here nothing is durable yet: an insert that finds no memory behind the sync ends the process,
    // and the next start may find no more.
    if (!this.#database.hasMemory(RESERVE_BYTES + ROW_COPIES * bytes)) return undefined
    const pages = Math.ceil(bytes / OVERFLOW_BYTES) + SPLIT_PAGES
    if (this.#pages + this.#pagesAdded + pages > this.#maxPages) {
      this.#pages = this.#database.pageCount()
      this.#pagesAdded = groupPages
      if (this.#pages + this.#pagesAdded + pages > this.#maxPages) return undefined
    }
    this.#pagesAdded += pages
    return pages
  }

  /**
   * Where the journals have outgrown the snapshot: turns to a new one, and has those before it
   * compacted.
   */
  #compactWhenDue(): void {
    const dueBytes = Math.max(this.#compactBytes, this.#snapshotBytes)
    // A snapshot that is not complete needs the next journal in its place.
    if (
      this.#closed ||
      this.#compacting ||
      this.#compactTimer ||
      !this.#keeper.ready ||
      this.#closedBytes + this.#keeper.bytes <= dueBytes
    )
      return
    // At a start there may be no group behind the snapshot.
    if (this.#closedBytes === 0 && this.#sequence < this.#keeper.firstSequence) return
    // What was closed for a compaction that failed is compacted first, unless the journal has grown
    // as much again.
    const turn = this.#closedBytes === 0 || this.#keeper.bytes > dueBytes
    this.#compacting = this.#compactJournals(turn)
      .catch((error: unknown) => this.#compactLater(error))
      .finally(() => {
        this.#compacting = undefined
      })
  }

  async #compactJournals(turn: boolean): Promise<void> {
    if (turn) this.#closedBytes += await this.#keeper.turn()
    const upToJournal = this.#keeper.number - 1
    const startedAt = performance.now()
    const bytes = await this.#compact({
      directory: this.#directory,
      upToJournal,
      sequence: this.#keeper.firstSequence - 1,
      complete: false,
    })
    this.#snapshotBytes = bytes
    this.#completeAt = -1
    this.#closedBytes = 0
    this.#compactRetryMs = this.#firstCompactRetryMs
    this.#compactions.success++
    this.#options.log('info', 'compacted', {
      snapshotBytes: bytes,
      ms: Math.round(performance.now() - startedAt),
    })
    await this.#removeJournals(upToJournal)
  }

  #compactLater(error: unknown): void {
    this.#compactions.failure++
    this.#options.log(
      'error',
      'the journals could not be compacted; they are kept, and it is tried again',
      { error, retryMs: this.#compactRetryMs },
    )
    this.#compactAfterDelay()
  }

  #compactAfterDelay(): void {
    if (this.#closed) return
    this.#compactTimer = setTimeout(() => {
      this.#compactTimer = undefined
      if (this.#keeper.ready) this.#compactWhenDue()
      else this.#compactAfterDelay()
    }, this.#compactRetryMs)
    this.#compactTimer.unref()
    this.#compactRetryMs = Math.min(this.#compactRetryMs * 2, LAST_COMPACT_RETRY_MS)
  }

  /**
   * Removes journals that a snapshot covers. One that stays is no harm: the next start removes it.
   */
  async #removeJournals(upTo: number): Promise<void> {
    for (const name of await this.#files.list(this.#directory)) {
      const number = journalNumber(name)
      if (number !== undefined && number <= upTo)
        await this.#files.remove(`${this.#directory}/${name}`)
    }
  }

  /** Leaves the directory with a snapshot that is complete by itself, and no journal. */
  async #leaveComplete(): Promise<void> {
    if (this.#sequence !== this.#completeAt) {
      await this.#compact({
        directory: this.#directory,
        upToJournal: this.#keeper.number,
        sequence: this.#sequence,
        complete: true,
      })
    }
    // The snapshot may be one that was found, put in place by a start that was killed before it
    // synced this.
    await this.#files.syncDirectory(this.#directory)
    await this.#removeJournals(this.#keeper.number)
  }
}

function reject(waiting: readonly Waiting[], error: Error): void {
  for (const each of waiting) each.reject(error)
}

/**
 * The journal that the store goes on with: the last one's good lines, or a new one behind all that
 * is there.
 */
function planJournal(found: DirectoryScan, { sequence, last }: Replay): JournalPlan {
  if (last?.nextSequence === sequence + 1) {
    const { number, firstSequence, nextSequence, goodBytes } = last
    return { number, firstSequence, nextSequence, goodBytes }
  }
  return {
    number: found.nextJournal,
    firstSequence: sequence + 1,
    nextSequence: sequence + 1,
    goodBytes: 0,
  }
}
