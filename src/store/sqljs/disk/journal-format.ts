import { crc32 } from 'node:zlib'

/*
 * A journal is text: a head of two lines, and one line for each batch:
 *
 *     plant-store-journal 2 <first sequence> <crc32 of all before the last space>\n
 *     <crc32 of the rest> <the store's id> <running checksum before the first batch>\n
 *     <crc32 of the rest> <sequence> <JSON array of rows>\n
 *
 * Zero bytes may follow the last line: padding, which the next lines are written over. A crc32 is 8
 * lower-case hex digits; JSON holds no raw newline and no zero byte. Invariant: a line's sequence
 * is the previous one's + 1. Version 1 has no second line, and is only read.
 */
const VERSION = 2
export const READABLE_JOURNALS: readonly number[] = [1, VERSION]
/** Every head is shorter. */
export const HEAD_MAX_BYTES = 128
const FIRST_LINE = /^(plant-store-journal (\d+) (\d+)) ([0-9a-f]{8})$/
const SECOND_LINE = /^([0-9a-f]{8}) (([1-9]\d*) ([0-9a-f]{8}))$/
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
/** What to do with a journal whose plants the snapshot holds. */
export const COVERED = 'the snapshot holds its plants: move this file elsewhere'
/** What is known of a torn line. */
export const TORN = 'it was not acknowledged, unless the disk lost or damaged what it had synced'

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

/**
 * A place in the history of a store. A journal begins at one, and a snapshot or the last line of
 * another journal ends there: only what has the same position goes on from it.
 */
export interface Position {
  /** The store's id; 0 in the files of versions that have none. */
  readonly id: number
  /** The sequence of the last line. */
  readonly sequence: number
  /** The running checksum: the crc32 over all lines, those of the ids before this one included. */
  readonly checksum: number
}

/** Where a directory without files begins. */
export const NOWHERE: Position = { id: 0, sequence: 0, checksum: 0 }

/**
 * Whether what begins there goes on from what ends there. A new id goes on with the running
 * checksum of what it replaces. Files without an id have none that could be compared.
 */
export function goesOn(begin: Position, end: Position): boolean {
  return begin.sequence === end.sequence && (begin.id === 0 || begin.checksum === end.checksum)
}

/** A journal's head: where it begins, and the length of these lines. */
export interface Head {
  readonly begin: Position
  readonly headBytes: number
}

/** What a journal holds, without its padding. */
export interface Journal extends Head {
  readonly name: string
  readonly number: number
  /** Where its last good line ends: its place in the history, and its byte. */
  readonly end: Position
  readonly goodBytes: number
  /** How many plants its lines have. */
  readonly plants: number
  /** The broken line that a start has found after them; empty if there is none. */
  readonly torn: Buffer
}

export function journalName(number: number): string {
  return `journal-${String(number).padStart(8, '0')}.log`
}

/**
 * The number in a journal's name, or undefined for another file's. No two names have one number: of
 * two journals 1, one would be taken for obsolete. Rotation never comes to 15 digits.
 */
export function journalNumber(name: string): number | undefined {
  const number = Number(/^journal-(\d{8}|[1-9]\d{8,13})\.log$/.exec(name)?.[1])
  return Number.isNaN(number) ? undefined : number
}

function checksum(data: string | Uint8Array): string {
  return hex(crc32(data))
}

function hex(checksum: number): string {
  return checksum.toString(16).padStart(CHECKSUM_CHARS, '0')
}

/** The head of a journal that begins there. */
export function headLines({ id, sequence, checksum: running }: Position): Buffer {
  const first = `plant-store-journal ${VERSION} ${sequence + 1}`
  const second = `${id} ${hex(running)}`
  return Buffer.from(`${first} ${checksum(first)}\n${checksum(second)} ${second}\n`)
}

export function batchLine(sequence: number, rows: readonly Row[]): Buffer {
  const rest = Buffer.from(`${sequence} ${JSON.stringify(rows)}\n`)
  return Buffer.concat([Buffer.from(`${checksum(rest.subarray(0, -1))} `), rest])
}

/**
 * Reads a journal's head from its first bytes.
 * @throws StoreCorrupt if it is damaged, not whole, or of another version.
 */
