import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HttpError } from '../../dist/errors.js'
import { NESTED, readObject } from '../../dist/http/json.js'
import { THOROUGH } from '../support/scale.ts'
import { processorMs } from '../support/time.ts'

const seed = Number(process.env['PLANTS_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 32)) >>> 0
console.log(`PLANTS_TEST_SEED=${seed}`)

/** mulberry32: the same numbers for the same seed on every machine. */
function generator(start: number): (below: number) => number {
  let state = start
  return (below) => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), state | 1)
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * below)
  }
}

const random = generator(seed)

function pick<T>(choices: readonly T[]): T {
  const choice = choices[random(choices.length)]
  assert.notEqual(choice, undefined)
  // Checked in the line above, which TypeScript does not see through.
  return choice as T
}

const read = (text: string) => readObject(text, ['id', 'name', 'tag'])
const readId = (literal: string) => read(`{"id":${literal}}`).get('id')

function verdict(text: string): string {
  try {
    read(text)
    return 'accepted'
  } catch (error) {
    if (error instanceof HttpError) return error.condition
    throw error
  }
}

test('json: the wanted members come back, others are passed over', () => {
  const members = read(
    ' {"id" : 7, "name":"r\\u00f6se\\n","x":[{"name":1}],\r\n\t"tag":null , "y":{"id":1} } ',
  )
  assert.deepEqual(
    [...members],
    [
      ['id', 7n],
      ['name', 'röse\n'],
      ['tag', null],
    ],
  )
  assert.equal(read('{}').size, 0)
})

test('json: values of every kind', () => {
  const kinds: readonly (readonly [string, unknown])[] = [
    ['true', true],
    ['false', false],
    ['null', null],
    ['"7"', '7'],
    ['""', ''],
    ['[]', NESTED],
    ['{}', NESTED],
    ['[1,{"a":[]}]', NESTED],
    ['"\\ud800"', '\ud800'],
    ['"\\"\\\\\\/\\b\\f\\n\\r\\t"', '"\\/\b\f\n\r\t'],
    ['"\u2028"', '\u2028'],
  ]
  for (const [literal, value] of kinds) assert.equal(readId(literal), value, literal)
})

test('json: a number that is exactly an int64 is a bigint in any notation', () => {
  const integers: readonly (readonly [string, bigint])[] = [
    ['7', 7n],
    ['7.0', 7n],
    ['7e0', 7n],
    ['70e-1', 7n],
    ['0.7e1', 7n],
    ['0.007E+3', 7n],
    ['-7.000', -7n],
    ['7e00000', 7n],
    ['0', 0n],
    ['-0', 0n],
    ['-0.0e-5', 0n],
    ['0e999999999', 0n],
    [`0e-${'9'.repeat(1000)}`, 0n],
    ['120', 120n],
    ['1.20e2', 120n],
    ['9007199254740993', 9007199254740993n],
    ['9007199254740992', 9007199254740992n],
    ['9223372036854775807', 2n ** 63n - 1n],
    ['-9223372036854775808', -(2n ** 63n)],
    ['9.223372036854775807e18', 2n ** 63n - 1n],
    ['-92233720368547758080e-1', -(2n ** 63n)],
    ['1e18', 10n ** 18n],
    [`1${'0'.repeat(100_000)}e-100000`, 1n],
    [`0.${'0'.repeat(100_000)}7e100001`, 7n],
  ]
  for (const [literal, value] of integers)
    assert.equal(readId(literal), value, literal.slice(0, 60))
})

test('json: every other number is NaN, never an integer by rounding', () => {
  const others = [
    '0.5',
    '-1.5',
    '0.9999999999999999999',
    '9007199254740992.5',
    '9223372036854775808',
    '-9223372036854775809',
    '1e19',
    '1e400',
    '-1e400',
    '1e-1',
    '1e-400',
    '9.2233720368547758071e18',
    '1e999999999',
    '1e-999999999',
    `1e${'9'.repeat(1000)}`,
    '9'.repeat(100_000),
    `1${'0'.repeat(100_000)}`,
    `0.${'0'.repeat(100_000)}1`,
  ]
  for (const literal of others) assert.equal(readId(literal), NaN, literal.slice(0, 60))
})

