import { crc32 } from 'node:zlib'
import { errorCodeOf } from '../../errors.ts'
import type { Row } from './database.ts'
import { type File, type Files, putInPlace, writeAside } from './files.ts'

/*
 * A journal is text, one line for each group commit:
 *
 *     plant-store-journal 1 <first sequence> <crc32 of all before the last space>\n
 *     <crc32 of the rest> <sequence> <JSON array of rows>\n
 *
 * Behind the last line zeros may stand: the reserve, space for lines to come. A crc32 is 8
 * lower-case hex digits; JSON holds no raw newline and no zero byte. Invariant: a line's sequence
 * is the previous one's + 1.
 */
const FORMAT = 'plant-store-journal'
const VERSION = 1
/** A header is shorter, whatever its sequence. */
export const HEADER_MAX_BYTES = 128
const HEADER = /^(plant-store-journal (\d+) (\d+)) ([0-9a-f]{8})$/
const LINE_START = /(\0?)[0-9a-f]{8} (\d+) \[/g
const CANDIDATES_MAX = 100
const NEWLINE = 10
/**
 * Zeros that are written ahead at a time: so many that of groups under 5 KB fewer than one in a
 * hundred waits for them, so few that none waits long (1 ms, seen).
 */
export const RESERVE_BYTES = 512 * 1024
/** Lines that must fit into them, or they are not worth writing. */
const RESERVE_LINES = 16

/** A file of the store is damaged, or not of this format: a person must look. */
export class StoreCorrupt extends Error {
  constructor(file: string, byte: number, what: string) {
    super(`${file} is damaged at byte ${byte}: ${what}`)
  }
}

/** One line of a journal, whose checksum fits. */
export interface Group {
  readonly sequence: number
  rows(): readonly Row[]
}

/**
 * What stands in a journal, its reserve left out. `goodBytes` ends behind the last good line;
 * `tornBytes` are what follows it, never acknowledged.
 */
export interface JournalExtent {
  readonly firstSequence: number
  /** The sequence that the next line would have. */
  readonly nextSequence: number
  readonly headerBytes: number
  readonly goodBytes: number
  readonly tornBytes: number
}

export function journalName(number: number): string {
  return `journal-${String(number).padStart(8, '0')}.log`
}

/** The number in a journal's name, or undefined for another file's. */
export function journalNumber(name: string): number | undefined {
  const digits = /^journal-(\d{8,15})\.log$/.exec(name)?.[1]
  return digits === undefined ? undefined : Number(digits)
}

function checksum(data: string | Uint8Array): string {
  return crc32(data).toString(16).padStart(8, '0')
}

function headerLine(firstSequence: number): string {
  const text = `${FORMAT} ${VERSION} ${firstSequence}`
  return `${text} ${checksum(text)}\n`
}

export function batchLine(sequence: number, rows: readonly Row[]): Buffer {
  const rest = Buffer.from(`${sequence} ${JSON.stringify(rows)}\n`)
  return Buffer.concat([Buffer.from(`${checksum(rest.subarray(0, -1))} `), rest])
}

/**
 * The first sequence of a journal, from its first bytes; undefined where not even the first line is
 * whole, which is what a rotation leaves that did not come to its end.
 * @throws StoreCorrupt when the line is damaged, or of another version.
 */
export function readHeader(file: string, bytes: Buffer): number | undefined {
  const end = bytes.indexOf(NEWLINE)
  if (end < 0) {
    if (bytes.length >= HEADER_MAX_BYTES)
      throw new StoreCorrupt(file, 0, 'it does not begin as a journal does')
    return undefined
  }
  const line = bytes.toString('latin1', 0, end)
  const [, text, version, first, sum] = HEADER.exec(line) ?? []
  if (text === undefined || checksum(text) !== sum)
    throw new StoreCorrupt(file, 0, 'its first line is not that of a journal')
  if (Number(version) !== VERSION)
    throw new StoreCorrupt(
      file,
      0,
      `it has version ${version}, and this plant-store reads version ${VERSION}`,
    )
  return Number(first)
}

/**
 * Reads a whole journal, group by group. Of the last one, a broken line at the very end was never
 * acknowledged, since one group is in flight at a time: it is torn, and left out. Anything else
 * that is wrong is damage.
 * @throws StoreCorrupt with file and byte.
 */
export function* readJournal(
  file: string,
  contents: Buffer,
  isLast: boolean,
): Generator<Group, JournalExtent, undefined> {
  const bytes = withoutReserve(contents)
  const firstSequence = readHeader(file, bytes)
  if (firstSequence === undefined) throw new StoreCorrupt(file, 0, 'its first line is not whole')
  const headerBytes = bytes.indexOf(NEWLINE) + 1
  let sequence = firstSequence
  let at = headerBytes
  while (at < bytes.length) {
    const end = bytes.indexOf(NEWLINE, at)
    const json = end < 0 ? undefined : readLine(bytes.subarray(at, end), sequence)
    if (json === undefined) {
      if (!isLast) throw new StoreCorrupt(file, at, 'a line is broken, and a later journal follows')
      if (end >= 0 && end < bytes.length - 1)
        throw new StoreCorrupt(file, at, 'a line is broken, and more lines follow')
      if (holdsLine(bytes.subarray(at), sequence + 1))
        throw new StoreCorrupt(file, at, 'a line is broken, and a good one follows')
      break
    }
    // The checksum says that this is what batchLine wrote.
    yield { sequence, rows: () => JSON.parse(json.toString('utf8')) as readonly Row[] }
    sequence += 1
    at = end + 1
  }
  return {
    firstSequence,
    nextSequence: sequence,
    headerBytes,
    goodBytes: at,
    tornBytes: bytes.length - at,
  }
}

function withoutReserve(contents: Buffer): Buffer {
  let end = contents.length
  while (end > 0 && contents[end - 1] === 0) end--
  return contents.subarray(0, end)
}

/** The JSON of a line of this sequence, or undefined where it is broken. */
function readLine(line: Buffer, sequence: number): Buffer | undefined {
  const start = `${checksum(line.subarray(9))} ${sequence} `
  return line.toString('latin1', 0, start.length) === start
    ? line.subarray(start.length)
    : undefined
}

/**
 * Whether a good line stands inside what looks like one broken line: the one of the next sequence,
 * where the newline before it is what broke, or a later one behind zeros, where whole lines were
 * lost and read as the reserve again.
 */
function holdsLine(bytes: Buffer, next: number): boolean {
  const end = bytes.at(-1) === NEWLINE ? bytes.length - 1 : bytes.length
  let tried = 0
  for (const { index, 1: zero, 2: digits } of bytes
    .toString('latin1', 0, end)
    .matchAll(LINE_START)) {
    const sequence = Number(digits)
    if (sequence !== next && !(zero && sequence > next)) continue
    const line = bytes.subarray(index + (zero?.length ?? 0), end)
    // A text made of such marks would take hours: then a person must look.
    if (++tried > CANDIDATES_MAX || readLine(line, sequence)) return true
  }
  return false
}

/**
 * A write was not taken, and the file holds the acknowledged lines and perhaps a part of the new
 * one.
 */
class WriteRefused extends Error {}

/**
 * The journal that takes the writes. Only one `append` at a time.
 *
 * A write inside bytes that were written before changes no length, so the file system has no
 * metadata to commit: 107 µs where one that makes the file longer takes 170 (ext4, seen). So a line
 * that does is written together with zeros for those to come. Invariant: nothing but zeros stands
 * behind the acknowledged lines whenever a line is written.
 */
export class Journal {
  readonly #file: File
  #bytes: number
  /** Up to here zeros were written once; no more are taken before. */
  #reservedTo: number
  #reserveBytes: number

  private constructor(file: File, bytes: number, reserveBytes: number) {
    this.#file = file
    this.#bytes = this.#reservedTo = bytes
    this.#reserveBytes = reserveBytes
  }

  /** The length of what was acknowledged, header included and the reserve not. */
  get bytes(): number {
    return this.#bytes
  }

  /**
   * Puts a journal in place, with good lines or none, and opens it: durable before the first group,
   * its name included. Taking the place of a journal in doubt, this is *renewing*: what the page
   * cache shows after a crash or a failed sync may not be on the disk, and a sync that failed once
   * may report success the next time, so the lines go to a new file.
   * @throws JournalMisplaced when it may be in place and may not; any other error leaves all as it
   * was.
   */
  static async create(
    files: Files,
    directory: string,
    number: number,
    firstSequence: number,
    lines: Uint8Array,
    reserveBytes = RESERVE_BYTES,
  ): Promise<Journal> {
    const header = Buffer.from(headerLine(firstSequence))
    await writeAside(files, directory, journalName(number), [header, lines])
    try {
      await putInPlace(files, directory, journalName(number))
      const file = await files.open(`${directory}/${journalName(number)}`, 'durable')
      return new Journal(file, header.length + lines.length, reserveBytes)
    } catch (error) {
      throw new JournalMisplaced(error)
    }
  }

  /**
   * Appends one group's line, durable when this resolves: the file is open O_DSYNC.
   * @throws when it is not; then either the file is as before (`clean` true), or must never be
   * written to again.
   */
  async append(line: Uint8Array): Promise<void> {
    if (
      this.#bytes + line.length > this.#reservedTo &&
      line.length * RESERVE_LINES <= this.#reserveBytes
    ) {
      try {
        return await this.#write(
          Buffer.concat([line, Buffer.alloc(this.#reserveBytes)]),
          line.length,
        )
      } catch (error) {
        if (!(error instanceof AppendFailed && error.clean)) throw error
        // What room is left is for lines, and for the files beside.
        this.#reserveBytes = 0
      }
    }
    return this.#write(line, line.length)
  }

  /** Writes behind the acknowledged bytes, and acknowledges as many more. */
  async #write(bytes: Uint8Array, acknowledged: number): Promise<void> {
    try {
      const taken = await this.#file.write(bytes, this.#bytes)
      if (taken < bytes.length)
        throw new WriteRefused(`the file system took ${taken} of ${bytes.length} bytes`)
    } catch (error) {
      throw new AppendFailed(error, await this.#cutBack(error))
    }
    this.#reservedTo = Math.max(this.#reservedTo, this.#bytes + bytes.length)
    this.#bytes += acknowledged
  }

  /**
   * After a write that was refused for want of space, or taken in part, the file ends in nothing or
   * in a part of a line. Cutting that off, and the reserve with it, leaves it as it was: a line
   * over the rest of a longer one would not end in zeros. After any other failure what is on the
   * disk is unknown: no way back.
   */
  async #cutBack(error: unknown): Promise<boolean> {
    const code = errorCodeOf(error)
    if (
      !(error instanceof WriteRefused) &&
      code !== 'ENOSPC' &&
      code !== 'EDQUOT' &&
      code !== 'EFBIG'
    )
      return false
    try {
      await this.#file.truncate(this.#bytes)
      await this.#file.sync()
      return true
    } catch {
      return false
    }
  }

  close(): Promise<void> {
    return this.#file.close()
  }
}

/**
 * A new journal may stand in its place already, though not for certain: nothing may be written to
 * the one before it.
 */
export class JournalMisplaced extends Error {
  constructor(cause: unknown) {
    super(
      `a journal could not be put in place: ${cause instanceof Error ? cause.message : String(cause)}`,
      { cause },
    )
  }
}

export class AppendFailed extends Error {
  /** Whether the journal is as it was before, and may be written to again. */
  readonly clean: boolean

  constructor(cause: unknown, clean: boolean) {
    super(
      `the journal could not be written: ${cause instanceof Error ? cause.message : String(cause)}`,
      { cause },
    )
    this.clean = clean
  }
}
