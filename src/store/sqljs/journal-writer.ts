/* Appends to the journal, rotates it, and rewrites it after a failure. */

import { randomInt } from 'node:crypto'
import { crc32 } from 'node:zlib'
import { errorCodeOf, reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { type File, freeBytes, readWhole, writeWhole } from './disk/files.ts'
import { batchLine, headLines, type Journal, journalName } from './disk/journal-format.ts'
import { type Position, type Row, StoreCorrupt, TORN, tornName } from './disk/journal-format.ts'
import type { Recovery } from './recovery.ts'
import { LAST_RETRY_UNSERVED_MS, repeatWhile } from './repeat.ts'
import type { ResolvedOptions } from './store-options.ts'
import { CHECK_EVERY_MS, temporaryName } from './disk/store-directory.ts'

/** Padding is written only if this many lines as long as the current one fit into it. */
const PADDED_LINES = 16
/** Ids are numbers that JavaScript and SQLite keep exact. */
const MAX_ID = 2 ** 48
/** A write that fails with one of these stored nothing, or a part that can be cut off. */
const NO_SPACE: ReadonlySet<string | undefined> = new Set(['ENOSPC', 'EDQUOT', 'EFBIG'])

/**
 * Writes the journal. After a failure that leaves its file in doubt the only way on is to rewrite
 * the journal: its acknowledged lines go to a new file, because a sync that failed once may report
 * success the next time. Rewriting is tried again with a growing delay, and until it succeeds
 * nothing is appended.
 *
 * | state | `#file` | `unavailableReason` | |
 * |---|---|---|---|
 * | ready | open | | lines are appended |
 * | refused | open | set | the last write left nothing: lines are appended, and one ends this |
 * | in doubt | | set | the journal is rewritten first |
 */
export class JournalWriter {
  readonly #options: ResolvedOptions
  /** The journal that is written. Others read this and the next three, and do not set them. */
  current: Journal
  /** The journals before it that are not compacted yet, in order. */
  closed: readonly Journal[]
  /** How many plants are stored. */
  plants: number
  /** Why the last write failed, until one succeeds. `ready` may be true meanwhile. */
  unavailableReason: string | undefined
  /** The last journal that a start found, until its torn line is put aside. */
  #found: Journal | undefined
  /**
   * The file that lines are appended to. Undefined while the journal is in doubt, until it has been
   * rewritten: some or all of a write, or of a new file, may be on the disk. After a failure that
   * keeps the file, the journal is as it was before, and the file is used again.
   */
  #file: File | undefined
  /**
   * What was written to the file ends there at most: a line that ends before needs no padding.
   * Infinity once there was no space for padding.
   */
  #paddedTo = 0
  #retrying: Promise<void> | undefined
  #busy: Promise<unknown> = Promise.resolve()
  readonly #stopped = new AbortController()

  constructor(options: ResolvedOptions, recovery: Recovery) {
    const { journals, end, needsId, nextJournal, database } = recovery
    this.#options = options
    this.#found = journals.at(-1)
    this.plants = database.count
    const begin = { ...end, id: randomInt(1, MAX_ID) }
    this.current = (!needsId && this.#found) || emptyJournal(nextJournal, begin)
    this.closed = journals.filter((journal) => journal !== this.current)
  }

  /** Whether a batch may be appended now. */
  get ready(): boolean {
    return this.#file !== undefined
  }

  /** Length of the journals that are not compacted yet. */
  get lengthBytes(): number {
    return this.closed.reduce((sum, { goodBytes }) => sum + goodBytes, this.current.goodBytes)
  }

  /** A snapshot is in place of the first closed journals. */
  dropClosed(count: number): void {
    this.closed = this.closed.slice(count)
  }

  /**
   * Appends one batch as one line, with the next sequence. If this resolves with true, the line is
   * durable: the file is open with O_DSYNC. Otherwise `unavailableReason` says why. It checks the
   * directory first, unless that was done within this time. Without rows it does no more than that.
   */
  append(rows: readonly Row[], withinMs = CHECK_EVERY_MS): Promise<boolean> {
    // No create waits for a rewriting: on a failing disk that may take very long.
    if (!this.ready) return Promise.resolve(false)
    return this.#exclusively(async () => {
      // What another program did to the directory leaves the journal in doubt.
      await this.#options.directory.check(withinMs).catch((error: unknown) => {
        this.#use(undefined)
        this.#fail(error)
      })
      if (!this.ready || rows.length === 0) return this.ready
      return this.#succeeds(() => this.#appendLine(rows))
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
      if (!this.ready) throw new StoreUnavailable(this.unavailableReason)
      await this.#create(nextOf(this.current)).catch((error: unknown) => {
        if (!this.ready) this.#fail(error)
        throw error
      })
    })
  }

  /**
   * At a stop: the current journal is closed, and none follows. It is not rewritten any more. The
   * end has the id of the journals before it, of which a kill may leave some: no new one.
   */
  async end(): Promise<void> {
    await this.close()
    const { id } = (this.closed.at(-1) ?? this.current).end
    this.closed = [...this.closed, this.current]
    this.current = emptyJournal(this.current.number + 1, { ...this.current.end, id })
  }

  async close(): Promise<void> {
    this.#stopped.abort()
    await this.#busy
    this.#use(undefined)
  }

  /**
   * A write inside bytes that were written before does not change the file's length, so the file
   * system has no metadata to commit: 107 µs instead of 170 (ext4, seen). So a line that makes the
   * file longer is written together with padding for the lines to come. Invariant: nothing but
   * zeros follows the acknowledged lines when a line is written.
   */
  async #appendLine(rows: readonly Row[]): Promise<void> {
    const line = batchLine(this.current.end.sequence + 1, rows)
    const { paddingBytes, maxJournalBytes } = this.#options
    if (this.current.plants > 0 && this.current.goodBytes + line.length > maxJournalBytes)
      await this.#create(nextOf(this.current))
    const journal = this.current
    const goodBytes = journal.goodBytes + line.length
    const isPadded = goodBytes > this.#paddedTo && line.length * PADDED_LINES <= paddingBytes
    const padded = isPadded ? Buffer.concat([line, Buffer.alloc(paddingBytes)]) : line
    await this.#write(padded).catch((error: unknown) => {
      if (!isPadded || !this.ready) throw error
      // The space that is left is for lines, and for the next snapshot.
      this.#paddedTo = Infinity
      return this.#write(line)
    })
    const { id, sequence, checksum } = journal.end
    const end = { id, sequence: sequence + 1, checksum: crc32(line, checksum) }
    this.current = { ...journal, end, goodBytes, plants: journal.plants + rows.length }
    this.plants += rows.length
  }

  /** Writes after the acknowledged lines. If there is no space, nothing follows them. */
  async #write(bytes: Buffer): Promise<void> {
    const [at, file] = [this.current.goodBytes, this.#file]
    if (!file) throw new StoreUnavailable(this.unavailableReason)
    try {
      const taken = await file.write(bytes, at)
      this.#paddedTo = Math.max(this.#paddedTo, at + taken)
      if (taken === bytes.length) return
      // To a write that fits in part Linux returns a length, and ENOSPC only to the next one.
      const what = 'no space left on the disk, or a quota is used up'
      const short = new Error(`${what}: it took ${taken} of ${bytes.length} bytes`)
      throw Object.assign(short, { code: 'ENOSPC' })
    } catch (cause) {
      // Cuts off the part of a line that may have been written, and the padding with it: if a
      // shorter line were written over the rest of a longer one, no zeros would follow it.
      if (!NO_SPACE.has(errorCodeOf(cause))) this.#use(undefined)
      else await file.truncate(at).then(file.sync).catch(() => this.#use(undefined))
      throw new Error('the journal could not be written', { cause })
    }
  }

  /**
   * Puts the journal's acknowledged lines, or a new journal, in place. A start does it first: after
   * a crash the page cache may show lines that are not on the disk. Never throws.
   */
  rewrite(): Promise<boolean> {
    const rewrite = async (): Promise<void> => {
      await this.#options.directory.check()
      const lines = this.current.plants > 0 ? await this.#readBack(this.current) : Buffer.of()
      await this.#putAside()
      await this.#create(this.current, lines)
      freeBytes(lines)
    }
    return this.#exclusively(() => this.#succeeds(rewrite))
  }

  /** Creates a journal's file, durable together with its name, and goes on with it. */
  async #create(journal: Journal, lines: Uint8Array = Buffer.of()): Promise<void> {
    const { directory } = this.#options
    const { name } = journal
    const temporary = temporaryName(name)
    await directory.writeTemporary(temporary, async (file) => {
      await writeWhole(file, headLines(journal.begin), 0)
      await writeWhole(file, lines, journal.headBytes)
    })
    // From now on it may be in place.
    if (journal !== this.current) this.closed = [...this.closed, this.current]
    this.current = journal
    try {
      await directory.renameIntoPlace(temporary, name)
      this.#use(await directory.openDurable(name))
      this.#paddedTo = journal.goodBytes
    } catch (cause) {
      this.#use(undefined)
      throw new Error('a journal could not be put in place', { cause })
    }
  }

  /** The acknowledged lines of a journal, verified. */
  async #readBack({ name, begin, end, headBytes, goodBytes }: Journal): Promise<Buffer> {
    const { directory } = this.#options
    const file = await directory.openExisting(name)
    const contents = await readWhole(file, goodBytes).finally(file.close)
    const lines = contents.subarray(headBytes)
    if (contents.length === goodBytes && crc32(lines, begin.checksum) === end.checksum) return lines
    const what = 'acknowledged lines are missing or damaged'
    const advice = 'only memory still has their plants, and a stop saves it'
    throw new StoreCorrupt(directory.pathOf(name), contents.length, what, advice)
  }

  /** Keeps a torn line: on a disk that lost what it had synced, it may have been acknowledged. */
  async #putAside(): Promise<void> {
    const found = this.#found
    if (!found || found.torn.length === 0) return
    const { name, goodBytes: byte, torn } = found
    const { directory, log } = this.#options
    const temporary = temporaryName(tornName(found))
    await directory.writeTemporary(temporary, (file) => writeWhole(file, torn, 0))
    await directory.renameIntoPlace(temporary, tornName(found))
    this.#found = undefined
    const [file, kept] = [name, tornName(found)].map((each) => directory.pathOf(each))
    const what = 'the last line of the journal is torn, and is put aside'
    log.error(`${what}: ${TORN}`, { file, byte, bytes: torn.length, kept })
  }

  /** Goes on with a file, or with none. */
  #use(file: File | undefined): void {
    // What a close reports does not matter: the file is not written to again.
    this.#file?.close().catch(() => {})
    this.#file = file
  }

  /** Does work after which plants can be written. Returns whether it succeeded. */
  async #succeeds(work: () => Promise<void>): Promise<boolean> {
    try {
      await work()
    } catch (error) {
      this.#fail(error)
      return false
    }
    if (this.unavailableReason !== undefined) this.#options.log.info('plants can be written again')
    this.unavailableReason = undefined
    return true
  }

  /** Tells that plants cannot be written, and lets the journal be rewritten until they can. */
  #fail(error: unknown): void {
    const { log, retryMs } = this.#options
    // On a full disk thousands of batches a second may be refused, and the log may be there too.
    const tell = this.unavailableReason === undefined ? log.error : log.debug
    this.unavailableReason = reasonOf(error)
    tell('plants cannot be written at the moment; reading goes on', { error })
    this.#retrying ??= repeatWhile(
      () => this.unavailableReason !== undefined,
      () => this.rewrite(),
      [retryMs, LAST_RETRY_UNSERVED_MS],
      this.#stopped.signal,
    ).finally(() => (this.#retrying = undefined))
  }

  /** Runs one piece of work at a time on the journal. */
  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#busy.then(work)
    this.#busy = result.catch(() => {})
    return result
  }
}

function emptyJournal(number: number, at: Position): Journal {
  const headBytes = headLines(at).length
  const lines = { begin: at, end: at, headBytes, goodBytes: headBytes, plants: 0 }
  return { ...lines, name: journalName(number), number, torn: Buffer.of() }
}

function nextOf({ number, end }: Journal): Journal {
  return emptyJournal(number + 1, end)
}
