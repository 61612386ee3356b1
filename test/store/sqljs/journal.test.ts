import assert from 'node:assert/strict'
import { test } from 'node:test'
import { crc32 } from 'node:zlib'
import { batchLine, journalName } from '../../../dist/store/sqljs/disk/journal-format.js'
import { journalNumber } from '../../../dist/store/sqljs/disk/journal-format.js'
import { headLines, LINE_START, readHead } from '../../../dist/store/sqljs/disk/journal-format.js'
import { readJournal, type Row } from '../../../dist/store/sqljs/disk/journal-format.js'
import { textLength } from '../../faults/simulated-disk.ts'
import { seeded } from '../../support/random.ts'
import { someOf, THOROUGH } from '../../support/scale.ts'
import { BIT_PATTERNS, corruptAt, withoutStacks } from './fixtures.ts'

const FILE = '/data/journal-00000007.log'
const FIRST = 41
const BATCHES: readonly (readonly Row[])[] = [
  [['alice', '1', 'Oak']],
  [
    ['alice', '-9223372036854775808', 'a\u0000b\n\u2028', '🌵'],
    ['bob', '1', ''],
  ],
  [['"; 42 [', '9', ' 42 [["x","1","y"]]', '']],
  [['alice', '2', 'Elm', 'x'.repeat(300)]],
]

const BEGIN = { id: 2 ** 47 + 1, sequence: FIRST - 1, checksum: 0x0a0b0c0d }
const HEADER = headLines(BEGIN)
/** Where the second line of the head begins. */
const SECOND_AT = HEADER.indexOf('\n') + 1
const LINES = BATCHES.map((rows, i) => batchLine(FIRST + i, rows))
const JOURNAL = Buffer.concat([HEADER, ...LINES])
/** Where each line ends, the header first. */
const ENDS = LINES.reduce(
  (ends, line) => [...ends, (ends.at(-1) ?? 0) + line.length],
  [HEADER.length],
)

interface Found {
  readonly batches: readonly (readonly Row[])[]
  readonly goodBytes: number
  readonly tornBytes: number
}

/** All lines, and a broken rest of so many bytes. */
const whole = (tornBytes = 0): Found => ({
  batches: BATCHES,
  goodBytes: JOURNAL.length,
  tornBytes,
})
const NEXT = FIRST + BATCHES.length

function read(bytes: Buffer, isLast = true): Found {
  const batches: (readonly Row[])[] = []
  const lines = readJournal(FILE, bytes, isLast)
  let step = lines.next()
  for (; !step.done; step = lines.next()) {
    assert.equal(step.value.position.sequence, FIRST + batches.length)
    batches.push(step.value.rows)
  }
  const { goodBytes, torn, begin, end, headBytes } = step.value
  assert.deepEqual([begin, headBytes], [BEGIN, HEADER.length])
  const checksum = crc32(bytes.subarray(headBytes, goodBytes), BEGIN.checksum)
  assert.deepEqual(end, { ...BEGIN, sequence: BEGIN.sequence + batches.length, checksum })
  return { batches, goodBytes, tornBytes: torn.length }
}

/** Where the line of a byte begins. */
function lineOf(at: number): number {
  return ENDS.findLast((end) => end <= at) ?? 0
}

/** As `lineOf`, in the head too. */
function damagedLineOf(at: number): number {
  return at >= SECOND_AT && at < HEADER.length ? SECOND_AT : lineOf(at)
}

test('journal: a line is checksum, sequence and rows as JSON, and nothing else', () => {
  const rest = '41 [["alice","1","Oak"]]'
  assert.equal(
    String(batchLine(41, [['alice', '1', 'Oak']])),
    `${crc32(rest).toString(16).padStart(8, '0')} ${rest}\n`,
  )
})

test('journal: what was written is read back, last or not, whatever the padding', () => {
  for (const isLast of [true, false]) {
    for (const paddingBytes of [0, 1, 100, 600_000])
      assert.deepEqual(read(Buffer.concat([JOURNAL, Buffer.alloc(paddingBytes)]), isLast), whole())
    const none = { batches: [], goodBytes: HEADER.length, tornBytes: 0 }
    assert.deepEqual(read(Buffer.concat([HEADER, Buffer.alloc(100)]), isLast), none)
  }
})

