import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HttpError } from '../../dist/errors.js'
import { readObject } from '../../dist/api/json.js'
import { readBody } from '../support/oracle/body.ts'
import { Random, seeded } from '../support/random.ts'
import { THOROUGH } from '../support/scale.ts'
import { processorMs } from '../support/time.ts'

/* Numbers that are an int64, and those that are none: see ids.test.ts. */

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

test('json: random int64s are exact in any notation; with a fraction they are undefined', (t) => {
  const random = new Random(seeded(t).seed)
  for (let round = 0; round < (THOROUGH ? 5_000 : 400); round++) {
    const bits = BigInt(random.below(65))
    const long = (BigInt(random.below(2 ** 32)) << 32n) | BigInt(random.below(2 ** 32))
    const value = BigInt.asIntN(64, long & ((1n << bits) - 1n))
    const [, sign = '', digits = ''] = /(-?)(.*)/.exec(String(value)) ?? []
    const cut = random.below(digits.length)
    const notations = [
      `${value}`,
      `${value}.${'0'.repeat(1 + random.below(30))}`,
      `${value}${'0'.repeat(cut)}e-${cut}`,
      `${sign}0.${'0'.repeat(cut)}${digits}E+${digits.length + cut}`,
      `${sign}${digits.slice(0, cut) || '0'}.${digits.slice(cut)}e${digits.length - cut}`,
    ]
    for (const notation of notations) assert.equal(readId(notation), value, notation)
    assert.equal(readId(`${value}.${'0'.repeat(random.below(30))}1`), undefined, String(value))
  }
})

test('json: a text that is not exactly one object is refused', () => {
  for (const text of [
    ['', ' ', '1', '"a"', 'null', 'true', '[]', '[{}]', '{', '}', '{}{}', '{} x', '{},', '{,}'],
    ['{"a"}', '{"a":}', '{"a":1,}', '{a:1}', "{'a':1}", '{"a":1 "b":2}', '{"a":1;}', '{"\n":1}'],
    ['\ufeff{}', '{}\ufeff', '\u00a0{}', '{}\u2028', '{}\u0000', '{"a":\u00661}'],
    ['{"a":[1,]}', '{"a":[,1]}', '{"a":[}]}', '{"a":[1}', '{"a":{"b"}}', '{"a":{1:1}}'],
    ['{"a":01}', '{"a":-}', '{"a":+1}', '{"a":.5}', '{"a":1.}', '{"a":1e}', '{"a":1e+}'],
    ['{"a":--1}', '{"a":0x1}', '{"a":NaN}', '{"a":Infinity}', '{"a":undefined}'],
    ['{"a":tru}', '{"a":truefalse}', '{"a":nul}', '/**/{}', '{"a":1/**/}'],
    ['{"a":"}', '{"a":"\\"}', '{"a":"\n"}', '{"a":"\u0000"}', '{"a":"\u001f"}', '{"a":"\\x41"}'],
    ['{"a":"\\u12"}', '{"a":"\\u123g"}', '{"a":"\\U0041"}', '{"a":"\\', '{"a":"\\u'],
    ['{"a":1', '{"a":"b', '{"a"', '{"'],
    // Also with a repeated name.
    ['{"id":1,"id":1', '{"id":1,"id":1} x'],
  ].flat())
    assert.equal(verdict(text), 'bodyNotJson', JSON.stringify(text))
})

test('json: a name that appears twice is refused, however it is escaped', () => {
  for (const [expected, ...texts] of [
    ['memberRepeated', '{"id":1,"id":1}', '{"id":1,"\\u0069d":1}', '{"x":1,"\\u0078":1}'],
    ['memberRepeated', '{"":1,"":2}', '{"\\"":1,"\\u0022":2}', '{"/":1,"\\/":2}'],
    ['memberRepeated', '{"\\ud83c\\udf31":1,"🌱":2}', '{"\\ud800":1,"\\uD800":2}'],
    ['memberRepeated', '{"7":1,"\\u0037":1}', '{"__proto__":1,"__proto__":2}'],
    ['accepted', '{"id":1,"ID":1}', '{"id":1," id":1}', '{"\\ud800":1,"\\ud801":2}'],
    ['accepted', '{"é":1,"e\u0301":2}', '{"\\\\u0069d":1,"id":2}', '{"":1,"\\"":2}'],
    ['accepted', '{"x":{"a":1,"a":2}}', '{"x":[{"id":1,"id":1}],"id":1}'],
  ] as const)
    for (const text of texts) assert.equal(verdict(text), expected, text)
})

test('json: strings of many megabytes and escapes are read', () => {
  const count = THOROUGH ? 2 ** 24 : 2 ** 20
  for (const text of ['x', '\n']) {
    const written = JSON.stringify(text).slice(1, -1).repeat(count)
    assert.ok(read(`{"name":"${written}"}`).get('name') === text.repeat(count))
  }
})

