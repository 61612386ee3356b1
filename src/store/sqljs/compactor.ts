/* When journals are compacted, and what is removed afterwards. */

import { setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { saveMemory } from './compaction.ts'
import type { PlantDatabase } from './database.ts'
import type { File } from './files.ts'
import { isSamePosition, journalNumber } from './journal-format.ts'
import type { Journal, JournalWriter } from './journal-writer.ts'
import { type Recovery, removeObsolete } from './recovery.ts'
import { type Replaced, SNAPSHOT } from './snapshot.ts'
import { SnapshotWatch } from './snapshot-watch.ts'
import { type ResolvedOptions, SMALL_BYTES } from './store-options.ts'
import { temporaryName } from './store-directory.ts'

const LAST_RETRY_MS = 60_000
/** While creates wait for it. */
const LAST_RETRY_UNSERVED_MS = 5000
const FAILED = 'the journals could not be compacted; they are kept, and it is tried again'
const NO_SNAPSHOT = 'the first snapshot under a new id is not in place yet'

/**
 * Compacts the journals when they outgrow a share of the snapshot, so that a write costs O(1)
 * amortized and a start O(size). Writes go on meanwhile, in the next journal.
 *
 * Under a new id no plant is created before there is a snapshot that has it: without it, a lost
 * journal would not be missed.
 */
export class Compactor {
  readonly results = { success: 0, failure: 0 }
  readonly #options: ResolvedOptions
  readonly #journal: JournalWriter
  readonly #database: PlantDatabase
  readonly #watch: SnapshotWatch
  readonly #stopped = new AbortController()
  readonly #replaced: Replaced
  /** Whether the store has no file but those that this start made. */
  readonly #isNewStore: boolean
  #running: Promise<void> | undefined
  #snapshotBytes: number
  /** Why there is no snapshot yet that has the journal's id; undefined if there is one. */
  #missing: string | undefined
  /** How many of the current journal's `bytesBefore` are in the snapshot. */
  #compactedBytes = 0

  constructor(options: ResolvedOptions, journal: JournalWriter, recovery: Recovery) {
    const { snapshot, needsId, end, database } = recovery
    this.#options = options
    this.#journal = journal
    this.#database = database
    this.#watch = new SnapshotWatch(options.directory, options.log, recovery)
    this.#snapshotBytes = snapshot?.pages.lengthBytes ?? 0
    this.#isNewStore = !snapshot && end.sequence === 0
    this.#missing = needsId ? NO_SNAPSHOT : undefined
    const { id } = snapshot?.position ?? end
    const own = { id, upToJournal: journal.current.number - 1 }
    this.#replaced = !snapshot || needsId ? own : snapshot.replaced
  }

  /** Length of the journals that are not compacted yet. */
  get journalBytes(): number {
    return this.#closedBytes + this.#journal.current.goodBytes
  }

  /** Why no plant may be created, as far as it is known. */
  get reason(): string | undefined {
    return this.#missing ?? this.#watch.reason
  }

  /** As `reason`, after a check if one is due. */
  async check(): Promise<string | undefined> {
    return this.#missing ?? this.#watch.check()
  }

  /**
   * To be called once. Makes the first snapshot under a new id, of a large store while lists are
   * served. Also compacts journals that a kill left too long.
   * @throws Error if a new store can have no snapshot.
   */
  async begin(): Promise<void> {
    const isSmall = this.#snapshotBytes + this.journalBytes <= SMALL_BYTES
    if (this.#isNewStore)
      await this.#compact(true).catch((cause: unknown) => {
        throw new Error('no new store could be made; make room on the disk, or mend it', { cause })
      })
    else if (this.#missing !== undefined && (isSmall || this.#options.opensForCreates))
      await this.#compact(true).catch((error: unknown) => this.#tell(error))
    this.compactIfDue()
  }

  /** To be called after each batch. */
  compactIfDue(): void {
    if (this.#running || this.#stopped.signal.aborted || !this.#isDue()) return
    this.#running = this.#compactUntilDone().finally(() => (this.#running = undefined))
  }

  /** Abandons the compaction under way, as a crash would, and begins no other. */
  async stop(): Promise<void> {
    this.#stopped.abort()
    await this.#running
  }

  /** Leaves a snapshot of everything, and an empty journal. */
  async finish(): Promise<void> {
    const isChanged = (await this.#watch.check(0)) !== undefined
    if (isChanged || this.#isDue(0)) await this.#compact(true, isChanged)
  }

  /** Length of the journals that are closed and wait for a compaction. */
  get #closedBytes(): number {
    return this.#journal.current.bytesBefore - this.#compactedBytes
  }

  get #dueBytes(): number {
    const { compactBytes, compactShare } = this.#options
    return Math.max(compactBytes, compactShare * this.#snapshotBytes)
  }

  #isDue(bytes = this.#dueBytes): boolean {
    if (this.#missing !== undefined) return true
    const hasLines = this.#closedBytes > 0 || this.#journal.hasLines
    return hasLines && this.journalBytes > bytes
  }

  /** Tries again after a failure, with a growing delay, for as long as a compaction is due. */
  async #compactUntilDone(): Promise<void> {
    const { signal } = this.#stopped
    let retryMs = this.#options.retryMs.compaction
    while (this.#isDue() && !signal.aborted) {
      try {
        if (this.#journal.ready) return await this.#compact(false)
      } catch (error) {
        if (signal.aborted) return
        this.#tell(error, retryMs)
      }
      await sleep(retryMs, undefined, { ref: false, signal }).catch(() => {})
      const lastMs = this.#missing === undefined ? LAST_RETRY_MS : LAST_RETRY_UNSERVED_MS
      retryMs = Math.min(2 * retryMs, lastMs)
    }
  }

  #tell(error: unknown, retryMs?: number): void {
    this.results.failure++
    if (this.#missing !== undefined) this.#missing = `${NO_SNAPSHOT}: ${reasonOf(error)}`
    this.#options.log.error(FAILED, { error, retryMs })
  }

  /** `isQuiet` as in a job: everything is compacted then. */
  async #compact(isQuiet: boolean, fromMemory = false): Promise<void> {
    const { directory, log } = this.#options
    // A snapshot says that a journal follows: that journal must be in its place.
    if (!this.#journal.ready) throw new StoreUnavailable(this.#journal.unavailableReason)
    // After a compaction that failed, the journals that were closed for it come first. The current
    // one is closed too only once a compaction of it alone would be due.
    const mayStayOpen = this.#closedBytes > 0 && this.#journal.current.goodBytes <= this.#dueBytes
    if (this.#journal.hasLines && (isQuiet || !mayStayOpen)) await this.#journal.rotate()
    const closedBefore = this.#journal.current
    // What makes the snapshot does not know whether the lock was lost before.
    await directory.checkLock()
    const { number } = closedBefore
    const isCovered = (name: string): boolean => (journalNumber(name) ?? Infinity) < number
    const covered = (await directory.list()).filter(isCovered)
    const startedAtMs = performance.now()
    const temporary = temporaryName(SNAPSHOT)
    // An abandoned thread leaves its file.
    await directory.orRemove(temporary, async () => {
      const made = await this.#make(temporary, closedBefore, isQuiet, fromMemory)
      // Not by the thread that made it: an abandoned one could do so late, over a newer snapshot.
      const put = (): Promise<void> => directory.renameIntoPlace(temporary, SNAPSHOT)
      await this.#watch.replace(made.sha, put)
      this.#snapshotBytes = made.bytes
    })
    if (this.#missing !== undefined && !this.#isNewStore)
      log.info('the store has a new id', { id: closedBefore.begin.id })
    this.#missing = undefined
    this.#compactedBytes = closedBefore.bytesBefore
    if (!isQuiet) {
      this.results.success++
      const ms = Math.round(performance.now() - startedAtMs)
      log.info('compacted', { snapshotBytes: this.#snapshotBytes, ms })
    }
    await removeObsolete(directory, log, covered)
  }

  /** Makes a snapshot of what is before a journal: of the files, or of memory. */
  async #make(temporary: string, before: Journal, isQuiet: boolean, fromMemory: boolean) {
    const { directory, compact } = this.#options
    const { number, begin: position, plantsBefore: plants } = before
    const replaced = this.#replaced
    if (fromMemory) {
      const path = directory.pathOf(temporary)
      const save = (file: File) => saveMemory(this.#database, path, file, position, replaced)
      return directory.writeTemporary(temporary, save)
    }
    const reason = await this.#watch.check(0)
    if (reason !== undefined) throw new StoreUnavailable(reason)
    const lengths = { snapshotBytes: this.#snapshotBytes, journalBytes: this.#closedBytes }
    const place = { directory: directory.path, lock: directory.lock, temporary }
    const job = { ...place, upToJournal: number - 1, position, replaced, plants, isQuiet }
    const signal = isQuiet ? undefined : this.#stopped.signal
    const { end, ...made } = await compact({ ...job, ...lengths }, signal)
    // The files that a new id replaces end with the same write.
    const isReplaced = this.#missing !== undefined && end.id === replaced.id
    const expected = isReplaced ? { ...end, sequence: position.sequence } : position
    if (made.plants === plants && isSamePosition(end, expected)) return made
    const found = `${made.plants} plants up to write ${end.sequence}`
    throw new Error(`the new snapshot has ${found}, not ${plants} up to ${position.sequence}`)
  }
}