test('json: random int64s in random notations are read exactly, and their neighbours by a fraction are not integers', () => {
  for (let round = 0; round < 5_000; round++) {
    const bits = BigInt(random(65))
    const value = BigInt.asIntN(
      64,
      ((BigInt(random(2 ** 32)) << 32n) | BigInt(random(2 ** 32))) & ((1n << bits) - 1n),
    )
    const sign = value < 0n ? '-' : ''
    const digits = String(value < 0n ? -value : value)
    const cut = random(digits.length)
    const notations = [
      `${value}`,
      `${value}.${'0'.repeat(1 + random(30))}`,
      `${value}${'0'.repeat(cut)}e-${cut}`,
      `${sign}0.${'0'.repeat(cut)}${digits}E+${digits.length + cut}`,
      ...(cut > 0
        ? [`${sign}${digits.slice(0, cut)}.${digits.slice(cut)}e${digits.length - cut}`]
        : []),
    ]
    for (const notation of notations)
      assert.equal(readId(notation), value, `seed ${seed}: ${notation}`)
    assert.equal(readId(`${value}.${'0'.repeat(random(30))}1`), NaN, `seed ${seed}`)
  }
})

test('json: what is not exactly one object is refused', () => {
  const refused = [
    '',
    ' ',
    '1',
    '"a"',
    'null',
    'true',
    '[]',
    '[{}]',
    '{',
    '}',
    '{}{}',
    '{} x',
    '{},',
    '{"a"}',
    '{"a":}',
    '{"a":1,}',
    '{,}',
    '{a:1}',
    "{'a':1}",
    '{"a":1 "b":2}',
    '{"a":1;}',
    '\ufeff{}',
    '{}\ufeff',
    '\u00a0{}',
    '{}\u2028',
    '{}\u0000',
    '{"a":[1,]}',
    '{"a":[,1]}',
    '{"a":[}]}',
    '{"a":[1}',
    '{"a":{"b"}}',
    '{"a":{1:1}}',
    '{"a":01}',
    '{"a":-}',
    '{"a":+1}',
    '{"a":.5}',
    '{"a":1.}',
    '{"a":1e}',
    '{"a":1e+}',
    '{"a":--1}',
    '{"a":0x1}',
    '{"a":NaN}',
    '{"a":Infinity}',
    '{"a":tru}',
    '{"a":truefalse}',
    '{"a":nul}',
    '{"a":undefined}',
    '{"a":"}',
    '{"a":"\\"}',
    '{"a":"\n"}',
    '{"a":"\u0000"}',
    '{"a":"\u001f"}',
    '{"a":"\\x41"}',
    '{"a":"\\u12"}',
    '{"a":"\\u123g"}',
    '{"a":"\\',
    '{"a":"\\u',
    '{"a":"\\U0041"}',
    '{"a":\u00661}',
    '/**/{}',
    '{"a":1/**/}',
    '{"a":1',
    '{"a":"b',
    '{"a"',
    '{"',
    '{"\n":1}',
  ]
  for (const text of refused) assert.equal(verdict(text), 'bodyNotJson', JSON.stringify(text))
})

test('json: a name that stands twice is refused however it is escaped, wanted or not', () => {
  for (const text of [
    '{"id":1,"id":1}',
    '{"id":1,"\\u0069d":1}',
    '{"x":1,"\\u0078":1}',
    '{"":1,"":2}',
    '{"\\"":1,"\\u0022":2}',
    '{"/":1,"\\/":2}',
    '{"\\ud83c\\udf31":1,"🌱":2}',
    '{"\\ud800":1,"\\uD800":2}',
    '{"7":1,"\\u0037":1}',
    '{"__proto__":1,"__proto__":2}',
  ]) {
    assert.equal(verdict(text), 'memberRepeated', text)
  }
  for (const text of [
    '{"id":1,"ID":1}',
    '{"id":1," id":1}',
    '{"\\ud800":1,"\\ud801":2}',
    '{"é":1,"e\u0301":2}',
    '{"\\\\u0069d":1,"id":2}',
    '{"":1,"\\"":2}',
    '{"x":{"a":1,"a":2}}',
    '{"x":[{"id":1,"id":1}],"id":1}',
  ]) {
    assert.equal(verdict(text), 'accepted', text)
  }
})

