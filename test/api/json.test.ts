import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { HttpError } from '../../dist/errors.js'
import { readObject } from '../../dist/api/json.js'
import { seeded } from '../support/random.ts'
import { THOROUGH } from '../support/scale.ts'
import { processorMs } from '../support/time.ts'

const read = (text: string) => readObject(text, ['id', 'name', 'tag'])
const readId = (literal: string) => {
  const members = read(`{"id":${literal}}`)
  // A value that is undefined must not look like a missing one.
  assert.ok(members.has('id'))
  return members.get('id')
}

function verdict(text: string): string {
  try {
    read(text)
    return 'accepted'
  } catch (error) {
    if (error instanceof HttpError) return error.condition
    throw error
  }
}

test('json: the wanted members are returned, others are ignored', () => {
  const members = read(
    ' {"id" : 7, "name":"r\\u00f6se\\n","x":[{"name":1}],\r\n\t"tag":null , "y":{"id":1} } ',
  )
  assert.deepEqual(
    [...members],
    [
      ['id', 7n],
      ['name', 'röse\n'],
      ['tag', undefined],
    ],
  )
  assert.equal(read('{}').size, 0)
})

test('json: values of every kind', () => {
  const kinds: readonly (readonly [string, unknown])[] = [
    ['true', undefined],
    ['false', undefined],
    ['null', undefined],
    ['"7"', '7'],
    ['""', ''],
    ['[]', undefined],
    ['{}', undefined],
    ['[1,{"a":[]}]', undefined],
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

test('json: every other number is undefined, never an integer by rounding', () => {
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
  for (const literal of others) assert.equal(readId(literal), undefined, literal.slice(0, 60))
})

test('json: random int64s are exact in any notation; with a fraction they are undefined', (t) => {
  const { seed, texts } = generator(t)
  const random = texts.random
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
    assert.equal(readId(`${value}.${'0'.repeat(random(30))}1`), undefined, `seed ${seed}`)
  }
})

test('json: a text that is not exactly one object is refused', () => {
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

test('json: a name that appears twice is refused, however it is escaped', () => {
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

test('json: a text that is not JSON is bodyNotJson, also with a repeated name', () => {
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

test('json: hundreds of thousands of levels of nesting are read', () => {
  // A tenth of this is too much for any recursion.
  const depth = THOROUGH ? 1_000_000 : 300_000
  assert.equal(readId('['.repeat(depth) + ']'.repeat(depth)), undefined)
  assert.equal(readId('{"":'.repeat(depth) + '1' + '}'.repeat(depth)), undefined)
  assert.equal(verdict(`{"a":${'['.repeat(depth)}`), 'bodyNotJson')
  assert.equal(verdict(`{"a":${'['.repeat(depth)}${']'.repeat(depth - 1)}}`), 'bodyNotJson')
})

test('json: strings of many megabytes and escapes are read', () => {
  const count = THOROUGH ? 2 ** 24 : 2 ** 22
  for (const [written, text] of [
    ['x', 'x'],
    ['\\n', '\n'],
  ] as const)
    assert.ok(read(`{"name":"${written.repeat(count)}"}`).get('name') === text.repeat(count))
})

/** CPU time of the fastest of three runs, in milliseconds. */
async function time(text: string): Promise<number> {
  const runs: number[] = []
  for (let run = 0; run < 3; run++) runs.push(await processorMs(() => read(text)))
  return Math.min(...runs)
}

test('json: hostile names and numbers take about as long as ordinary ones', async () => {
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

const CHARACTERS = [
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

/** Every UTF-16 unit of a text as a \u escape. */
function escapesOf(text: string): string {
  return Array.from(
    { length: text.length },
    (_, at) => `\\u${text.charCodeAt(at).toString(16).padStart(4, '0')}`,
  ).join('')
}

/** Random JSON texts; `random` is an integer below its argument. */
class TextGenerator {
  readonly random: (below: number) => number

  constructor(random: (below: number) => number) {
    this.random = random
  }

  pick<T>(choices: readonly T[]): T {
    const choice = choices[this.random(choices.length)]
    assert.notEqual(choice, undefined)
    // Checked in the line above, which TypeScript does not see.
    return choice as T
  }

  space(): string {
    return this.pick(['', '', '', ' ', '\n', '\t\r '])
  }

  string(): string {
    let written = '"'
    for (let length = this.random(4); length > 0; length--) {
      const character = this.pick(CHARACTERS)
      const plain = JSON.stringify(character).slice(1, -1)
      const escaped = escapesOf(character)
      const upper = escaped.replace(/[a-f]/g, (digit) => digit.toUpperCase())
      written += this.pick([plain, plain, escaped, upper])
    }
    return `${written}"`
  }

  number(): string {
    return (
      this.pick(['', '-']) +
      this.pick(['0', '7', '10', '9223372036854775807']) +
      this.pick(['', '.0', '.5', '.70']) +
      this.pick(['', 'e1', 'E-2', 'e+400'])
    )
  }

  value(depth: number): string {
    const kind = this.random(depth > 4 ? 5 : 8)
    if (kind === 0) return this.pick(['true', 'false', 'null'])
    if (kind < 3) return this.string()
    if (kind < 5) return this.number()
    if (kind > 5) return this.object(depth + 1)
    const item = () => this.space() + this.value(depth + 1) + this.space()
    return `[${Array.from({ length: this.random(3) }, item).join(',') || this.space()}]`
  }

  object(depth: number): string {
    const space = () => this.space()
    const name = () => this.pick([this.string(), '"id"', '"\\u0069d"', '"__proto__"'])
    const member = () => `${space()}${name()}${space()}:${space()}${this.value(depth)}${space()}`
    return `{${space()}${Array.from({ length: this.random(5) }, member).join(',')}}`
  }

  mutate(text: string): string {
    const at = this.random(text.length + 1)
    const piece = this.pick([
      ...'{}[]",:\\ue0-+.19tfn \n\u0000\ufeff',
      '\\u',
      '"id":1,',
      'null',
      '',
    ])
    return text.slice(0, at) + piece + text.slice(at + this.random(3))
  }

  /** A text that is an object most of the time, with up to two mutations. */
  text(): string {
    const isObject = this.random(4) < 3
    let text = this.space() + (isObject ? this.object(0) : this.value(0)) + this.space()
    for (let mutations = this.random(3); mutations > 0; mutations--) text = this.mutate(text)
    return text
  }
}

function generator(t: TestContext): { readonly seed: number; readonly texts: TextGenerator } {
  const { seed, random } = seeded(t)
  return { seed, texts: new TextGenerator((below) => Math.floor(random() * below)) }
}

/** The right verdict, by JSON.parse and another way to find the names. */
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

/** The strings at depth 1 that a colon follows, in a text known to be JSON. */
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

const ROUNDS = THOROUGH ? 60_000 : 8_000

test('json: accepts what JSON.parse accepts, if it is an object of different names', (t) => {
  const { seed, texts } = generator(t)
  const seen = new Map<string, number>()
  for (let round = 0; round < ROUNDS; round++) {
    const text = texts.text()
    const wanted = expected(text)
    assert.equal(verdict(text), wanted, `seed ${seed}: ${JSON.stringify(text)}`)
    seen.set(wanted, (seen.get(wanted) ?? 0) + 1)
    if (wanted !== 'accepted') continue
    // JSON.parse makes own members even of "__proto__": a Map of its entries is the right result.
    const parsed: ReadonlyMap<string, unknown> = new Map(
      Object.entries(JSON.parse(text) as Record<string, unknown>),
    )
    for (const [name, found] of readObject(text, [...parsed.keys()])) {
      const reference = parsed.get(name)
      if (typeof reference === 'string') assert.equal(found, reference)
      else if (typeof reference !== 'number') assert.equal(found, undefined)
      else if (typeof found === 'bigint') assert.ok(Number(found) === reference, text)
      // JSON.parse rounds to an integer below its smallest number, and far out.
      else
        assert.ok(
          found === undefined && (!Number.isInteger(reference) || rounded(reference)),
          `seed ${seed}: ${text}`,
        )
    }
  }
  // Every verdict came up often.
  for (const name of ['accepted', 'bodyNotJson', 'memberRepeated']) {
    assert.ok((seen.get(name) ?? 0) > ROUNDS / 60, `${name}: ${seen.get(name)}`)
  }
})
