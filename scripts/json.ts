/**
 * How long reading a body takes, by shape and length: time per byte must not grow with the length,
 * whatever is in it. The first rows are ordinary plants, for comparison. SHAPES='members,open
 * arrays' runs some.
 */
import { HttpError } from '../dist/errors.js'
import { readObject } from '../dist/http/json.js'

const KIB = 1024
const LENGTHS_BYTES = [64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB, 16_384 * KIB] as const
const WANTED = ['id', 'name', 'tag']
/** Each figure is the shortest of so many runs: what disturbs a run only lengthens it. */
const RUNS = 3

/**
 * A body that begins and ends so, with as much in between as fits; `piece` is told which one it is.
 */
function filled(
  before: string,
  piece: (at: number) => string,
  after: string,
): (bytes: number) => string {
  return (bytes) => {
    const pieces: string[] = [before]
    for (let at = 0, left = bytes - before.length - after.length; left > 0; at++) {
      const next = piece(at)
      left -= next.length
      if (left >= 0) pieces.push(next)
    }
    return pieces.join('') + after
  }
}

/** Nested so deep that opening and closing fill the length. */
function nested(open: string, close: string): (bytes: number) => string {
  return (bytes) => {
    const depth = Math.floor((bytes - 6) / (open.length + close.length))
    return `{"x":${open.repeat(depth)}1${close.repeat(depth)}}`
  }
}

/**
 * V8 hashes names that look like array indices without a seed: these meet in one bucket of any
 * table of up to 65,536.
 */
const colliding = (at: number): string => String(1_000_000_000 + at * 65_536)

const SHAPES: Readonly<Record<string, (bytes: number) => string>> = {
  'plain string': filled('{"id":1,"name":"', () => 'x'.repeat(64), '"}'),
  'escaped string': filled('{"id":1,"name":"', () => '\\u0041\\n', '"}'),
  'string without end': filled('{"id":1,"name":"', () => 'x'.repeat(64), ''),
  surrogates: filled('{"id":1,"name":"', () => '\\ud83d\\udc90', '"}'),
  digits: filled('{"id":', () => '9'.repeat(64), '}'),
  'zeros and one': filled('{"id":1', () => '0'.repeat(64), '1}'),
  fraction: filled('{"id":0.', () => '90'.repeat(32), '}'),
  exponent: filled('{"id":1e', () => '9'.repeat(64), '}'),
  members: filled('{"id":1', (at) => `,"k${at}":1`, '}'),
  'colliding members': filled('{"id":1', (at) => `,"${colliding(at)}":1`, '}'),
  'colliding, escaped': filled('{"id":1', (at) => `,"\\u0031${colliding(at).slice(1)}":1`, '}'),
  'one name again': filled('{"id":1', () => ',"a":1', '}'),
  'long names': filled('{"id":1', (at) => `,"${'x'.repeat(4096)}${at}":1`, '}'),
  'numbers in an array': filled('{"x":[0', () => ',1', ']}'),
  'objects in an array': filled('{"x":[0', () => ',{"a":[]}', ']}'),
  'nested arrays': nested('[', ']'),
  'nested objects': nested('{"":', '}'),
  'open arrays': filled('{"x":', () => '['.repeat(64), ''),
  'open objects': filled('{"x":', () => '{"":', ''),
  space: filled('{', () => ' \t\r\n', '}'),
  'space between': filled('{"x":[0', () => '  ,  0', ']}'),
}

function read(text: string): void {
  try {
    readObject(text, WANTED)
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
  }
}

/** Nanoseconds for each byte. */
function measure(text: string): number {
  const rounds = Math.max(1, Math.floor((256 * KIB) / text.length))
  const runs = Array.from({ length: RUNS }, () => {
    const startMs = performance.now()
    for (let round = 0; round < rounds; round++) read(text)
    return ((performance.now() - startMs) * 1e6) / (rounds * text.length)
  })
  return Math.min(...runs)
}

const small = JSON.stringify({ id: 7, name: 'Monstera', tag: 'indoor' })
const chosen = process.env['SHAPES']?.split(',').map((name) => name.trim())
const cells = (name: string, values: readonly string[]): string =>
  [name.padEnd(20), ...values.map((value) => value.padStart(10))].join('')

for (let warm = 0; warm < 20_000; warm++) read(small)
const startMs = performance.now()
for (let round = 0; round < 300_000; round++) read(small)
console.log(
  `an ordinary plant of ${small.length} bytes: ${(((performance.now() - startMs) * 1e6) / 300_000).toFixed(0)} ns`,
)
console.log(
  cells('ns a byte', [...LENGTHS_BYTES.map((bytes) => `${bytes / KIB} KiB`), 'ms at most']),
)
for (const [name, make] of Object.entries(SHAPES)) {
  if (chosen && !chosen.includes(name)) continue
  const figures = LENGTHS_BYTES.map((bytes) => measure(make(bytes)))
  const longestMs = ((figures.at(-1) ?? NaN) * (LENGTHS_BYTES.at(-1) ?? NaN)) / 1e6
  console.log(cells(name, [...figures.map((figure) => figure.toFixed(2)), longestMs.toFixed(0)]))
}