export function readHead(file: string, bytes: Buffer, advice?: string): Head {
  // Without what no newline ends.
  const lines = bytes.toString('latin1', 0, HEAD_MAX_BYTES).split('\n').slice(0, -1)
  const [line = '', second = ''] = lines
  const [, text, version, first, sum] = FIRST_LINE.exec(line) ?? []
  if (text === undefined || checksum(text) !== sum)
    throw new StoreCorrupt(file, 0, 'its first line is not that of a journal', advice)
  checkVersion(file, 0, Number(version), READABLE_JOURNALS)
  const [secondAt, sequence] = [line.length + 1, Number(first) - 1]
  if (version === '1') return { begin: { ...NOWHERE, sequence }, headBytes: secondAt }
  const [, secondSum, rest, id, running] = SECOND_LINE.exec(second) ?? []
  if (rest === undefined || checksum(rest) !== secondSum)
    throw new StoreCorrupt(file, secondAt, 'its second line is not that of a journal', advice)
  const begin = { id: Number(id), sequence, checksum: Number(`0x${running}`) }
  return { begin, headBytes: secondAt + second.length + 1 }
}

/** @throws StoreCorrupt for a version that this release does not read. */
export function checkVersion(file: string, at: number, found: number, readable: readonly number[]) {
  if (readable.includes(found)) return
  const what = `it has version ${found}, and this plant-store reads versions ${readable.join(', ')}`
  throw new StoreCorrupt(file, at, what, 'use the release that wrote it, or a newer one')
}

/**
 * Reads a journal line by line: of each line whose checksum fits it yields the rows, the byte after
 * the line, and the position. In the last journal, a broken line at the very end is torn: it is
 * left out. Only one batch is in flight at a time, so a disk that keeps what it synced tears no
 * acknowledged line. Anything else that does not fit is damage.
 * @throws StoreCorrupt with file and byte.
 */
export function* readJournal(file: string, contents: Buffer, isLast: boolean, advice?: string) {
  // Without padding.
  const bytes = contents.subarray(0, contents.findLastIndex((byte) => byte !== 0) + 1)
  const head = readHead(file, bytes)
  let [position, at] = [head.begin, head.headBytes]
  while (at < bytes.length) {
    // With an offset, `indexOf` finds nothing after 2 GiB.
    const rest = bytes.subarray(at)
    const end = rest.indexOf(NEWLINE)
    const sequence = position.sequence + 1
    const json = end < 0 ? undefined : jsonOf(rest.subarray(0, end), sequence)
    if (json === undefined) {
      const why = whyNotTorn(rest, sequence, isLast)
      if (why === undefined) break
      throw new StoreCorrupt(file, at, `a line is broken, and ${why}`, advice)
    }
    // The checksum fits, so the line is what batchLine wrote: an array of rows.
    const rows = JSON.parse(json.toString()) as readonly Row[]
    const running = crc32(rest.subarray(0, end + 1), position.checksum)
    position = { id: position.id, sequence, checksum: running }
    at += end + 1
    yield { position, endsAt: at, rows }
  }
  // A copy: the reader frees the contents.
  return { ...head, end: position, goodBytes: at, torn: Buffer.from(bytes.subarray(at)) }
}

/** The file that keeps a torn line. Two of one sequence are two files. */
export function tornName({ end, torn }: Journal): string {
  return `torn-${end.sequence + 1}-${checksum(torn)}.bin`
}

/** The JSON of a line of this sequence; undefined if the line is broken. */
function jsonOf(line: Buffer, sequence: number): Buffer | undefined {
  const start = `${checksum(line.subarray(CHECKSUM_CHARS + 1))} ${sequence} `
  const isWhole = line.toString('latin1', 0, start.length) === start
  return isWhole ? line.subarray(start.length) : undefined
}

/** Why the broken rest of a journal is damage; undefined if it is one torn line. */
function whyNotTorn(rest: Buffer, sequence: number, isLast: boolean): string | undefined {
  if (!isLast) return 'a later journal follows'
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
    if (jsonOf(bytes.subarray(index + zero.length, end), sequence)) return true
  }
  return false
}