test('json: a text that is not JSON is never answered as a repeated name', () => {
  assert.equal(verdict('{"id":1,"id":1'), 'bodyNotJson')
  assert.equal(verdict('{"id":1,"id":1} x'), 'bodyNotJson')
})

test('json: names of Object.prototype are just names', () => {
  const text = '{"__proto__":"a","constructor":"b","toString":"c"}'
  const members = readObject(text, ['__proto__', 'constructor', 'hasOwnProperty'])
  assert.deepEqual(
    [...members],
    [
      ['__proto__', 'a'],
      ['constructor', 'b'],
    ],
  )
  assert.equal(read('{"__proto__":{"id":1}}').get('id'), undefined)
})

test('json: a million levels of nesting are passed over', () => {
  const depth = 1_000_000
  assert.equal(readId('['.repeat(depth) + ']'.repeat(depth)), NESTED)
  assert.equal(readId('{"":'.repeat(depth) + '1' + '}'.repeat(depth)), NESTED)
  assert.equal(verdict(`{"a":${'['.repeat(depth)}`), 'bodyNotJson')
  assert.equal(verdict(`{"a":${'['.repeat(depth)}${']'.repeat(depth - 1)}}`), 'bodyNotJson')
})

test('json: strings of many megabytes and escapes are read', () => {
  assert.equal(read(`{"name":"${'x'.repeat(2 ** 24)}"}`).get('name'), 'x'.repeat(2 ** 24))
  assert.equal(read(`{"name":"${'\\n'.repeat(2 ** 22)}"}`).get('name'), '\n'.repeat(2 ** 22))
})

/** The least that three runs took of the processor, in milliseconds. */
async function time(text: string): Promise<number> {
  const runs: number[] = []
  for (let run = 0; run < 3; run++) runs.push(await processorMs(() => read(text)))
  return Math.min(...runs)
}

test('json: names and numbers made to be slow cost about what ordinary ones of their length do', async () => {
  const count = 60_000
  const build = (name: (index: number) => string) =>
    `{${Array.from({ length: count }, (_, index) => `"${name(index)}":1`).join(',')}}`
  // One bucket for all of them in an unseeded table of up to 65,536 entries.
  const colliding = (index: number) => String(1_000_000_000 + index * 65_536)
  const ordinary = await time(build((index) => `k${colliding(index)}`))
  const hostile = [
    build(colliding),
    build((index) => `\\u0031${colliding(index).slice(1)}`),
    `{"id":${'9'.repeat(1_000_000)}}`,
    `{"id":1${'0'.repeat(1_000_000)}1}`,
    `{"id":${'10'.repeat(500_000)}}`,
    `{"id":1e${'9'.repeat(1_000_000)}}`,
  ]
  // Quadratic time would be a factor of hundreds or thousands.
  for (const text of hostile) assert.ok((await time(text)) < 20 * ordinary + 100, text.slice(0, 40))
})

const space = () => pick(['', '', '', ' ', '\n', '\t\r '])
const characters = [
  'a',
  'd',
  'i',
  'id',
  '"',
  '\\',
  '/',
  '\b',
  '\u001f',
  '\u007f',
  'é',
  '🌱',
  '\ud800',
  '\udc00',
  '\u2028',
  '7',
  '',
]

const escapeOf = (unit: number) => `\\u${unit.toString(16).padStart(4, '0')}`

function string(): string {
  let written = '"'
  for (let length = random(4); length > 0; length--) {
    const character = pick(characters)
    const plain = JSON.stringify(character).slice(1, -1)
    const escaped = Array.from({ length: character.length }, (_, at) =>
      escapeOf(character.charCodeAt(at)),
    ).join('')
    written += pick([
      plain,
      plain,
      escaped,
      escaped.replace(/[a-f]/g, (digit) => digit.toUpperCase()),
    ])
  }
  return `${written}"`
}