test('journal: cut at any byte, it keeps every whole line before the cut, or is damaged', (t) => {
  for (let length = 0; length <= JOURNAL.length; length++) {
    const bytes = JOURNAL.subarray(0, length)
    const goodBytes = lineOf(length)
    if (goodBytes === 0) {
      const damage = corruptAt(FILE, length < SECOND_AT ? 0 : SECOND_AT)
      for (const header of [bytes, Buffer.concat([bytes, Buffer.alloc(200)])]) {
        assert.throws(() => readHead(FILE, header), damage)
        assert.throws(() => read(header), damage)
      }
      continue
    }
    const found = {
      batches: BATCHES.slice(0, ENDS.indexOf(goodBytes)),
      goodBytes,
      tornBytes: length - goodBytes,
    }
    assert.deepEqual(read(bytes), found)
    if (found.tornBytes === 0) assert.deepEqual(read(bytes, false), found)
    else {
      const damage = corruptAt(FILE, goodBytes, /a later journal follows/)
      assert.throws(() => read(bytes, false), damage)
    }
  }
  t.diagnostic(`cut at ${JOURNAL.length + 1} bytes`)
})

test('journal: any byte flipped is damage; in the last line, that line is torn', (t) => {
  const lastAt = ENDS.at(-2) ?? 0
  let flips = 0
  for (const pattern of someOf(seeded(t).random, BIT_PATTERNS, 5)) {
    for (let at = 0; at < JOURNAL.length; at++) {
      const bytes = Buffer.from(JOURNAL)
      bytes[at] = (JOURNAL[at] ?? 0) ^ pattern
      const line = damagedLineOf(at)
      flips += 1
      const isNewline = bytes[at] === 10
      if (line < lastAt || isNewline)
        assert.throws(() => read(bytes), corruptAt(FILE, line), `byte ${at} ^ ${pattern}`)
      // A zero at the very end counts as padding.
      else {
        const tornBytes = JOURNAL.length - lastAt - (bytes.at(-1) === 0 ? 1 : 0)
        const found = { batches: BATCHES.slice(0, -1), goodBytes: lastAt, tornBytes }
        assert.deepEqual(read(bytes), found, `byte ${at} ^ ${pattern}`)
      }
      assert.throws(() => read(bytes, false), corruptAt(FILE, line))
    }
  }
  t.diagnostic(`${flips} flips`)
})

test('journal: no text in a torn line counts as the start of the next', () => {
  const starts = [
    '[',
    '[[',
    '[["',
    '[["a","1',
    '[["a","1","x"]]',
    '[[\\"a\\",\\"1',
    '[[","',
    ',',
    '',
  ]
  const texts = starts.map((start) => `00000000 ${NEXT + 1} ${start}`).concat(starts)
  for (const owner of texts) {
    for (const name of texts) {
      for (const tag of [undefined, ...texts]) {
        const row: Row = tag === undefined ? [owner, '1', name] : [owner, '1', name, tag]
        const line = String(batchLine(NEXT, [row, row]))
        const found = [...line.matchAll(LINE_START)].map(({ index }) => index)
        assert.deepEqual(found, [0], line)
      }
    }
  }
})

/** A line with zeros in it, whose first name holds a line start with this checksum. */
function withHole(sum: string): Buffer {
  const line = batchLine(NEXT, [
    ['alice', '1', `${sum} ${NEXT + 1} [[`],
    ['alice', '2', 'x'.repeat(2000), '5'],
    ['alice', '3', 'end'],
  ])
  // From after the first name, into the last text before a quote, a comma, a quote and a 5.
  return line.fill(0, line.indexOf('[["],[') + 5, line.indexOf('xx","5') + 1)
}

const start = withHole('00000000')
const sum = crc32(start.subarray(start.indexOf('00000000') + 9, -1))
const starts = `00000000 ${NEXT + 1} [["alice","1`.repeat(40_000)
const manyStarts = batchLine(NEXT, [['alice', '1', starts]])
/** A line of a later sequence, and old blocks in the place of unwritten bytes. */
const later = batchLine(NEXT + 5, [['alice', '1', 'Oak']])
const old = Buffer.from(JOURNAL).fill(0, 0, 20)

const TORN: readonly (readonly [what: string, ...parts: Buffer[]])[] = [
  ['a hole, and a checksum that would fit', withHole(sum.toString(16).padStart(8, '0'))],
  ['4 MiB without a quote', batchLine(NEXT, [['x'.repeat(2 ** 22), '1', '']]).subarray(0, -20)],
  ['the start of a MiB of line starts', manyStarts.subarray(0, 100)],
  ...[1, 2, 10].map((cut) => [`line starts without ${cut}`, manyStarts.subarray(0, -cut)] as const),
  ['a later line, quoted', Buffer.alloc(50), Buffer.from('x'), later],
  ['a part of old blocks', old.subarray(0, 33)],
]
for (const [what, ...parts] of TORN)
  test(`journal: what is torn stays torn, whatever its texts hold: ${what}`, () => {
    const torn = Buffer.concat(parts)
    const found = read(Buffer.concat([JOURNAL, torn, Buffer.alloc(10)]))
    assert.deepEqual(found, whole(torn.length))
  })

test('journal: a later line, or old blocks with one, right after zeros is damage', () => {
  for (const parts of [
    [Buffer.alloc(50), later],
    [Buffer.alloc(10), old, Buffer.alloc(10)],
  ])
    assert.throws(() => read(Buffer.concat([JOURNAL, ...parts])), corruptAt(FILE, JOURNAL.length))
})