/** CPU time, in milliseconds, of the fastest of three runs, or of the first one below `enough`. */
async function time(text: string, enough = 0): Promise<number> {
  let fastest = Infinity
  for (let run = 0; run < 3 && fastest > enough; run++)
    fastest = Math.min(fastest, await processorMs(() => read(text)))
  return fastest
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
  const most = 20 * ordinary + 100
  for (const text of hostile) assert.ok((await time(text, most)) <= most, text.slice(0, 40))
})

/** Random JSON texts: an object most of the time, with up to two mutations. */
function textsOf(random: Random): () => string {
  const space = () => random.pick(['', '', '', ' ', '\n', '\t\r '])
  const many = (below: number, part: () => string) =>
    Array.from({ length: random.below(below) }, part)
  const character = (): string => {
    const text = random.pick([
      ...(['a', 'd', 'i', 'id', '"', '\\', '/', '\b', '\u001f', '\u007f', 'é', '🌱'] as const),
      ...(['\ud800', '\udc00', '\u2028', '7', ''] as const),
    ])
    const plain = JSON.stringify(text).slice(1, -1)
    // Every UTF-16 unit as an escape.
    const units = text.split('').map((unit) => unit.charCodeAt(0).toString(16).padStart(4, '0'))
    const escaped = units.map((hex) => `\\u${hex}`).join('')
    const upper = units.map((hex) => `\\u${hex.toUpperCase()}`).join('')
    return random.pick([plain, plain, escaped, upper])
  }
  const string = () => `"${many(4, character).join('')}"`
  const number = () =>
    random.pick(['', '-']) +
    random.pick(['0', '7', '10', '9223372036854775807']) +
    random.pick(['', '.0', '.5', '.70']) +
    random.pick(['', 'e1', 'E-2', 'e+400'])
  const value = (depth: number): string => {
    const kind = random.below(depth > 4 ? 5 : 8)
    if (kind === 0) return random.pick(['true', 'false', 'null'])
    if (kind < 3) return string()
    if (kind < 5) return number()
    if (kind > 5) return object(depth + 1)
    return `[${many(3, () => space() + value(depth + 1) + space()).join(',') || space()}]`
  }
  const object = (depth: number): string => {
    const name = () => random.pick([string(), '"id"', '"\\u0069d"', '"__proto__"'])
    const member = () => `${space()}${name()}${space()}:${space()}${value(depth)}${space()}`
    return `{${space()}${many(5, member).join(',')}}`
  }
  const mutate = (text: string): string => {
    const at = random.below(text.length + 1)
    const pieces = ['', '\\u', '"id":1,', 'null', ...'{}[]",:\\ue0-+.19tfn \n\u0000\ufeff'] as const
    return text.slice(0, at) + random.pick(pieces) + text.slice(at + random.below(3))
  }
  return () => {
    let text = space() + (random.chance(0.75) ? object(0) : value(0)) + space()
    for (let mutations = random.below(3); mutations > 0; mutations--) text = mutate(text)
    return text
  }
}

/** The right verdict, by another reading of the text. */
function expected(text: string): string {
  const body = readBody(Buffer.from(text))
  const errors = 'errors' in body ? body.errors : []
  if (errors.includes(40007)) return 'memberRepeated'
  return errors.includes(40005) || errors.includes(40006) ? 'bodyNotJson' : 'accepted'
}

const rounded = (integer: number) => integer === 0 || Math.abs(integer) >= 2 ** 40

const ROUNDS = THOROUGH ? 60_000 : 500

test('json: accepts what JSON.parse accepts, if it is an object of different names', (t) => {
  const textOf = textsOf(new Random(seeded(t).seed))
  const seen = new Map<string, number>()
  for (let round = 0; round < ROUNDS; round++) {
    const text = textOf()
    // A mutation has cut a surrogate pair: no such text comes from UTF-8.
    if (!text.isWellFormed()) continue
    const wanted = expected(text)
    assert.equal(verdict(text), wanted, JSON.stringify(text))
    seen.set(wanted, (seen.get(wanted) ?? 0) + 1)
    if (wanted !== 'accepted') continue
    // JSON.parse makes own members even of "__proto__": a Map of its entries is the right result.
    const parsed = new Map(Object.entries(JSON.parse(text) as Readonly<Record<string, unknown>>))
    // Seen on Node 24.21 and 26: JSON.parse reads a name of one escape, such as "\u0064", as a
    // backslash.
    if (parsed.has('\\') && /^v2[46]\./.test(process.version)) continue
    const members = readObject(text, [...parsed.keys()])
    assert.equal(members.size, parsed.size, text)
    for (const [name, found] of members) {
      const reference = parsed.get(name)
      if (typeof reference !== 'number')
        assert.equal(found, typeof reference === 'string' ? reference : undefined, text)
      else if (typeof found === 'bigint') assert.ok(Number(found) === reference, text)
      // JSON.parse rounds to an integer below its smallest number, and far out.
      else assert.ok(!Number.isInteger(reference) || rounded(reference), text)
    }
  }
  // Every verdict came up often.
  for (const name of ['accepted', 'bodyNotJson', 'memberRepeated'])
    assert.ok((seen.get(name) ?? 0) > ROUNDS / 60, `${name}: ${seen.get(name)}`)
})
