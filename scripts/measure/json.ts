import { HttpError } from '../../dist/errors.js'
import { readObject } from '../../dist/api/json.js'

const KIB = 1024
const LENGTHS_BYTES = [64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB, 16_384 * KIB] as const
const WANTED = ['id', 'name', 'tag']
/** Each figure is the shortest of this many runs: a disturbance only makes a run longer. */
const RUNS = 3

/** A body of some length in bytes. */
type Shape = (bytes: number) => string

/** Begins and ends so, with as many pieces in between as fit. */
function filled(before: string, piece: (at: number) => string, after: string): Shape {
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
function nested(open: string, close: string): Shape {
  return (bytes) => {
    const depth = Math.floor((bytes - 6) / (open.length + close.length))
    return `{"x":${open.repeat(depth)}1${close.repeat(depth)}}`
  }
}

/** V8 hashes array indices without a seed: these collide in any table of up to 65,536 buckets. */
const colliding = (at: number): string => String(1_000_000_000 + at * 65_536)

const SHAPES: Readonly<Record<string, Shape>> = {
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

/**
 * How long reading a body takes, by shape and length: the time for a byte must not grow with the
 * length, whatever the body holds. The first row is an ordinary plant, for comparison.
 */
export function measure(): Promise<void> {
  show('ns a byte', [...LENGTHS_BYTES.map((bytes) => `${bytes / KIB} KiB`), 'ms at most'])
  for (const [name, make] of Object.entries(SHAPES)) {
    const figures = LENGTHS_BYTES.map((bytes) => nanosecondsPerByte(make(bytes)))
    const longestMs = ((figures.at(-1) ?? NaN) * (LENGTHS_BYTES.at(-1) ?? NaN)) / 1e6
    show(name, [...figures.map((figure) => figure.toFixed(2)), longestMs.toFixed(0)])
  }
  return Promise.resolve()
}

function show(name: string, cells: readonly string[]): void {
  console.log([name.padEnd(20), ...cells.map((cell) => cell.padStart(10))].join(''))
}

function read(text: string): void {
  try {
    readObject(text, WANTED)
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
  }
}

function nanosecondsPerByte(text: string): number {
  const rounds = Math.max(1, Math.floor((256 * KIB) / text.length))
  const runs = Array.from({ length: RUNS }, () => {
    const startedAtMs = performance.now()
    for (let round = 0; round < rounds; round++) read(text)
    return ((performance.now() - startedAtMs) * 1e6) / (rounds * text.length)
  })
  return Math.min(...runs)
}
