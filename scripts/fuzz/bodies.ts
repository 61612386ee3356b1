import type { Content } from './json.ts'
import { mutate } from './mutate.ts'
import type { Random } from './random.ts'

/** All bodies are latin1 text: a character is a byte. */
function utf8(text: string): string {
  return Buffer.from(text, 'utf8').toString('latin1')
}

const EDGES: readonly [bigint, ...bigint[]] = [
  0n,
  2n ** 53n,
  2n ** 53n + 1n,
  -(2n ** 53n) - 1n,
  2n ** 63n - 1n,
  -(2n ** 63n),
  2n ** 63n - 2n,
  1000n,
  -70n,
]
const NO_IDS: readonly [string, ...string[]] = [
  '9223372036854775808',
  '-9223372036854775809',
  '1.5',
  '0.9999999999999999999',
  '1e-1',
  '1e19',
  '1e400',
  '1e999999999999999999999',
  '-1e-99999999999999999999',
  '"7"',
  'null',
  'true',
  '[]',
  '{}',
  '[7]',
  '""',
  '+1',
  '01',
  '-',
  '1.',
  '.5',
  '1e',
  '0x10',
  'NaN',
  'Infinity',
  '1_000',
  '7n',
  '١',
  '--1',
  '1e+-1',
  '99999999999999999999999999999999',
  '18446744073709551616',
  '922337203685477580.75e1',
]
const NO_TEXTS: readonly [string, ...string[]] = [
  'null',
  '7',
  'true',
  '[]',
  '{}',
  '["a"]',
  '"\\ud800"',
  '"a\\udc00"',
  '"\\udc00\\ud800"',
  "'a'",
  '"a',
  '"\\x"',
  '"\\u12"',
  '"\\u{61}"',
  '"a\nb"',
  '"\u0000"',
  'a',
  '"a""b"',
  'undefined',
  '"\\"',
]
const ALPHABETS: readonly [string, ...string[]] = [
  'abcdefgh',
  'Monstera deliciosa ',
  '{}[]":,\\/',
  '\u0000\u0001\u001f\u007f',
  'äéñßε',
  '🌿𝒳',
  '\u2028\u2029\u200b\ufeff\ufffd',
  '\r\nHTTP/1.1 200 OK',
  'é́',
]
const OTHER_NAMES: readonly [string, ...string[]] = [
  '__proto__',
  'constructor',
  'toString',
  'ID',
  'Name',
  'name ',
  'i',
  '',
  '\u0000',
  'extra',
  '0',
  '1e3',
  'tags',
]
const VALUES: readonly [string, ...string[]] = [
  '1',
  'null',
  '"x"',
  '[]',
  '{}',
  '[1,{"id":2,"name":"inner","id":3}]',
  '{"a":{"a":[[[]]]}}',
  '1e400',
  '"\\ud800"',
  '-0.0e-0',
  '[true,false]',
  '{"__proto__":{"x":1}}',
]

export function someText(random: Random, maxChars: number): string {
  const chars = Array.from(random.pick(ALPHABETS))
  let text = ''
  // Lists of more than 64 KiB are sent in another way than short ones.
  if (random.chance(0.01))
    return (chars[0] ?? '').repeat(Math.min(maxChars, random.below(40_000)) / 2)
  for (
    let left = random.small(Math.min(maxChars, random.chance(0.02) ? 4000 : 40));
    left > 0;
    left--
  )
    text += chars[random.below(chars.length)] ?? ''
  return text
}

export function someId(random: Random): bigint {
  return random.chance(0.15) ? random.pick(EDGES) : BigInt(random.below(24) - 3)
}

function space(random: Random): string {
  return random.chance(0.9) ? '' : random.pick([' ', '\n', '\t', '\r', ' \r\n\t ', ' '.repeat(40)])
}

function spellText(random: Random, text: string): string {
  const escape = (unit: string): string =>
    `\\u${random.chance(0.5) ? unit.charCodeAt(0).toString(16).padStart(4, '0') : unit.charCodeAt(0).toString(16).padStart(4, '0').toUpperCase()}`
  if (random.chance(0.85)) return JSON.stringify(text)
  // Every unit may be written as an escape; JSON.stringify leaves nothing behind that must be one.
  return `"${text
    .split('')
    .map((unit) =>
      random.chance(0.3) || unit < ' ' || /["\\\ud800-\udfff]/.test(unit)
        ? escape(unit)
        : unit === '/' && random.chance(0.5)
          ? '\\/'
          : unit,
    )
    .join('')}"`
}