function value(depth: number): string {
  const kind = random(depth > 4 ? 5 : 8)
  if (kind === 0) return pick(['true', 'false', 'null'])
  if (kind < 3) return string()
  if (kind < 5) {
    const digits = pick(['0', '7', '10', '9223372036854775807'])
    return (
      pick(['', '-']) + digits + pick(['', '.0', '.5', '.70']) + pick(['', 'e1', 'E-2', 'e+400'])
    )
  }
  const items = () => Array.from({ length: random(3) }, () => space() + value(depth + 1) + space())
  if (kind < 6) return `[${items().join(',') || space()}]`
  return object(depth + 1)
}

function object(depth: number): string {
  const name = () => pick([string, () => '"id"', () => '"\\u0069d"', () => '"__proto__"'])()
  const member = () => `${space()}${name()}${space()}:${space()}${value(depth)}${space()}`
  return `{${space()}${Array.from({ length: random(5) }, member).join(',')}}`
}

function mutate(text: string): string {
  const at = random(text.length + 1)
  const piece = pick([...'{}[]",:\\ue0-+.19tfn \n\u0000\ufeff', '\\u', '"id":1,', 'null', ''])
  const cut = random(3)
  return text.slice(0, at) + piece + text.slice(at + cut)
}

/** What the reader has to say, by JSON.parse and a separate way to the names. */
function expected(text: string): string {
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch {
    return 'bodyNotJson'
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return 'bodyNotJson'
  const names = topLevelNames(text)
  return new Set(names).size === names.length ? 'accepted' : 'memberRepeated'
}

/**
 * Another way to the names than the reader's: in a text known to be JSON, strings at depth 1 that a
 * colon follows.
 */
function topLevelNames(text: string): string[] {
  let depth = 0
  const names: string[] = []
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"(?:[ \t\r\n]*:)?|[[\]{}]/g)) {
    if (token === '{' || token === '[') depth++
    else if (token === '}' || token === ']') depth--
    else if (depth === 1 && token.endsWith(':'))
      names.push(String(JSON.parse(token.slice(0, -1).trimEnd())))
  }
  return names
}

const rounded = (integer: number) => integer === 0 || Math.abs(integer) >= 2 ** 40

const ROUNDS = THOROUGH ? 60_000 : 15_000

test('json: accepts exactly what JSON.parse accepts, where it is an object and no name of it stands twice', () => {
  const seen = new Map<string, number>()
  for (let round = 0; round < ROUNDS; round++) {
    let text = space() + pick([object, object, object, value])(0) + space()
    for (let mutations = random(3); mutations > 0; mutations--) text = mutate(text)
    const wanted = expected(text)
    assert.equal(verdict(text), wanted, `seed ${seed}: ${JSON.stringify(text)}`)
    seen.set(wanted, (seen.get(wanted) ?? 0) + 1)
    if (wanted !== 'accepted') continue
    // JSON.parse builds own members even for "__proto__", so a Map of its entries is what the
    // reader has to find.
    const parsed: ReadonlyMap<string, unknown> = new Map(
      Object.entries(JSON.parse(text) as Record<string, unknown>),
    )
    for (const [name, found] of readObject(text, [...parsed.keys()])) {
      const reference = parsed.get(name)
      if (typeof reference === 'object' && reference !== null) assert.equal(found, NESTED)
      else if (typeof reference !== 'number') assert.equal(found, reference)
      else if (typeof found === 'bigint') assert.ok(Number(found) === reference, text)
      // What JSON.parse rounds to an integer and the reader does not: below its smallest number,
      // and far out.
      else
        assert.ok(
          Number.isNaN(found) && (!Number.isInteger(reference) || rounded(reference)),
          `seed ${seed}: ${text}`,
        )
    }
  }
  // The generator reaches every verdict often enough to mean something.
  for (const name of ['accepted', 'bodyNotJson', 'memberRepeated']) {
    assert.ok((seen.get(name) ?? 0) > ROUNDS / 60, `${name}: ${seen.get(name)}`)
  }
})
