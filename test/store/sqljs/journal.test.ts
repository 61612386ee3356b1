import assert from 'node:assert/strict'
import { test } from 'node:test'
import { crc32 } from 'node:zlib'
import type { Row } from '../../../dist/store/sqljs/journal-format.js'
import {
  batchLine,
  type JournalExtent,
  journalName,
  journalNumber,
  LINE_START,
  readHeader,
  readJournal,
} from '../../../dist/store/sqljs/journal-format.js'
import { textLength } from '../../faults/simulated-disk.ts'
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

function header(text: string): Buffer {
  return Buffer.from(`${text} ${crc32(text).toString(16).padStart(8, '0')}\n`)
}

const HEADER = header(`plant-store-journal 1 ${FIRST}`)
const LINES = BATCHES.map((rows, i) => batchLine(FIRST + i, rows))
const JOURNAL = Buffer.concat([HEADER, ...LINES])
/** Where each line ends, the header first. */
const ENDS = LINES.reduce(
  (ends, line) => [...ends, (ends.at(-1) ?? 0) + line.length],
  [HEADER.length],
)

/** Calls `onBatch` for every line, and returns what the reader ends with. */
function readAll(
  file: string,
  bytes: Buffer,
  isLast: boolean,
  onBatch: (rows: readonly Row[], sequence: number) => void,
): JournalExtent {
  const lines = readJournal(file, bytes, isLast)
  for (;;) {
    const step = lines.next()
    if (step.done) return step.value
    onBatch(step.value.rows(), step.value.sequence)
  }
}

function read(
  bytes: Buffer,
  isLast = true,
): {
  readonly batches: (readonly Row[])[]
  readonly goodBytes: number
  readonly tornBytes: number
} {
  const batches: (readonly Row[])[] = []
  const { goodBytes, tornBytes, nextSequence } = readAll(FILE, bytes, isLast, (rows, sequence) => {
    assert.equal(sequence, FIRST + batches.length)
    batches.push(rows)
  })
  assert.equal(nextSequence, FIRST + batches.length)
  return { batches, goodBytes, tornBytes }
}

test('journal: a line is checksum, sequence and rows as JSON, and nothing else', () => {
  const rest = '41 [["alice","1","Oak"]]'
  assert.equal(
    String(batchLine(41, [['alice', '1', 'Oak']])),
    `${crc32(rest).toString(16).padStart(8, '0')} ${rest}\n`,
  )
})

test('journal: what was written is read back, last or not', () => {
  for (const isLast of [true, false])
    assert.deepEqual(read(JOURNAL, isLast), {
      batches: [...BATCHES],
      goodBytes: JOURNAL.length,
      tornBytes: 0,
    })
})

test('journal: cut at any byte, the last one keeps every whole line before the cut', (t) => {
  for (let length = HEADER.length; length <= JOURNAL.length; length++) {
    const whole = ENDS.filter((end) => end <= length)
    const goodBytes = whole.at(-1) ?? 0
    assert.deepEqual(read(JOURNAL.subarray(0, length)), {
      batches: BATCHES.slice(0, whole.length - 1),
      goodBytes,
      tornBytes: length - goodBytes,
    })
  }
  t.diagnostic(`cut at ${JOURNAL.length - HEADER.length + 1} bytes`)
})

test('journal: cut inside its first line it is damaged', () => {
  for (let length = 0; length < HEADER.length; length++)
    for (const padding of [0, 200]) {
      const bytes = Buffer.concat([HEADER.subarray(0, length), Buffer.alloc(padding)])
      assert.throws(() => readHeader(FILE, bytes), corruptAt(FILE, 0))
      assert.throws(() => read(bytes), corruptAt(FILE, 0))
    }
  assert.equal(readHeader(FILE, HEADER), FIRST)
})

test('journal: cut inside a line, one that another follows is damaged', () => {
  for (let length = HEADER.length; length < JOURNAL.length; length++) {
    if (ENDS.includes(length)) continue
    const at = ENDS.findLast((end) => end <= length) ?? 0
    assert.throws(
      () => read(JOURNAL.subarray(0, length), false),
      corruptAt(FILE, at, /a later journal follows/),
    )
  }
})

test('journal: any byte flipped is damage; in the last line, that line is torn', (t) => {
  const lastAt = ENDS.at(-2) ?? 0
  let flips = 0
  for (const pattern of BIT_PATTERNS) {
    for (let at = 0; at < JOURNAL.length; at++) {
      const bytes = Buffer.from(JOURNAL)
      bytes[at] = (JOURNAL[at] ?? 0) ^ pattern
      const line = ENDS.findLast((end) => end <= at) ?? 0
      flips += 1
      const isNewline = bytes[at] === 10
      if (line < lastAt || isNewline)
        assert.throws(() => read(bytes), corruptAt(FILE, line), `byte ${at} ^ ${pattern}`)
      // A zero at the very end counts as padding.
      else
        assert.deepEqual(
          read(bytes),
          {
            batches: BATCHES.slice(0, -1),
            goodBytes: lastAt,
            tornBytes: JOURNAL.length - lastAt - (bytes.at(-1) === 0 ? 1 : 0),
          },
          `byte ${at} ^ ${pattern}`,
        )
      assert.throws(() => read(bytes, false), corruptAt(FILE, line))
    }
  }
  t.diagnostic(`${flips} flips`)
})

