/* When journals are compacted, and what is removed afterwards. */

import { setTimeout as sleep } from 'node:timers/promises'
import { StoreUnavailable } from '../../plants/store.ts'
import { journalNumber } from './journal-format.ts'
import type { JournalWriter } from './journal-writer.ts'
import type { ResolvedOptions } from './store-options.ts'
import { type Recovery, removeObsolete } from './recovery.ts'
import { SNAPSHOT } from './snapshot.ts'
import { temporaryName } from './store-directory.ts'

const LAST_RETRY_MS = 60_000
const FAILED = 'the journals could not be compacted; they are kept, and it is tried again'

/**
 * Compacts the journals when they outgrow a share of the snapshot, so that a write costs O(1)
 * amortized and a start O(size). Writes go on meanwhile, in the next journal.
 *
 * It also keeps a snapshot in place which says that a journal follows: without it, a lost journal
 * would not be missed.
 */
export class Compactor {
  readonly results = { success: 0, failure: 0 }
  readonly #options: ResolvedOptions
  readonly #journal: JournalWriter
  readonly #stopped = new AbortController()
  #running: Promise<void> | undefined
  #snapshotBytes: number
  /** Whether the snapshot says that a journal follows: then a lost one is noticed. */
  #saysJournalFollows: boolean
  /** How many of the current journal's `bytesBefore` are in the snapshot. */
  #compactedBytes = 0

  constructor(options: ResolvedOptions, journal: JournalWriter, { snapshot }: Recovery) {
    this.#options = options
    this.#journal = journal
    this.#snapshotBytes = snapshot?.pages.lengthBytes ?? 0
    this.#saysJournalFollows = snapshot?.complete === false
  }

  /** Length of the journals that are not compacted yet. */
  get journalBytes(): number {
    return this.#closedBytes + this.#journal.current.bytes
  }

  /**
   * To be called once. Makes the snapshot of a new store before its first plant. In another store,
   * compacts journals that a kill left too long, or an export that was put back.
   * @throws Error if a new store can have no snapshot: without one a lost journal is not missed.
   */
  async begin(): Promise<void> {
    if (this.#journal.current.nextSequence === 1 && !this.#saysJournalFollows)
      await this.#compact(true).catch((cause: unknown) => {
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
    if (this.#isDue(0)) await this.#compact(true)
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
    if (!this.#saysJournalFollows) return true
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
        this.results.failure++
        this.#options.log.error(FAILED, { error, retryMs })
      }
      await sleep(retryMs, undefined, { ref: false, signal }).catch(() => {})
      retryMs = Math.min(2 * retryMs, LAST_RETRY_MS)
    }
  }

  /** `isQuiet` as in a job: everything is compacted then. */
  async #compact(isQuiet: boolean): Promise<void> {
    const { directory, compact, log } = this.#options
    // A snapshot says that a journal follows: that journal must be in its place.
    if (!this.#journal.ready) throw new StoreUnavailable(this.#journal.unavailableReason)
    // After a compaction that failed, the journals that were closed for it come first. The current
    // one is closed too only once a compaction of it alone would be due.
    const mayStayOpen = this.#closedBytes > 0 && this.#journal.current.bytes <= this.#dueBytes
    if (this.#journal.hasLines && (isQuiet || !mayStayOpen)) await this.#journal.rotate()
    const { number, firstSequence, bytesBefore, plantsBefore: plants } = this.#journal.current
    const [upToJournal, sequence, journalBytes] = [number - 1, firstSequence - 1, this.#closedBytes]
    // What makes the snapshot does not know whether the lock was lost before.
    await directory.checkLock()
    const isCovered = (name: string): boolean => (journalNumber(name) ?? Infinity) <= upToJournal
    const covered = (await directory.list()).filter(isCovered)
    const startedAtMs = performance.now()
    const { path, lock } = directory
    const temporary = temporaryName(SNAPSHOT)
    const lengths = { snapshotBytes: this.#snapshotBytes, journalBytes }
    const files = { directory: path, lock, temporary, upToJournal, ...lengths }
    // An abandoned thread leaves its file.
    await directory.orRemove(temporary, async () => {
      const signal = isQuiet ? undefined : this.#stopped.signal
      const made = await compact({ ...files, sequence, plants, isQuiet }, signal)
      if (made.plants !== plants || made.sequence !== sequence) {
        const found = `${made.plants} plants up to write ${made.sequence}`
        throw new Error(`the new snapshot has ${found}, not ${plants} up to ${sequence}`)
      }
      // Not by the thread that made it: an abandoned one could do so late, over a newer snapshot.
      await directory.renameIntoPlace(temporary, SNAPSHOT)
      this.#snapshotBytes = made.bytes
    })
    this.#saysJournalFollows = true
    this.#compactedBytes = bytesBefore
    if (!isQuiet) {
      this.results.success++
      const ms = Math.round(performance.now() - startedAtMs)
      log.info('compacted', { snapshotBytes: this.#snapshotBytes, ms })
    }
    await removeObsolete(directory, log, covered)
  }
}
