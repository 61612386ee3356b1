import { setTimeout as sleep } from 'node:timers/promises'
import { Backoff } from '../../limits/backoff.ts'
import type { CompactionJob } from './compaction.ts'
import { journalNumber } from './journal-format.ts'
import type { JournalWriter } from './journal-writer.ts'
import type { Settings } from './settings.ts'
import type { Recovery } from './recovery.ts'

const LAST_RETRY_MS = 60_000
/** A start inserts a journal's rows one by one, which takes many times as long as a snapshot's. */
const JOURNAL_SHARE = 1 / 3

/**
 * Compacts the journals when they outgrow a third of the snapshot, so that a write costs O(1)
 * amortized and a start O(size). Writes go on meanwhile, in the next journal.
 */
export class Compactor {
  readonly results = { success: 0, failure: 0 }
  readonly #settings: Settings
  readonly #journal: JournalWriter
  readonly #backoff: Backoff
  readonly #stopped = new AbortController()
  #running: Promise<void> | undefined
  #snapshotBytes: number
  /**
   * The sequence of the snapshot on disk, if it is complete. 0 without a snapshot, because an empty
   * store needs none. Undefined if the snapshot needs journals.
   */
  #completeAt: number | undefined = 0
  /** Length of the journals that are closed and wait for a compaction. */
  #closedBytes: number

  constructor(settings: Settings, journal: JournalWriter, { snapshot, closedBytes }: Recovery) {
    this.#settings = settings
    this.#journal = journal
    this.#backoff = new Backoff(settings.retryMs.compaction, LAST_RETRY_MS)
    this.#snapshotBytes = snapshot?.pages.lengthBytes ?? 0
    if (snapshot) this.#completeAt = snapshot.complete ? snapshot.sequence : undefined
    this.#closedBytes = closedBytes
  }

  get snapshotBytes(): number {
    return this.#snapshotBytes
  }

  /** Length of the journals that are not compacted yet. */
  get journalBytes(): number {
    return this.#closedBytes + this.#journal.current.bytes
  }

  /** To be called after each batch, and at start: a kill may have interrupted a compaction. */
  compactIfDue(): void {
    if (this.#running || this.#stopped.signal.aborted || !this.#isDue()) return
    this.#running = this.#compactUntilDone().finally(() => (this.#running = undefined))
  }

  /**
   * Abandons the compaction under way, as a crash would, and begins no other. `leaveComplete` then
   * writes a whole snapshot, over what is left of a temporary one.
   */
  async stop(): Promise<void> {
    this.#stopped.abort()
    await this.#running
  }

  /** Leaves a snapshot that is complete by itself, and no journal. The journal must be closed. */
  async leaveComplete(): Promise<void> {
    const { directory } = this.#settings
    const { lastSequence: sequence, current } = this.#journal
    const upToJournal = current.number
    const { journalBytes } = this
    if (sequence !== this.#completeAt)
      await this.#build({ upToJournal, sequence, complete: true, journalBytes })
    // A snapshot that was found may have been renamed by a process that was killed before it
    // synced the directory.
    await directory.sync()
    await this.#removeJournals(upToJournal)
  }

  get #dueBytes(): number {
    return Math.max(this.#settings.compactBytes, JOURNAL_SHARE * this.#snapshotBytes)
  }

  #isDue(): boolean {
    const { firstSequence, nextSequence } = this.#journal.current
    const hasLines = this.#closedBytes > 0 || nextSequence > firstSequence
    return hasLines && this.journalBytes > this.#dueBytes
  }

  /** Tries again after a failure, with a growing delay, for as long as a compaction is due. */
  async #compactUntilDone(): Promise<void> {
    const { signal } = this.#stopped
    while (this.#isDue() && !signal.aborted) {
      // Taken before the attempt: one that succeeds resets it.
      const retryMs = this.#backoff.nextMs()
      try {
        if (this.#journal.ready) return await this.#compact()
      } catch (error) {
        if (signal.aborted) return
        this.results.failure++
        const what = 'the journals could not be compacted; they are kept, and it is tried again'
        this.#settings.log.error(what, { error, retryMs })
      }
      await sleep(retryMs, undefined, { ref: false, signal }).catch(() => {})
    }
  }

  async #compact(): Promise<void> {
    // Journals that were closed for a compaction that failed are compacted first, unless the
    // current one has grown as much again.
    if (this.#closedBytes === 0 || this.#journal.current.bytes > this.#dueBytes)
      await this.#rotate()
    const { number, firstSequence } = this.#journal.current
    const [upToJournal, sequence] = [number - 1, firstSequence - 1]
    const startedAtMs = performance.now()
    // Cleared before the build: a build that fails may already have put its snapshot in place, and
    // that one needs the current journal.
    this.#completeAt = undefined
    const job = { upToJournal, sequence, complete: false, journalBytes: this.#closedBytes }
    this.#snapshotBytes = await this.#build(job, this.#stopped.signal)
    this.#closedBytes = 0
    this.#backoff.reset()
    this.results.success++
    const ms = Math.round(performance.now() - startedAtMs)
    this.#settings.log.info('compacted', { snapshotBytes: this.#snapshotBytes, ms })
    await this.#removeJournals(upToJournal)
  }

  async #build(
    job: Omit<CompactionJob, 'directory' | 'lock' | 'snapshotBytes'>,
    signal?: AbortSignal,
  ): Promise<number> {
    const { directory, compact } = this.#settings
    // Here too: what builds the snapshot does not know that the lock was lost before.
    await directory.checkLock()
    const { path, lock } = directory
    return compact({ ...job, directory: path, lock, snapshotBytes: this.#snapshotBytes }, signal)
  }

  async #rotate(): Promise<void> {
    const before = this.#journal.current
    try {
      await this.#journal.rotate()
    } finally {
      // Even after a failure the next journal may be the current one.
      if (this.#journal.current.number > before.number) this.#closedBytes += before.bytes
    }
  }

  /** A journal that stays here does no harm: the next compaction, or start, removes it. */
  async #removeJournals(upTo: number): Promise<void> {
    const { directory, log } = this.#settings
    try {
      for (const name of await directory.list()) {
        const number = journalNumber(name)
        if (number !== undefined && number <= upTo) await directory.remove(name)
      }
    } catch (error) {
      log.error('compacted journals could not be removed; that is tried again later', { error })
    }
  }
}