test('journal: a broken newline before the last line is damage: a good line follows', () => {
  for (const length of [JOURNAL.length, JOURNAL.length - 1]) {
    for (let value = 0; value < 256; value++) {
      if (value === 10) continue
      const bytes = Buffer.from(JOURNAL.subarray(0, length))
      bytes[(ENDS.at(-2) ?? 0) - 1] = value
      assert.throws(() => read(bytes), corruptAt(FILE, ENDS.at(-3) ?? 0, /a good one follows/))
    }
  }
})

test('journal: no text in a torn line counts as the start of the next', () => {
  const next = FIRST + BATCHES.length
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
  const texts = starts.map((start) => `00000000 ${next + 1} ${start}`).concat(starts)
  for (const owner of texts) {
    for (const name of texts) {
      for (const tag of [undefined, ...texts]) {
        const row: Row = tag === undefined ? [owner, '1', name] : [owner, '1', name, tag]
        const line = String(batchLine(next, [row, row]))
        const found = [...line.matchAll(LINE_START)].map(({ index }) => index)
        assert.deepEqual(found, [0], line)
      }
    }
  }
})

test('journal: a torn line with a hole is torn, whatever its texts hold', () => {
  const next = FIRST + BATCHES.length
  const rows = (sum: string): readonly Row[] => [
    ['alice', '1', `${sum} ${next + 1} [[`],
    ['alice', '2', 'x'.repeat(2000), '5'],
    ['alice', '3', 'end'],
  ]
  // Zeros from after the first name, into the last text before a quote, a comma, a quote and a 5.
  const torn = (sum: string): Buffer => {
    const line = batchLine(next, rows(sum))
    return line.fill(0, line.indexOf('[["],[') + 5, line.indexOf('xx","5') + 1)
  }
  const start = torn('00000000')
  const sum = crc32(start.subarray(start.indexOf('00000000') + 9, -1))
  const crafted = torn(sum.toString(16).padStart(8, '0'))
  assert.equal(read(Buffer.concat([JOURNAL, crafted])).tornBytes, crafted.length)
})

test('journal: a torn line of sixteen megabytes without a quote is torn', () => {
  const next = FIRST + BATCHES.length
  const torn = batchLine(next, [['x'.repeat(2 ** 24), '1', 'Oak']]).subarray(0, -20)
  assert.equal(read(Buffer.concat([JOURNAL, torn])).tornBytes, torn.length)
})

test('journal: a torn line of a megabyte of line starts is torn', () => {
  const next = FIRST + BATCHES.length
  const line = batchLine(next, [['alice', '1', `00000000 ${next + 1} [["alice","1`.repeat(40_000)]])
  for (const cut of [1, 2, 10, line.length - 100]) {
    const torn = line.subarray(0, -cut)
    assert.deepEqual(read(Buffer.concat([JOURNAL, torn])), {
      batches: [...BATCHES],
      goodBytes: JOURNAL.length,
      tornBytes: torn.length,
    })
  }
})

test('journal: a line of another sequence is damage, although its checksum fits', () => {
  for (const sequence of [FIRST + 1, FIRST + 3, 0]) {
    const bytes = Buffer.concat([
      HEADER,
      ...LINES.slice(0, 2),
      batchLine(sequence, [['a', '1', 'x']]),
      batchLine(sequence + 1, [['a', '1', 'x']]),
    ])
    assert.throws(() => read(bytes), corruptAt(FILE, ENDS[2] ?? 0))
  }
})

test('journal: any number of zeros after the last line are padding, last or not', () => {
  for (const paddingBytes of [1, 100, 600_000]) {
    for (const isLast of [true, false])
      assert.deepEqual(read(Buffer.concat([JOURNAL, Buffer.alloc(paddingBytes)]), isLast), {
        batches: [...BATCHES],
        goodBytes: JOURNAL.length,
        tornBytes: 0,
      })
  }
  assert.deepEqual(read(Buffer.concat([HEADER, Buffer.alloc(100)])), {
    batches: [],
    goodBytes: HEADER.length,
    tornBytes: 0,
  })
})

