/* When journals are compacted, and what is removed afterwards. */

import { reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { saveMemory } from './compaction.ts'
import type { PlantDatabase } from './memory/database.ts'
import { goesOn, journalName, journalNumber } from './disk/journal-format.ts'
import { hasLines, type JournalWriter } from './journal-writer.ts'
import { type Recovery, removeObsolete } from './recovery.ts'
import { LAST_RETRY_UNSERVED_MS, repeatWhile } from './repeat.ts'
import { SNAPSHOT } from './disk/snapshot.ts'
import type { ResolvedOptions } from './store-options.ts'
import { temporaryName } from './disk/store-directory.ts'

const LAST_RETRY_MS = 60_000
const FAILED = 'the journals could not be compacted; they are kept, and it is tried again'
const NONE_LEFT = 'no snapshot could be left at the end; the journals are kept'
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
  readonly #stopped = new AbortController()
  /** Whether the store has no file but those that this start made. */
  readonly #isNewStore: boolean
  #running: Promise<void> | undefined
  #snapshotBytes: number
  /** Why there is no snapshot yet that has the journal's id; undefined if there is one. */
  #missing: string | undefined

  constructor(options: ResolvedOptions, journal: JournalWriter, recovery: Recovery) {
    const { snapshot, needsId, end, database } = recovery
    this.#options = options
    this.#journal = journal
    this.#database = database
    this.#snapshotBytes = snapshot?.pages.lengthBytes ?? 0
    this.#isNewStore = !snapshot && end.sequence === 0
    this.#missing = needsId ? NO_SNAPSHOT : undefined
  }

  /** Why no plant may be created yet. */
  get unavailableReason(): string | undefined {
    return this.#missing
  }

  /**
   * To be called once. Makes the first snapshot under a new id; if that fails, it is tried again
   * while lists are served. Also compacts journals that a kill left too long.
   * @throws Error if a new store can have no snapshot.
   */
  async begin(): Promise<void> {
    if (this.#missing !== undefined)
      await this.#compact().catch((cause: unknown) => {
        if (!this.#isNewStore) return this.#tell(cause)
        throw new Error('no new store could be made; make room on the disk, or mend it', { cause })
      })
    this.compactIfDue()
  }

  /** To be called after each batch. */
  compactIfDue(): void {
    const { signal } = this.#stopped
    if (this.#running || signal.aborted || !this.#isDue()) return
    const lastMs = this.#missing === undefined ? LAST_RETRY_MS : LAST_RETRY_UNSERVED_MS
    const attempt = async (): Promise<void> => {
      if (!this.#journal.ready) return
      await this.#compact().catch((error) => signal.aborted || this.#tell(error))
    }
    const delays = [this.#options.retryMs, lastMs] as const
    this.#running = attempt()
      .then(() => repeatWhile(() => this.#isDue(), attempt, delays, signal))
      .finally(() => (this.#running = undefined))
  }

  /** Abandons the compaction under way, as a crash would, and begins no other. */
  async stop(): Promise<void> {
    this.#stopped.abort()
    await this.#running
  }

  /** Leaves a snapshot of everything, and an empty journal. Nothing acknowledged depends on it. */
  async finish(): Promise<void> {
    const { directory, log } = this.#options
    const isSound = await this.#journal.append([], 0)
    if (isSound && !this.#isDue(0)) return
    // What another program has changed, memory still has.
    if (!isSound) directory.watchSnapshot()
    if (!isSound) await this.#journal.rewrite()
    await this.#compact().catch((error: unknown) => log.error(NONE_LEFT, { error }))
  }

  get #dueBytes(): number {
    const { compactBytes, compactShare } = this.#options
    return Math.max(compactBytes, compactShare * this.#snapshotBytes)
  }

  #isDue(bytes = this.#dueBytes): boolean {
    if (this.#missing !== undefined) return true
    const { closed, current, lengthBytes } = this.#journal
    return (closed.length > 0 || hasLines(current)) && lengthBytes > bytes
  }

  #tell(error: unknown): void {
    this.results.failure++
    if (this.#missing !== undefined) this.#missing = `${NO_SNAPSHOT}: ${reasonOf(error)}`
    this.#options.log.error(FAILED, { error })
  }

  async #compact(): Promise<void> {
    const { compact, directory, log } = this.#options
    const journal = this.#journal
    // Under a new id, and at a stop, no plant can be created meanwhile. Then the snapshot is made
    // of memory, in this thread, and covers everything.
    const isLast = this.#stopped.signal.aborted
    const isQuiet = this.#missing !== undefined || isLast
    const isSound = await journal.append([], 0)
    // At a stop without a sound journal, the snapshot needs none, as an export.
    const isComplete = isLast && !isSound
    if (!isSound && !isComplete) throw new StoreUnavailable(journal.unavailableReason)
    // After a compaction that failed, the journals that were closed for it come first. The current
    // one is closed too only once a compaction of it alone would be due.
    const mayStayOpen = journal.closed.length > 0 && journal.current.goodBytes <= this.#dueBytes
    const mustRotate = hasLines(journal.current) && (isQuiet || !mayStayOpen)
    // A snapshot that is not complete says that a journal follows: it is in its place then.
    if (mustRotate && !isComplete) await journal.rotate()
    const { number, begin, end, plants: later } = journal.current
    const plants = isComplete ? journal.plants : journal.plants - later
    const position = isComplete ? end : begin
    const numbers = (await directory.list()).map((name) => journalNumber(name) ?? Infinity)
    const isCovered = (each: number): boolean => (isComplete ? each < Infinity : each < number)
    const covered = numbers.filter(isCovered).sort((a, b) => a - b)
    // Under a new id, only those that lead to the next journal may still be there.
    const isPast = (each: number): boolean => journal.closed.every((one) => one.number !== each)
    if (this.#missing !== undefined)
      for (const each of covered.filter(isPast)) await directory.remove(journalName(each))
    const startedAtMs = performance.now()
    const temporary = temporaryName(SNAPSHOT)
    const { path, lock } = directory
    const job = { directory: path, lock, temporary, position, upToJournal: number - 1 }
    // An abandoned thread leaves its file.
    await directory.orRemove(temporary, async () => {
      const made = isQuiet
        ? await saveMemory(this.#database, directory, temporary, position, isComplete)
        : await compact({ ...job, journalBytes: journal.lengthBytes }, this.#stopped.signal)
      const has = `the new snapshot has ${made.plants} plants up to write ${made.end.sequence}`
      if (made.plants !== plants || !goesOn(position, made.end))
        throw new Error(`${has}, not ${plants} up to ${position.sequence}`)
      // Not by the thread that made it: an abandoned one could do so late, over a newer snapshot.
      await directory.replaceSnapshot(temporary, made.sha)
      this.#snapshotBytes = made.bytes
    })
    if (this.#missing !== undefined && !this.#isNewStore)
      log.info('the store has a new id', { id: position.id })
    this.#missing = undefined
    journal.dropClosed(number)
    if (!isQuiet) {
      this.results.success++
      const ms = Math.round(performance.now() - startedAtMs)
      log.info('compacted', { snapshotBytes: this.#snapshotBytes, ms })
    }
    await removeObsolete(directory, log, covered.map(journalName))
  }
}