function spellId(random: Random, id: bigint): string {
  if (random.chance(0.8)) return String(id)
  const trimmed = String(id).replace(/0+$/, '')
  const zeros = String(id).length - trimmed.length
  return random.pick([
    `${id}.0`,
    `${id}e0`,
    `${id}E+00`,
    `${id}0e-1`,
    `${id}.000e-0`,
    `${id}${'0'.repeat(30)}e-30`,
    id === 0n
      ? random.pick(['-0', '0e9999999999', '0.000', '-0.0e-5'])
      : zeros > 0
        ? `${trimmed}e${zeros}`
        : `${id}.${'0'.repeat(60)}`,
    id === 0n
      ? '0'
      : `${id < 0n ? '-' : ''}0.${String(id).replace('-', '')}e${String(id).replace('-', '').length}`,
  ])
}

/** One plant as JSON, spelt in one of many ways. */
export function spellPlant(random: Random, id: bigint, { name, tag }: Content): string {
  const members = [
    `"name"${space(random)}:${space(random)}${spellText(random, name)}`,
    `${random.chance(0.03) ? '"\\u0069d"' : '"id"'}:${space(random)}${spellId(random, id)}`,
  ]
  if (tag !== undefined) members.push(`"tag":${spellText(random, tag)}`)
  if (random.chance(0.1))
    members.push(
      `${JSON.stringify(random.pick(OTHER_NAMES))}:${random.chance(0.1) ? nest(random) : random.pick(VALUES)}`,
    )
  if (random.chance(0.3)) members.reverse()
  return utf8(
    `${space(random)}{${space(random)}${members.join(`${space(random)},${space(random)}`)}${space(random)}}${space(random)}`,
  )
}

function nest(random: Random): string {
  const depth = random.small(1500)
  const whole = random.chance(0.7)
  return random.chance(0.5)
    ? '['.repeat(depth) + ']'.repeat(whole ? depth : random.below(depth + 2))
    : '{"a":'.repeat(depth) + '1' + '}'.repeat(whole ? depth : random.below(depth + 2))
}

/** A body that is most likely wrong somewhere; the oracle reads it anew. */
export function spoilBody(random: Random, id: bigint, plant: Content): string {
  const name = JSON.stringify(plant.name)
  const good = spellPlant(random, id, plant)
  switch (random.below(16)) {
    case 0:
      return utf8(`{"id":${random.pick(NO_IDS)},"name":${name}}`)
    case 1:
      return utf8(`{"id":${id},"name":${random.pick(NO_TEXTS)}}`)
    case 2:
      return utf8(`{"id":${id},"name":${name},"tag":${random.pick(NO_TEXTS)}}`)
    case 3:
      return utf8(
        `{"id":${id},"name":${name},${random.pick(['"id"', '"\\u0069d"', '"name"', '"n\\u0061me"', '"x":1,"x"', '"":1,""', '"__proto__":1,"__proto__"'])}:${random.pick(['1', '"a"', String(id), '{'])}}`,
      )
    case 4:
      return utf8(
        random.pick([
          `{"name":${name}}`,
          `{"id":${id}}`,
          '{}',
          '[]',
          'null',
          '"a"',
          '7',
          '',
          ' ',
          '\n\n',
          '{',
          '}',
          '[{"id":1,"name":"a"}]',
          'true',
          '\u0000',
        ]),
      )
    case 5:
      return utf8(good) // UTF-8 of what was UTF-8: other text, where it was not ASCII.
    case 6:
      return `\xef\xbb\xbf${good}`
    case 7:
      return Buffer.from(`${random.chance(0.5) ? '\ufeff' : ''}${good}`, 'utf16le').toString(
        'latin1',
      )
    case 8:
      return good.replace(
        /[a-z]/,
        random.pick([
          '\xc0\xaf',
          '\xe0\x80\xaf',
          '\xff',
          '\xed\xa0\x80',
          '\xf4\x90\x80\x80',
          '\xc3',
          '\x80',
          '\xf0\x82\x82\xac',
          '\xc3\xa9',
        ]),
      )
    case 9:
      return good + random.pick(['x', ',', '}', '{}', '\u0000', '//', ' 1', ']', '\xa0'])
    case 10:
      return utf8(`{"id":${id},"name":${name},"x":${nest(random)}}`)
    case 11:
      return good.replace(/[:,]/, random.pick(['', ',', '::', ',,', ';', '=', ' ']))
    case 12:
      return good.slice(0, random.below(good.length + 1))
    case 13:
      return utf8(
        `{"id":${random.pick(['-', ''])}${String(random.below(1e9)).repeat(1 + random.below(60))}e${random.pick(['-', '', '+'])}${random.below(600)},"name":${name}}`,
      )
    case 14:
      return utf8(
        `{${Array.from({ length: random.below(200) }, (_, at) => `"${at * random.below(3)}":${at}`).join()},"id":${id},"name":${name}}`,
      )
    default:
      return mutate(random, good)
  }
}
