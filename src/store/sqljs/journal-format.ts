import { crc32 } from 'node:zlib'

/*
 * A journal is text, one line for each batch:
 *
 *     plant-store-journal 1 <first sequence> <crc32 of all before the last space>\n
 *     <crc32 of the rest> <sequence> <JSON array of rows>\n
 *
 * Zero bytes may follow the last line: padding, which the next lines are written over. A crc32 is 8
 * lower-case hex digits; JSON holds no raw newline and no zero byte. Invariant: a line's sequence
 * is the previous one's + 1.
 */
const VERSION = 1
/** Every header is shorter. */
export const HEADER_MAX_BYTES = 128
const HEADER = /^(plant-store-journal (\d+) (\d+)) ([0-9a-f]{8})$/
/**
 * A line up to its first id. No text of a plant can look like it. Suppose that a text ends in
 * `deadbeef 5 [[`. Quotes inside a text are escaped. So of the pattern's three quotes the first
 * ends this text, the second begins the next one, and the third ends that. After it JSON has `,`
 * or `]`, but the pattern wants a digit. Zero bytes are not matched: they could hide where a text
 * ends, and no line has one.
 */
export const LINE_START = /(\0?)[0-9a-f]{8} (\d+) \[\["[^"\\\0]*(?:\\[^\0][^"\\\0]*)*","-?\d/g
const NEWLINE = 10
const CHECKSUM_CHARS = 8

/** An import opens the directory as a start does, so no damaged file may stay there. */
export const RESTORE = 'move all files of the directory elsewhere, and import the last export'
export const PUT_BACK = `put the missing file back, or ${RESTORE}`
/** What is known of a torn line. */
export const TORN = 'it was not acknowledged, unless the disk lost what it had synced'
export const OTHER_RELEASE = 'use the release that wrote it, or a newer one'

/** A file of the store is damaged or has another format: an operator must look at it. */
export class StoreCorrupt extends Error {
  constructor(file: string, byte: number, what: string, advice = RESTORE) {
    super(`${file} is damaged at byte ${byte}: ${what}; ${advice}`)
  }
}
StoreCorrupt.prototype.name = 'StoreCorrupt'

/**
 * A plant as it is stored and journalled. The id is decimal digits: the one form that JSON, SQLite
 * and sql.js all keep exact.
 */
export type Row = readonly [owner: string, id: string, name: string, tag?: string]

/** What a journal holds, without its padding. */
export interface JournalExtent {
  readonly firstSequence: number
  /** The sequence that the next line would have. */
  readonly nextSequence: number
  /** Where the last good line ends, and the crc32 of all before. */
  readonly goodBytes: number
  readonly checksum: number
  /** The broken line after it, empty if there is none, and the file that keeps this line. */
  readonly torn: Buffer
  readonly tornName: string
}

export function journalName(number: number): string {
  return `journal-${String(number).padStart(8, '0')}.log`
}

/**
 * The number in a journal's name, or undefined for another file's. No two names have one number: of
 * two journals 1, one would be taken for obsolete.
 */
export function journalNumber(name: string): number | undefined {
  const number = Number(/^journal-(\d{8,15})\.log$/.exec(name)?.[1])
  return journalName(number) === name ? number : undefined
}

function checksum(data: string | Uint8Array): string {
  return crc32(data).toString(16).padStart(CHECKSUM_CHARS, '0')
}

export function headerLine(firstSequence: number): Buffer {
  const text = `plant-store-journal ${VERSION} ${firstSequence}`
  return Buffer.from(`${text} ${checksum(text)}\n`)
}

export function batchLine(sequence: number, rows: readonly Row[]): Buffer {
  const rest = Buffer.from(`${sequence} ${JSON.stringify(rows)}\n`)
  return Buffer.concat([Buffer.from(`${checksum(rest.subarray(0, -1))} `), rest])
}

/**
 * Reads a journal's first sequence from its first bytes.
 * @throws StoreCorrupt if the first line is damaged, not whole, or of another version.
 */
export function readHeader(file: string, bytes: Buffer): number {
  const line = bytes.toString('latin1', 0, Math.max(0, bytes.indexOf(NEWLINE)))
  const [, text, version, first, sum] = HEADER.exec(line) ?? []
  if (text === undefined || checksum(text) !== sum)
    throw new StoreCorrupt(file, 0, 'its first line is not that of a journal')
  if (Number(version) !== VERSION)
    throw new StoreCorrupt(file, 0, otherVersion(version, VERSION), OTHER_RELEASE)
  return Number(first)
}

export function otherVersion(found: unknown, readable: unknown): string {
  return `it has version ${String(found)}, and this plant-store reads version ${String(readable)}`
}

/**
 * Reads a journal line by line: of each line whose checksum fits it yields the sequence, the byte
 * after the line, and the rows. In the last journal, a broken line at the very end is torn: it is
 * left out. Only one batch is in flight at a time, so a disk that keeps what it synced tears no
 * acknowledged line. Anything else that does not fit is damage.
 * @throws StoreCorrupt with file and byte.
 */
export function* readJournal(file: string, contents: Buffer, isLastJournal: boolean) {
  // Without padding.
  const bytes = contents.subarray(0, contents.findLastIndex((byte) => byte !== 0) + 1)
  const firstSequence = readHeader(file, bytes)
  let sequence = firstSequence
  let at = bytes.indexOf(NEWLINE) + 1
  while (at < bytes.length) {
    const end = bytes.indexOf(NEWLINE, at)
    const jsonAt = end < 0 ? undefined : findJson(bytes, at, end, sequence)
    if (jsonAt === undefined) {
      const why = whyNotTorn(bytes.subarray(at), sequence, isLastJournal)
      if (why === undefined) break
      throw new StoreCorrupt(file, at, `a line is broken, and ${why}`)
    }
    // The checksum fits, so the line is what batchLine wrote: an array of rows.
    const rows = JSON.parse(bytes.toString('utf8', jsonAt, end)) as readonly Row[]
    at = end + 1
    yield { sequence, endsAt: at, rows }
    sequence += 1
  }
  // A copy: the reader frees the contents.
  const torn = Buffer.from(bytes.subarray(at))
  // Two torn lines of one sequence are two files.
  const tornName = `torn-${sequence}-${checksum(torn)}.bin`
  const good = { goodBytes: at, checksum: crc32(bytes.subarray(0, at)) }
  const extent: JournalExtent = { firstSequence, nextSequence: sequence, ...good, torn, tornName }
  return extent
}

/** Where the JSON of a line of this sequence begins; undefined if the line is broken. */
function findJson(bytes: Buffer, at: number, end: number, sequence: number): number | undefined {
  const start = `${checksum(bytes.subarray(at + CHECKSUM_CHARS + 1, end))} ${sequence} `
  const jsonAt = at + start.length
  return bytes.toString('latin1', at, jsonAt) === start ? jsonAt : undefined
}

/** Why the broken rest of a journal is damage; undefined if it is one torn line. */
function whyNotTorn(rest: Buffer, sequence: number, isLastJournal: boolean): string | undefined {
  if (!isLastJournal) return 'a later journal follows'
  const end = rest.indexOf(NEWLINE)
  if (end >= 0 && end < rest.length - 1) return 'more lines follow'
  return holdsLine(rest, sequence + 1) ? 'a good one follows' : undefined
}

/**
 * Whether a good line is inside what looks like one broken line. It is the one of the next
 * sequence if the newline before it is what broke, or a later one after zeros if whole lines were
 * lost and read as padding.
 */
function holdsLine(bytes: Buffer, next: number): boolean {
  const end = bytes.at(-1) === NEWLINE ? bytes.length - 1 : bytes.length
  const text = bytes.toString('latin1', 0, end)
  for (const { index, 1: zero = '', 2: digits } of text.matchAll(LINE_START)) {
    const sequence = Number(digits)
    if (sequence !== next && !(zero && sequence > next)) continue
    if (findJson(bytes, index + zero.length, end, sequence) !== undefined) return true
  }
  return false
}
