import { reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import type { Files } from './files.ts'
import {
  AppendFailed,
  Journal,
  JournalMisplaced,
  journalName,
  readJournal,
  StoreCorrupt,
} from './journal.ts'

/** A journal to be put in place: new, or the good lines of one that is in doubt. */
export interface JournalPlan {
  readonly number: number
  readonly firstSequence: number
  /**
   * The sequence behind its good lines, and the length of the file up to there; equal to
   * firstSequence and 0 for a new one.
   */
  readonly nextSequence: number
  readonly goodBytes: number
}

export type StoreLog = (
  level: 'info' | 'error',
  message: string,
  fields?: Readonly<Record<string, unknown>>,
) => void

const LAST_RETRY_MS = 5000

/**
 * Keeps one journal fit to be written to. After a failure that leaves its file in doubt there is
 * one way on, renewing, tried again with a growing delay; until it succeeds nothing is appended.
 */
export class JournalWriter {
  readonly #files: Files
  readonly #directory: string
  readonly #log: StoreLog
  readonly #reserveBytes: number | undefined
  #journal: Journal | undefined
  #plan: JournalPlan
  #unavailableReason: string | undefined
  readonly #firstRetryMs: number
  #retryMs: number
  #timer: NodeJS.Timeout | undefined
  #busy: Promise<unknown> = Promise.resolve()
  #closed = false

  constructor(
    files: Files,
    directory: string,
    log: StoreLog,
    plan: JournalPlan,
    firstRetryMs: number,
    reserveBytes?: number,
  ) {
    this.#files = files
    this.#directory = directory
    this.#log = log
    this.#plan = plan
    this.#reserveBytes = reserveBytes
    this.#firstRetryMs = this.#retryMs = firstRetryMs
  }

  get unavailableReason(): string | undefined {
    return this.#unavailableReason
  }

  /** Whether a group may be appended now. */
  get ready(): boolean {
    return this.#journal !== undefined
  }

  get number(): number {
    return this.#plan.number
  }

  /** The sequence that the journal which takes the writes begins with. */
  get firstSequence(): number {
    return this.#plan.firstSequence
  }

  /** Acknowledged bytes in the journal that takes the writes. */
  get bytes(): number {
    return this.#journal?.bytes ?? this.#plan.goodBytes
  }

  /** @throws StoreUnavailable when the line is not certainly durable; the cause says why. */
  async append(line: Uint8Array): Promise<void> {
    try {
      await this.#exclusively(async () => {
        const journal = this.#journal
        if (!journal) throw new StoreUnavailable(this.#unavailableReason)
        await journal.append(line)
        this.#plan = {
          ...this.#plan,
          nextSequence: this.#plan.nextSequence + 1,
          goodBytes: journal.bytes,
        }
      })
      if (this.#unavailableReason !== undefined) this.#recovered()
    } catch (error) {
      if (error instanceof StoreUnavailable) throw error
      // A file that a sync failed on, or that could not be cut back, is never touched again.
      if (!(error instanceof AppendFailed && error.clean)) this.#letGo()
      this.#failed(error)
      throw new StoreUnavailable(this.#unavailableReason, { cause: error })
    }
  }

  /**
   * Puts the planned journal in place: at start, and whenever the one in use is in doubt. Never
   * throws; `unavailableReason` tells.
   */
  async renew(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#closed) return
    try {
      await this.#exclusively(async () => {
        const lines = await this.#goodLines()
        await this.#goOnWith(this.#plan, lines)
      })
      if (this.#unavailableReason !== undefined) this.#recovered()
    } catch (error) {
      this.#failed(error)
    }
  }

  /**
   * Turns to the next journal; the one before is closed for good. Resolves with the length of that
   * one in bytes.
   * @throws when that fails: it goes on with the one before, or, where the new one may be in place
   * already, renews that.
   */
  async turn(): Promise<number> {
    return this.#exclusively(async () => {
      // A journal in doubt may end in a line that was not acknowledged: only renewing it makes it
      // one that others may follow.
      if (!this.#journal) throw new StoreUnavailable(this.#unavailableReason)
      const closedBytes = this.bytes
      const firstSequence = this.#plan.nextSequence
      try {
        await this.#goOnWith(
          {
            number: this.#plan.number + 1,
            firstSequence,
            nextSequence: firstSequence,
            goodBytes: 0,
          },
          new Uint8Array(),
        )
        return closedBytes
      } catch (error) {
        if (error instanceof JournalMisplaced) this.#failed(error)
        throw error
      }
    })
  }

  /**
   * Puts a journal in place and lets go of the one before, as soon as that may no longer be the one
   * to write to.
   */
  async #goOnWith(plan: JournalPlan, lines: Uint8Array): Promise<void> {
    try {
      const journal = await Journal.create(
        this.#files,
        this.#directory,
        plan.number,
        plan.firstSequence,
        lines,
        this.#reserveBytes,
      )
      this.#letGo()
      this.#journal = journal
      this.#plan = { ...plan, goodBytes: journal.bytes }
    } catch (error) {
      if (error instanceof JournalMisplaced) {
        this.#letGo()
        this.#plan = plan
      }
      throw error
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await this.#busy
    this.#letGo()
  }

  /** The acknowledged lines, read back and verified before they take their own place. */
  async #goodLines(): Promise<Uint8Array> {
    const { number, firstSequence, nextSequence, goodBytes } = this.#plan
    if (nextSequence === firstSequence) return new Uint8Array()
    const path = `${this.#directory}/${journalName(number)}`
    const bytes = (await this.#files.read(path)).subarray(0, goodBytes)
    const groups = readJournal(path, bytes, false)
    let step = groups.next()
    while (!step.done) step = groups.next()
    const extent = step.value
    if (extent.firstSequence !== firstSequence || extent.nextSequence !== nextSequence) {
      throw new StoreCorrupt(path, bytes.length, 'acknowledged lines are missing')
    }
    return bytes.subarray(extent.headerBytes)
  }

  /** One thing at a time on the journal's file. */
  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#busy.then(work)
    this.#busy = result.catch(() => {})
    return result
  }

  #letGo(): void {
    // What a close reports about a file in doubt changes nothing: it is not written to again.
    this.#journal?.close().catch(() => {})
    this.#journal = undefined
  }

  #failed(error: unknown): void {
    const reason = reasonOf(error)
    this.#unavailableReason = reason
    this.#log('error', 'plants cannot be written at the moment; reading goes on', {
      error,
      retryMs: this.#retryMs,
    })
    clearTimeout(this.#timer)
    if (this.#closed) return
    this.#timer = setTimeout(() => void this.renew(), this.#retryMs)
    this.#timer.unref()
    this.#retryMs = Math.min(this.#retryMs * 2, LAST_RETRY_MS)
  }

  #recovered(): void {
    clearTimeout(this.#timer)
    this.#unavailableReason = undefined
    this.#retryMs = this.#firstRetryMs
    this.#log('info', 'plants can be written again')
  }
}