test('journal: a line of another sequence is damage, although its checksum fits', () => {
  for (const sequence of [FIRST + 1, FIRST + 3, 0]) {
    const others = [0, 1].map((i) => batchLine(sequence + i, [['a', '1', 'x']]))
    const bytes = Buffer.concat([HEADER, ...LINES.slice(0, 2), ...others])
    assert.throws(() => read(bytes), corruptAt(FILE, ENDS[2] ?? 0))
  }
})

test('journal: a line over padding with any pieces missing is left out, none else', (t) => {
  withoutStacks(t)
  const lastAt = ENDS.at(-2) ?? 0
  const line = JOURNAL.subarray(lastAt)
  const pieces = THOROUGH ? 10 : 8
  const pieceBytes = Math.ceil(line.length / pieces)
  // Sectors begin anywhere in a line.
  for (const shift of someOf(seeded(t).random, Array(pieceBytes).keys(), 20)) {
    for (let bits = 0; bits < 2 ** pieces - 1; bits++) {
      const bytes = Buffer.concat([JOURNAL.subarray(0, lastAt), Buffer.alloc(line.length + 1000)])
      for (let i = 0; i < pieces; i++) {
        const [from, to] = [i, i + 1].map((at) => Math.max(0, at * pieceBytes - shift))
        const end = i === pieces - 1 ? line.length : to
        if ((bits >> i) & 1) line.copy(bytes, lastAt + (from ?? 0), from, end)
      }
      const { batches, goodBytes, tornBytes } = read(bytes)
      assert.deepEqual([batches, goodBytes], [BATCHES.slice(0, -1), lastAt])
      // What is left of it, without zeros.
      assert.equal(tornBytes, textLength(bytes) - lastAt)
      if (tornBytes > 0)
        assert.throws(() => read(bytes, false), corruptAt(FILE, lastAt, /a later journal follows/))
    }
  }
  t.diagnostic(`${2 ** pieces - 1} subsets of ${pieces} pieces`)
})

test('journal: zeros over any part of acknowledged lines, before a good one: damage', (t) => {
  withoutStacks(t)
  const { random } = seeded(t)
  const lastAt = ENDS.at(-2) ?? 0
  let ranges = 0
  for (const padding of [Buffer.alloc(0), Buffer.alloc(100)]) {
    for (let from = 0; from < lastAt; from++) {
      for (let to = from + 1; to <= lastAt; to++) {
        if (!THOROUGH && random() > 0.05) continue
        const bytes = Buffer.concat([JOURNAL, padding]).fill(0, from, to)
        ranges += 1
        const damage = corruptAt(FILE, damagedLineOf(from))
        assert.throws(() => read(bytes), damage, `from ${from} to ${to}`)
      }
    }
  }
  t.diagnostic(`${ranges} ranges`)
})

test('journal: lines after 2 GiB are read', { skip: !THOROUGH && 'it takes 2 GiB' }, () => {
  const line = (at: number): Buffer => batchLine(at, [['a', `${at}`, 'x'.repeat(2 ** 26)]])
  const lines = Array.from({ length: 34 }, (_, i) => line(FIRST + i))
  const bytes = Buffer.concat([HEADER, ...lines])
  assert.ok(bytes.length > 2 ** 31)
  const read = readJournal(FILE, bytes, true)
  let count = 0
  while (!read.next().done) count += 1
  assert.equal(count, lines.length)
})

test('journal: a file that does not begin as one is refused; another version is named', () => {
  const version = /it has version 3, and this plant-store reads versions 1, 2/
  const text = 'plant-store-journal 3 41'
  const sum = crc32(text).toString(16).padStart(8, '0')
  const other = Buffer.from(`${text} ${sum}\nwhatever\n`)
  for (const [bytes, why] of [
    [other, version],
    [Buffer.from('\n'), /its first line/],
    [Buffer.from('hello\n'), /its first line/],
    [Buffer.alloc(200), /its first line/],
    [Buffer.from(' '.repeat(128)), /its first line/],
  ] as const)
    assert.throws(() => readHead(FILE, bytes), corruptAt(FILE, 0, why))
})

test('journal: each number has one name, in the order of the digits', () => {
  for (const number of [1, 99_999_999, 100_000_000, 10 ** 14 - 1])
    assert.equal(journalNumber(journalName(number)), number)
  assert.equal(journalName(7), 'journal-00000007.log')
  for (const name of [
    'journal-7.log',
    'journal-100000000000000.log',
    'journal-000000007.log',
    'journal-00000007.log.tmp',
    'xjournal-00000007.log',
    'journal-0000000a.log',
    'plants.sqlite',
  ])
    assert.equal(journalNumber(name), undefined)
})
