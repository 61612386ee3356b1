/* When journals are compacted, and what is removed afterwards. */

import { setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { type Compacted, type CompactionJob, type NewSnapshot, saveMemory } from './compaction.ts'
import type { PlantDatabase } from './memory/database.ts'
import { isSamePosition, journalNumber } from './disk/journal-format.ts'
import { hasLines, type JournalWriter } from './journal-writer.ts'
import { type Recovery, removeObsolete } from './recovery.ts'
import { type Replaced, SNAPSHOT } from './disk/snapshot.ts'
import type { ResolvedOptions } from './store-options.ts'
import { temporaryName } from './disk/store-directory.ts'

/** A store of this length is compacted in 10 to 20 ms. A thread takes 100 ms to start. */
const SMALL_BYTES = 64 * 1024
const LAST_RETRY_MS = 60_000
/** While creates wait for it. */
const LAST_RETRY_UNSERVED_MS = 5000
const FAILED = 'the journals could not be compacted; they are kept, and it is tried again'
const NO_SNAPSHOT = 'the first snapshot under a new id is not in place yet'

/** Memory may be what is wrong: no snapshot is made of it. */
class MemoryDiffers extends Error {}

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
  readonly #replaced: Replaced
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
    const { id } = snapshot?.position ?? end
    const own = { id, upToJournal: journal.current.number - 1 }
    this.#replaced = !snapshot || needsId ? own : snapshot.replaced
  }

  /** Why no plant may be created yet. */
  get unavailableReason(): string | undefined {
    return this.#missing
  }

  /**
   * To be called once. Makes the first snapshot under a new id, of a large store while lists are
   * served. Also compacts journals that a kill left too long.
   * @throws Error if a new store can have no snapshot.
   */
  async begin(): Promise<void> {
    const mayWait = this.#isSmall || this.#options.opensForCreates
    if (this.#missing !== undefined && mayWait)
      await this.#compact(true).catch((cause: unknown) => {
        if (!this.#isNewStore) return this.#tell(cause)
        throw new Error('no new store could be made; make room on the disk, or mend it', { cause })
      })
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
    const { directory } = this.#options
    const isChanged = !(await directory.hasOwnSnapshot().catch(() => false))
    if (isChanged) {
      // Memory alone has everything. The journal must be in its place before the next snapshot is.
      directory.watchSnapshot()
      await this.#journal.rewrite()
    }
    if (!isChanged && !this.#isDue(0)) return
    await this.#compact(true, isChanged).catch((error: unknown) => {
      if (isChanged || error instanceof MemoryDiffers) throw error
      // A file may be damaged, and memory still has what it held.
      this.#tell(error)
      return this.#compact(true, true)
    })
  }

  get #isSmall(): boolean {
    return this.#snapshotBytes + this.#journal.lengthBytes <= SMALL_BYTES
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

  /**
   * @param isQuiet whether the store is being opened or closed, so that no request waits for this
   * thread. Everything is compacted then.
   */
  async #compact(isQuiet: boolean, fromMemory = false): Promise<void> {
    const { directory, log } = this.#options
    const journal = this.#journal
    // After a compaction that failed, the journals that were closed for it come first. The current
    // one is closed too only once a compaction of it alone would be due.
    const mayStayOpen = journal.closed.length > 0 && journal.current.goodBytes <= this.#dueBytes
    if (hasLines(journal.current) && (isQuiet || !mayStayOpen)) await journal.rotate()
    const { number, begin: position, plants: later } = journal.current
    const plants = journal.plants - later
    await journal.check()
    // A snapshot says that a journal follows: that journal must be in its place.
    if (!journal.ready) throw new StoreUnavailable(journal.unavailableReason)
    const isCovered = (name: string): boolean => (journalNumber(name) ?? Infinity) < number
    const covered = (await directory.list()).filter(isCovered)
    const startedAtMs = performance.now()
    const temporary = temporaryName(SNAPSHOT)
    const to = { temporary, position, replaced: this.#replaced }
    // An abandoned thread leaves its file.
    await directory.orRemove(temporary, async () => {
      const made = fromMemory
        ? await saveMemory(this.#database, directory, to)
        : await this.#compactFiles({ ...to, upToJournal: number - 1 }, plants, isQuiet)
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
    await removeObsolete(directory, log, covered)
  }

  /** Makes a snapshot of the files. @throws MemoryDiffers if it has not what memory has there. */
  async #compactFiles(
    to: NewSnapshot & Pick<CompactionJob, 'upToJournal'>,
    plants: number,
    isQuiet: boolean,
  ): Promise<Compacted> {
    const { directory, compact } = this.#options
    const inThread = !isQuiet || !this.#isSmall
    const place = { directory: directory.path, lock: directory.lock }
    const job = { ...to, ...place, inThread, journalBytes: this.#journal.lengthBytes }
    const made = await compact(job, isQuiet ? undefined : this.#stopped.signal)
    const { end, plants: found } = made
    // The files that a new id replaces end with the same write.
    const isReplaced = this.#missing !== undefined && end.id === to.replaced.id
    const expected = isReplaced ? { ...end, sequence: to.position.sequence } : to.position
    if (found === plants && isSamePosition(end, expected)) return made
    const what = `the new snapshot has ${found} plants up to write ${end.sequence}`
    throw new MemoryDiffers(`${what}, not ${plants} up to ${to.position.sequence}`)
  }
}
