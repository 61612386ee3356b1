/* Appends to the journal, rotates it, and rewrites it after a failure. */

import { errorCodeOf, reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { type File, freeBytes, writeWhole } from './files.ts'
import { batchLine, headerLine, journalName, readJournal } from './journal-format.ts'
import { type JournalExtent, type Row, StoreCorrupt } from './journal-format.ts'
import type { Recovery } from './recovery.ts'
import type { ResolvedOptions } from './store-options.ts'
import { temporaryName } from './store-directory.ts'

/** A journal's acknowledged part: its header and good lines. */
interface Journal {
  readonly number: number
  readonly firstSequence: number
  /** The sequence of the next line. */
  readonly nextSequence: number
  /** Length without padding; 0 if there is no file yet. */
  readonly bytes: number
  /** Length of the earlier journals that the start found or this process closed. */
  readonly bytesBefore: number
  /** How many plants were stored before this journal, and with it. */
  readonly plantsBefore: number
  readonly plants: number
}

/**
 * Some or all of a write, or of a new journal file, may be on the disk: the file is never written
 * to again. After any other error the journal is as it was before, and an open file is used again.
 */
class InDoubt extends Error {}

const LAST_RETRY_MS = 5000
/** A full disk may refuse thousands of batches a second, and hold the log too. */
const TELL_EVERY_MS = 1000
/** Padding is written only if this many lines as long as the current one fit into it. */
const PADDED_LINES = 16
/** A write that fails with one of these stored nothing, or a part that can be cut off. */
const NO_SPACE: ReadonlySet<string | undefined> = new Set(['ENOSPC', 'EDQUOT', 'EFBIG'])
const NO_LINES = new Uint8Array()

/**
 * Writes the journal. After a failure that leaves its file in doubt the only way on is to rewrite
 * the journal: its acknowledged lines go to a new file, because a sync that failed once may report
 * success the next time. Rewriting is tried again with a growing delay, and until it succeeds
 * nothing is appended.
 */
export class JournalWriter {
  readonly #options: ResolvedOptions
  #journal: Journal
  /** The journal that a start found, until what follows its acknowledged lines is put aside. */
  #found: JournalExtent | undefined
  /** The file that lines are appended to; undefined until the journal has been rewritten. */
  #file: File | undefined
  #paddingBytes = 0
  /** The end of all that was ever written to the file. A line that ends before needs no padding. */
  #paddedTo = 0
  #unavailableReason: string | undefined
  /** When a failure was last logged as an error. */
  #toldAtMs = -Infinity
  #timer: NodeJS.Timeout | undefined
  #retryMs: number
  #busy: Promise<unknown> = Promise.resolve()
  #closed = false

  private constructor(options: ResolvedOptions, recovery: Recovery) {
    this.#options = options
    this.#retryMs = options.retryMs.write
    this.#journal = nextJournal(recovery)
    this.#found = recovery.last
  }

  /**
   * Goes on with a journal that a start found, or begins a new one. The journal is rewritten first:
   * after a crash the page cache may show lines that are not on the disk.
   * @throws Error if its lines cannot be made durable in any way.
   */
  static async open(options: ResolvedOptions, recovery: Recovery): Promise<JournalWriter> {
    const writer = new JournalWriter(options, recovery)
    await writer.#rewrite()
    if (writer.ready || !writer.hasLines) return writer
    // On a full disk plants can still be read. They must be durable for that.
    try {
      await writer.#exclusively(() => writer.#writeAgain())
    } catch (error) {
      // Its timer would go on, and rewrite the journal of a later start.
      await writer.close()
      throw error
    }
    return writer
  }

  /** Why the last write failed, until one succeeds. `ready` may be true meanwhile. */
  get unavailableReason(): string | undefined {
    return this.#unavailableReason
  }

  /** Whether a batch may be appended now. */
  get ready(): boolean {
    return this.#file !== undefined
  }

  get current(): Journal {
    return this.#journal
  }

  get hasLines(): boolean {
    return this.#journal.nextSequence > this.#journal.firstSequence
  }

  /**
   * Appends one batch as one line, with the next sequence. If this resolves with true, the line is
   * durable: the file is open with O_DSYNC. Otherwise `unavailableReason` says why. Without rows
   * it only says whether there is a file to append to.
   */
  append(rows: readonly Row[]): Promise<boolean> {
    return this.#exclusively(async () => {
      const file = this.#file
      if (!file || rows.length === 0) return file !== undefined
      return this.#succeeds(() => this.#appendLine(file, rows))
    })
  }

  /**
   * Closes the journal and begins the next one.
   * @throws Error if that failed. The current journal goes on, unless the next one's file may be in
   * place: then the next one is the current one, and is rewritten.
   */
  rotate(): Promise<void> {
    return this.#exclusively(async () => {
      // A journal in doubt may end in a line that was not acknowledged. No journal may begin after
      // it.
      if (!this.#file) throw new StoreUnavailable(this.#unavailableReason)
      const { number, nextSequence, bytesBefore, bytes, plants } = this.#journal
      const next = emptyJournal(number + 1, nextSequence, bytesBefore + bytes, plants)
      await this.#create(next, NO_LINES).catch((error: unknown) => {
        if (error instanceof InDoubt) this.#fail(error)
        throw error
      })
    })
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await this.#busy
    this.#use(this.#journal, undefined)
  }

  /**
   * A write inside bytes that were written before does not change the file's length, so the file
   * system has no metadata to commit: 107 µs instead of 170 (ext4, seen). So a line that makes the
   * file longer is written together with padding for the lines to come. Invariant: nothing but
   * zeros follows the acknowledged lines when a line is written.
   */
  async #appendLine(file: File, rows: readonly Row[]): Promise<void> {
    const journal = this.#journal
    const line = batchLine(journal.nextSequence, rows)
    const bytes = journal.bytes + line.length
    const isPadded = bytes > this.#paddedTo && line.length * PADDED_LINES <= this.#paddingBytes
    const padded = isPadded ? Buffer.concat([line, Buffer.alloc(this.#paddingBytes)]) : line
    await this.#write(file, padded).catch((error: unknown) => {
      if (!isPadded || error instanceof InDoubt) throw error
      // The space that is left is for lines, and for the next snapshot.
      this.#paddingBytes = 0
      return this.#write(file, line)
    })
    const plants = journal.plants + rows.length
    this.#journal = { ...journal, bytes, plants, nextSequence: journal.nextSequence + 1 }
  }

  /** Writes after the acknowledged lines. If there is no space, nothing follows them. */
  async #write(file: File, bytes: Buffer): Promise<void> {
    const at = this.#journal.bytes
    try {
      const taken = await file.write(bytes, at)
      this.#paddedTo = Math.max(this.#paddedTo, at + taken)
      if (taken === bytes.length) return
      // To a write that fits in part Linux returns a length, and ENOSPC only to the next one.
      const what = 'no space left on the disk, or a quota is used up'
      const short = new Error(`${what}: it took ${taken} of ${bytes.length} bytes`)
      throw Object.assign(short, { code: 'ENOSPC' })
    } catch (cause) {
      const what = 'the journal could not be written'
      if (!NO_SPACE.has(errorCodeOf(cause))) throw new InDoubt(what, { cause })
      await this.#cutBack(file).catch(() => {
        throw new InDoubt(what, { cause })
      })
      throw new Error(what, { cause })
    }
  }

  /**
   * Cuts off the part of a line that may have been written, and the padding with it: if a shorter
   * line were written over the rest of a longer one, no zeros would follow it.
   */
  async #cutBack(file: File): Promise<void> {
    await file.truncate(this.#journal.bytes)
    await file.sync()
  }

  /** Puts the journal's acknowledged lines, or a new journal, in place. Never throws. */
  #rewrite(): Promise<boolean> {
    return this.#exclusively(() =>
      this.#succeeds(async () => {
        const { lines, torn } = await this.#readBack()
        await this.#putAside(torn)
        await this.#create(this.#journal, lines)
        freeBytes(lines)
      }),
    )
  }

  /** Creates a journal's file, durable together with its name, and goes on with it. */
  async #create(journal: Journal, lines: Uint8Array): Promise<void> {
    const { directory, paddingBytes } = this.#options
    const name = journalName(journal.number)
    const temporary = temporaryName(name)
    const header = headerLine(journal.firstSequence)
    await directory.writeTemporary(temporary, async (file) => {
      await writeWhole(file, header, 0)
      await writeWhole(file, lines, header.length)
    })
    const bytes = header.length + lines.length
    try {
      await directory.renameIntoPlace(temporary, name)
      this.#use({ ...journal, bytes }, await directory.openDurable(name))
      this.#paddedTo = bytes
      this.#paddingBytes = paddingBytes
    } catch (cause) {
      this.#use({ ...journal, bytes }, undefined)
      throw new InDoubt('a journal could not be put in place', { cause })
    }
  }

  /** The acknowledged lines, verified, and what follows them. */
  async #readBack(): Promise<{ readonly lines: Uint8Array; readonly torn: Uint8Array }> {
    const { number, firstSequence, nextSequence, bytes } = this.#journal
    const tornBytes = this.#found?.tornBytes ?? 0
    if (!this.hasLines && tornBytes === 0) return { lines: NO_LINES, torn: NO_LINES }
    const { directory } = this.#options
    const name = journalName(number)
    const path = directory.pathOf(name)
    const contents = await directory.read(name)
    const acknowledged = contents.subarray(0, bytes)
    const torn = contents.subarray(bytes, bytes + tornBytes)
    try {
      const lines = readJournal(path, acknowledged, false)
      let step = lines.next()
      while (!step.done) step = lines.next()
      const found = step.value
      if (found.firstSequence === firstSequence && found.nextSequence === nextSequence)
        return { lines: acknowledged.subarray(found.headerBytes), torn }
    } catch (error) {
      if (!(error instanceof StoreCorrupt)) throw error
    }
    const what = 'acknowledged lines are missing or damaged'
    const advice = 'only GET /plants still has their plants, until the service stops'
    throw new StoreCorrupt(path, acknowledged.length, what, advice)
  }

  /** Writes the lines again, in their place. After a sync that failed, the next proves nothing. */
  async #writeAgain(): Promise<void> {
    const { lines } = await this.#readBack()
    const { number, bytes } = this.#journal
    const { directory } = this.#options
    const file = await directory.openDurable(journalName(number))
    await writeWhole(file, lines, bytes - lines.length).finally(file.close)
    freeBytes(lines)
    // The rewriting may have put its own file in place, whose name is not durable yet.
    await directory.sync()
  }

  /** Keeps a torn line: on a disk that lost what it had synced, it may have been acknowledged. */
  async #putAside(torn: Uint8Array): Promise<void> {
    if (!this.#found || torn.length === 0) return
    const { directory } = this.#options
    const temporary = temporaryName(this.#found.tornName)
    await directory.writeTemporary(temporary, (file) => writeWhole(file, torn, 0))
    await directory.renameIntoPlace(temporary, this.#found.tornName)
    this.#found = undefined
  }

  /** Goes on with a journal, and with its file, if that is not in doubt. */
  #use(journal: Journal, file: File | undefined): void {
    // What a close reports does not matter: the file is not written to again.
    this.#file?.close().catch(() => {})
    this.#file = file
    this.#journal = journal
  }

  /** Does work after which plants can be written. Returns whether it succeeded. */
  async #succeeds(work: () => Promise<void>): Promise<boolean> {
    try {
      await work()
    } catch (error) {
      this.#fail(error)
      return false
    }
    if (this.#unavailableReason === undefined) return true
    clearTimeout(this.#timer)
    this.#unavailableReason = undefined
    this.#retryMs = this.#options.retryMs.write
    this.#options.log.info('plants can be written again')
    return true
  }

  /** Tells that plants cannot be written, and plans the next rewriting. */
  #fail(error: unknown): void {
    const { log } = this.#options
    if (error instanceof InDoubt) this.#use(this.#journal, undefined)
    this.#unavailableReason = reasonOf(error)
    const retryMs = this.#retryMs
    this.#retryMs = Math.min(2 * retryMs, LAST_RETRY_MS)
    const isTold = performance.now() < this.#toldAtMs + TELL_EVERY_MS
    if (!isTold) this.#toldAtMs = performance.now()
    const tell = isTold ? log.debug : log.error
    tell('plants cannot be written at the moment; reading goes on', { error, retryMs })
    clearTimeout(this.#timer)
    if (!this.#closed) this.#timer = setTimeout(() => void this.#rewrite(), retryMs).unref()
  }

  /** Runs one piece of work at a time on the journal. */
  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#busy.then(work)
    this.#busy = result.catch(() => {})
    return result
  }
}

/** The last journal's good lines, or a new journal after all others. */
function nextJournal(recovery: Recovery): Journal {
  const { sequence, last, closedBytes, database } = recovery
  const { count } = database
  if (!last) return emptyJournal(recovery.nextJournal, sequence + 1, closedBytes, count)
  const { number, firstSequence, nextSequence, goodBytes: bytes, plants } = last
  const before = { bytesBefore: closedBytes, plantsBefore: count - plants }
  return { number, firstSequence, nextSequence, bytes, ...before, plants: count }
}

function emptyJournal(number: number, sequence: number, bytesBefore: number, plants: number) {
  const sequences = { firstSequence: sequence, nextSequence: sequence }
  return { number, ...sequences, bytes: 0, bytesBefore, plantsBefore: plants, plants }
}
