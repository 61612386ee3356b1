/* When journals are compacted, and what is removed afterwards. */

import { reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { saveMemory } from './compaction.ts'
import type { PlantDatabase } from './memory/database.ts'
import { goesOn } from './disk/journal-format.ts'
import type { JournalWriter } from './journal-writer.ts'
import type { Recovery } from './recovery.ts'
import { LAST_RETRY_UNSERVED_MS, repeatWhile } from './repeat.ts'
import { SNAPSHOT } from './disk/snapshot.ts'
import type { ResolvedOptions } from './store-options.ts'
import { temporaryName } from './disk/store-directory.ts'

const LAST_RETRY_MS = 60_000
const FAILED = 'the journals could not be compacted or removed; that is tried again'
const NO_SNAPSHOT = 'the first snapshot under a new id cannot be made'

/**
 * Compacts the journals when they outgrow a share of the snapshot, so that a write costs O(1)
 * amortized and a start O(size). Writes go on meanwhile, in the next journal.
 *
 * Under a new id no plant is created before there is a snapshot that has it: without it, a lost
 * journal would not be missed. Creates wait for the first attempt, and are refused once it failed.
 */
export class Compactor {
  readonly results = { success: 0, failure: 0 }
  /** Whether no snapshot has the journal's id yet: then no plant may be created. */
  needsSnapshot: boolean
  /** Why, once an attempt has failed, or could not begin. */
  failure: string | undefined
  /** The first attempt of the work under way. It does not reject. */
  attempted: Promise<void> | undefined
  readonly #options: ResolvedOptions
  readonly #journal: JournalWriter
  readonly #database: PlantDatabase
  readonly #stopped = new AbortController()
  #running: Promise<void> | undefined
  /** Files that no start needs, in the order in which they are to be removed. */
  #obsolete: readonly string[]
  #snapshotBytes: number

  constructor(options: ResolvedOptions, journal: JournalWriter, recovery: Recovery) {
    const { snapshot, needsId, obsolete, database } = recovery
    this.#options = options
    this.#journal = journal
    this.#database = database
    this.#obsolete = obsolete
    this.#snapshotBytes = snapshot?.pages.lengthBytes ?? 0
    this.needsSnapshot = needsId
  }

  /**
   * To be called once: makes the journal ready to be written to. Then it begins with the first
   * snapshot under a new id, or with journals that a kill left too long. What fails is tried again.
   */
  async begin(): Promise<void> {
    // This may make the room that the others need.
    await this.#attempt(() => this.#removeObsolete())
    await this.#journal.rewrite()
    this.compactIfDue()
    // That of an empty store takes a few ms.
    if (this.#journal.plants === 0) await this.attempted
  }

  /** To be called after each batch. */
  compactIfDue(): void {
    const { signal } = this.#stopped
    if (this.#running || signal.aborted || !this.#isDue()) return
    const lastMs = this.needsSnapshot ? LAST_RETRY_UNSERVED_MS : LAST_RETRY_MS
    const delays = [this.#options.retryMs, lastMs] as const
    const attempt = async () => {
      if (this.#journal.ready) await this.#attempt(() => this.#compact())
      else if (this.needsSnapshot) this.failure = NO_SNAPSHOT
    }
    this.attempted = attempt()
    this.#running = this.attempted
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
    const isSound = await this.#journal.append([], 0)
    if (isSound && !this.#isDue(Infinity)) return
    const failed = (error: unknown): void => this.#options.log.error(FAILED, { error })
    await this.#compact(!isSound).catch(failed)
  }

  /** Whether there is anything to compact, and journals of this length are to be. */
  #isDue(lengthBytes = this.#journal.lengthBytes): boolean {
    if (this.needsSnapshot) return true
    const { compactBytes, compactShare } = this.#options
    const { closed, current } = this.#journal
    const dueBytes = Math.max(compactBytes, compactShare * this.#snapshotBytes)
    return (closed.length > 0 || current.plants > 0) && lengthBytes > dueBytes
  }

  async #attempt(work: () => Promise<void>): Promise<void> {
    try {
      await work()
    } catch (error) {
      if (this.#stopped.signal.aborted) return
      this.results.failure++
      if (this.needsSnapshot) this.failure = `${NO_SNAPSHOT}: ${reasonOf(error)}`
      this.#options.log.error(FAILED, { error })
    }
  }

  /**
   * Puts the next snapshot in place, and removes the journals that it covers. A complete one is for
   * a stop whose journal is in doubt: it has all of memory, and needs no journal, as an export.
   */
  async #compact(isComplete = false): Promise<void> {
    const { compact, directory, log } = this.#options
    const journal = this.#journal
    // A stop, and the first start of an empty store, have nothing to serve meanwhile. Then the
    // snapshot is made of memory, in this thread.
    const isQuiet = journal.plants === 0 || this.#stopped.signal.aborted
    // Beside the first snapshot of an id only the journals may be that lead to it.
    if (this.needsSnapshot) await this.#removeObsolete()
    if (isComplete) {
      // Memory still has what another program has changed.
      directory.watchSnapshot()
      await journal.end()
    } else if (!(await journal.append([], 0))) throw new StoreUnavailable(journal.unavailableReason)
    // A snapshot that is not complete says that a journal follows: it is in its place then. After a
    // failure, the journals come first that were closed for it: each attempt would pad another one.
    else if (journal.current.plants > 0 && (isQuiet || this.#isDue(journal.current.goodBytes)))
      await journal.rotate()
    const covered = journal.closed.map(({ name }) => name)
    const { number, begin: position, plants: later } = journal.current
    const plants = journal.plants - later
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
    if (this.needsSnapshot && !isComplete && position.sequence > 0)
      log.info('the store has a new id', { id: position.id })
    this.needsSnapshot = false
    this.failure = undefined
    if (!isQuiet) {
      this.results.success++
      const ms = Math.round(performance.now() - startedAtMs)
      log.info('compacted', { snapshotBytes: this.#snapshotBytes, ms })
    }
    journal.dropClosed(covered.length)
    this.#obsolete = [...this.#obsolete, ...covered]
    await this.#removeObsolete()
  }

  /** A file that stays does no harm: the next compaction, or start, removes it. */
  async #removeObsolete(): Promise<void> {
    for (const name of this.#obsolete) {
      await this.#options.directory.remove(name)
      this.#obsolete = this.#obsolete.slice(1)
    }
  }
}
