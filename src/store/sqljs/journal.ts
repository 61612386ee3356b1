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
 * A crc32 is 8 lower-case hex digits; JSON holds no raw newline. Invariant: a line's sequence is the previous one's + 1.
 */
const FORMAT = 'plant-store-journal'
const VERSION = 1
/** A header is shorter, whatever its sequence. */
export const HEADER_MAX_BYTES = 128
const HEADER = /^(plant-store-journal (\d+) (\d+)) ([0-9a-f]{8})$/
const CHECKSUM = /^[0-9a-f]{8}$/
const CANDIDATES_MAX = 100
const NEWLINE = 10

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

/** What stands in a journal. `goodBytes` ends behind the last good line; `tornBytes` are what follows it, never acknowledged. */
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

export function groupLine(sequence: number, rows: readonly Row[]): Buffer {
  const rest = Buffer.from(`${sequence} ${JSON.stringify(rows)}\n`)
  return Buffer.concat([Buffer.from(`${checksum(rest.subarray(0, -1))} `), rest])
}

/**
 * The first sequence of a journal, from its first bytes; undefined where not even the first line is whole, which is
 * what a rotation leaves that did not come to its end.
 * @throws StoreCorrupt when the line is damaged, or of another version.
 */
export function readHeader(file: string, bytes: Buffer): number | undefined {
  const end = bytes.indexOf(NEWLINE)
  if (end < 0) {
    if (bytes.length >= HEADER_MAX_BYTES) throw new StoreCorrupt(file, 0, 'it does not begin as a journal does')
    return undefined
  }
  const line = bytes.toString('latin1', 0, end)
  const [, text, version, first, sum] = HEADER.exec(line) ?? []
  if (text === undefined || checksum(text) !== sum) throw new StoreCorrupt(file, 0, 'its first line is not that of a journal')
  if (Number(version) !== VERSION) throw new StoreCorrupt(file, 0, `it has version ${version}, and this plant-store reads version ${VERSION}`)
  return Number(first)
}

/**
 * Reads a whole journal, group by group. Of the last one, a broken line at the very end was never acknowledged, since
 * one group is in flight at a time: it is torn, and left out. Anything else that is wrong is damage.
 * @throws StoreCorrupt with file and byte.
 */
export function* readJournal(file: string, bytes: Buffer, isLast: boolean): Generator<Group, JournalExtent, undefined> {
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
      if (end >= 0 && end < bytes.length - 1) throw new StoreCorrupt(file, at, 'a line is broken, and more lines follow')
      if (holdsLine(bytes.subarray(at), sequence + 1)) throw new StoreCorrupt(file, at, 'a line is broken, and a good one follows')
      break
    }
    // The checksum says that this is what groupLine wrote.
    yield { sequence, rows: () => JSON.parse(json.toString('utf8')) as readonly Row[] }
    sequence += 1
    at = end + 1
  }
  return { firstSequence, nextSequence: sequence, headerBytes, goodBytes: at, tornBytes: bytes.length - at }
}

/** The JSON of a line of this sequence, or undefined where it is broken. */
function readLine(line: Buffer, sequence: number): Buffer | undefined {
  const start = `${checksum(line.subarray(9))} ${sequence} `
  return line.toString('latin1', 0, start.length) === start ? line.subarray(start.length) : undefined
}

/** Whether a good line of this sequence stands inside what looks like one broken line: then the newline before it is what broke. */
function holdsLine(bytes: Buffer, sequence: number): boolean {
  const end = bytes.at(-1) === NEWLINE ? bytes.length - 1 : bytes.length
  const mark = ` ${sequence} [`
  let tried = 0
  for (let at = bytes.indexOf(mark); at >= 0; at = bytes.indexOf(mark, at + 1)) {
    if (at < 8 || !CHECKSUM.test(bytes.toString('latin1', at - 8, at))) continue
    // A text made of such marks would take hours: then a person must look.
    if (++tried > CANDIDATES_MAX || readLine(bytes.subarray(at - 8, end), sequence)) return true
  }
  return false
}

/** A write was not taken, and the file holds the acknowledged lines and perhaps a part of the new one. */
class WriteRefused extends Error {}

/** The journal that takes the writes. Only one `append` at a time. */
export class Journal {
  readonly #file: File
  #bytes: number

  private constructor(file: File, bytes: number) {
    this.#file = file
    this.#bytes = bytes
  }

  /** The length of what was acknowledged, header included. */
  get bytes(): number {
    return this.#bytes
  }

  /**
   * Puts a journal in place, with good lines or none, and opens it: durable before the first group, its name included.
   * Taking the place of a journal in doubt, this is *renewing*: what the page cache shows after a crash or a failed sync
   * may not be on the disk, and a sync that failed once may report success the next time, so the lines go to a new file.
   * @throws JournalMisplaced when it may be in place and may not; any other error leaves all as it was.
   */
  static async create(files: Files, directory: string, number: number, firstSequence: number, lines: Uint8Array): Promise<Journal> {
    const header = Buffer.from(headerLine(firstSequence))
    await writeAside(files, directory, journalName(number), [header, lines])
    try {
      await putInPlace(files, directory, journalName(number))
      const file = await files.open(`${directory}/${journalName(number)}`, 'append')
      return new Journal(file, header.length + lines.length)
    } catch (error) {
      throw new JournalMisplaced(error)
    }
  }

  /**
   * Appends one group's line, durable when this resolves: the file is open O_DSYNC.
   * @throws when it is not; then either the file is as before (`clean` true), or must never be written to again.
   */
  async append(line: Uint8Array): Promise<void> {
    try {
      const taken = await this.#file.write(line)
      if (taken < line.length) throw new WriteRefused(`the file system took ${taken} of ${line.length} bytes`)
      this.#bytes += line.length
    } catch (error) {
      throw new AppendFailed(error, await this.#cutBack(error))
    }
  }

  /**
   * After a write that was refused for want of space, or taken in part, the file ends in nothing or in a part of a line.
   * Cutting that off leaves it as it was. After any other failure what is on the disk is unknown: no way back.
   */
  async #cutBack(error: unknown): Promise<boolean> {
    const code = errorCodeOf(error)
    if (!(error instanceof WriteRefused) && code !== 'ENOSPC' && code !== 'EDQUOT' && code !== 'EFBIG') return false
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

/** A new journal may stand in its place already, though not for certain: nothing may be written to the one before it. */
export class JournalMisplaced extends Error {
  constructor(cause: unknown) {
    super(`a journal could not be put in place: ${cause instanceof Error ? cause.message : String(cause)}`, { cause })
  }
}

export class AppendFailed extends Error {
  /** Whether the journal is as it was before, and may be written to again. */
  readonly clean: boolean

  constructor(cause: unknown, clean: boolean) {
    super(`the journal could not be written: ${cause instanceof Error ? cause.message : String(cause)}`, { cause })
    this.clean = clean
  }
}