test('journal: a line over padding with any pieces missing is left out, none else', (t) => {
  withoutStacks(t)
  const lastAt = ENDS.at(-2) ?? 0
  const line = JOURNAL.subarray(lastAt)
  const pieces = 10
  const pieceBytes = Math.ceil(line.length / pieces)
  // Sectors begin anywhere in a line.
  for (let shift = 0; shift < pieceBytes; shift += 3) {
    for (let bits = 0; bits < 2 ** pieces - 1; bits++) {
      const bytes = Buffer.concat([JOURNAL.subarray(0, lastAt), Buffer.alloc(line.length + 1000)])
      for (let i = 0; i < pieces; i++) {
        const [from, to] = [i, i + 1].map((at) => Math.max(0, at * pieceBytes - shift))
        const end = i === pieces - 1 ? line.length : to
        if ((bits >> i) & 1) line.copy(bytes, lastAt + (from ?? 0), from, end)
      }
      const { batches, goodBytes, tornBytes } = read(bytes)
      assert.deepEqual([batches, goodBytes], [BATCHES.slice(0, -1), lastAt])
      assert.equal(
        tornBytes,
        textLength(bytes) - lastAt,
        'the length of what is left of it, without zeros',
      )
      if (tornBytes > 0)
        assert.throws(() => read(bytes, false), corruptAt(FILE, lastAt, /a later journal follows/))
    }
  }
  t.diagnostic(`${2 ** pieces - 1} subsets of ${pieces} pieces`)
})

test('journal: zeros over any part of acknowledged lines, before a good one: damage', (t) => {
  withoutStacks(t)
  const lastAt = ENDS.at(-2) ?? 0
  let ranges = 0
  for (const padding of [Buffer.alloc(0), Buffer.alloc(100)]) {
    for (let from = 0; from < lastAt; from++) {
      for (let to = from + 1; to <= lastAt; to++) {
        const bytes = Buffer.concat([JOURNAL, padding]).fill(0, from, to)
        ranges += 1
        assert.throws(
          () => read(bytes),
          corruptAt(FILE, ENDS.findLast((end) => end <= from) ?? 0),
          `from ${from} to ${to}`,
        )
      }
    }
  }
  t.diagnostic(`${ranges} ranges`)
})

test('journal: a torn line may quote a later line, but not right after zeros', () => {
  const quoted = batchLine(FIRST + BATCHES.length + 5, [['alice', '1', 'Oak']])
  const torn = (...parts: readonly (string | Uint8Array)[]): Buffer =>
    Buffer.concat([JOURNAL, ...parts.map((part) => Buffer.from(part))])
  assert.equal(read(torn(Buffer.alloc(50), 'x', quoted)).tornBytes, 51 + quoted.length)
  assert.throws(
    () => read(torn(Buffer.alloc(50), quoted)),
    corruptAt(FILE, JOURNAL.length, /a good one follows/),
  )
})

test('journal: zeros between two lines are damage', () => {
  assert.throws(
    () =>
      read(
        Buffer.concat([JOURNAL.subarray(0, ENDS[2]), Buffer.alloc(10), JOURNAL.subarray(ENDS[2])]),
      ),
    corruptAt(FILE, ENDS[2] ?? 0),
  )
})

test('journal: old blocks in place of unwritten bytes never count as a line', () => {
  const old = Buffer.from(JOURNAL).fill(0, 0, 20)
  assert.throws(
    () => read(Buffer.concat([JOURNAL, Buffer.alloc(10), old, Buffer.alloc(10)])),
    corruptAt(FILE, JOURNAL.length),
  )
  assert.deepEqual(read(Buffer.concat([JOURNAL, old.subarray(0, 33), Buffer.alloc(10)])), {
    batches: [...BATCHES],
    goodBytes: JOURNAL.length,
    tornBytes: 33,
  })
})

test('journal: another version is refused and named, whatever follows', () => {
  const bytes = Buffer.concat([header('plant-store-journal 2 41'), Buffer.from('whatever\n')])
  assert.throws(
    () => readHeader(FILE, bytes),
    corruptAt(FILE, 0, /it has version 2, and this plant-store reads version 1/),
  )
})

test('journal: a file that does not begin as one is refused', () => {
  for (const bytes of [
    Buffer.from('\n'),
    Buffer.from('hello\n'),
    Buffer.alloc(200),
    Buffer.from(' '.repeat(128)),
  ])
    assert.throws(() => readHeader(FILE, bytes), corruptAt(FILE, 0))
})

test('journal: each number has one name, in the order of the digits', () => {
  for (const number of [1, 99_999_999, 100_000_000])
    assert.equal(journalNumber(journalName(number)), number)
  assert.equal(journalName(7), 'journal-00000007.log')
  for (const name of [
    'journal-7.log',
    'journal-000000007.log',
    'journal-00000007.log.tmp',
    'xjournal-00000007.log',
    'journal-0000000a.log',
    'plants.sqlite',
  ])
    assert.equal(journalNumber(name), undefined)
})
