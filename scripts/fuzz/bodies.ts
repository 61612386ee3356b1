import type { Content } from '../../test/support/ledger.ts'
import type { Random } from '../../test/support/random.ts'
import { dictionary } from './dictionary.ts'
import { mutate } from './mutate.ts'

const EDGE_IDS = [
  ...[0n, 2n ** 53n, 2n ** 53n + 1n, -(2n ** 53n) - 1n, 1000n, -70n],
  ...[2n ** 63n - 1n, -(2n ** 63n), 2n ** 63n - 2n],
] as const
const SPACES = [' ', '\n', '\t', '\r', ' \r\n\t ', ' '.repeat(40)] as const

/** All bodies are latin1 text: a character is a byte. */
function utf8(text: string): string {
  return Buffer.from(text, 'utf8').toString('latin1')
}

export function someText(random: Random, maxChars: number): string {
  const chars = Array.from(random.pick(dictionary.alphabets))
  // Lists of more than 64 KiB are sent in another way than short ones.
  if (random.chance(0.01))
    return (chars[0] ?? '').repeat(Math.min(maxChars, random.below(40_000)) / 2)
  const length = random.small(Math.min(maxChars, random.chance(0.02) ? 4000 : 40))
  return Array.from({ length }, () => chars[random.below(chars.length)] ?? '').join('')
}

export function someId(random: Random): bigint {
  return random.chance(0.15) ? random.pick(EDGE_IDS) : BigInt(random.below(24) - 3)
}

/** One plant as JSON, spelt in one of many ways. */
export function spellPlant(random: Random, id: bigint, { name, tag }: Content): string {
  const space = (): string => (random.chance(0.9) ? '' : random.pick(SPACES))
  const idName = random.chance(0.03) ? '"\\u0069d"' : '"id"'
  const members = [
    `"name"${space()}:${space()}${spellText(random, name)}`,
    `${idName}:${space()}${spellId(random, id)}`,
  ]
  if (tag !== undefined) members.push(`"tag":${spellText(random, tag)}`)
  if (random.chance(0.1)) {
    const value = random.chance(0.1) ? nest(random) : random.pick(dictionary.values)
    members.push(`${JSON.stringify(random.pick(dictionary.otherMembers))}:${value}`)
  }
  if (random.chance(0.3)) members.reverse()
  const inner = members.join(`${space()},${space()}`)
  return utf8(`${space()}{${space()}${inner}${space()}}${space()}`)
}

function spellText(random: Random, text: string): string {
  if (random.chance(0.85)) return JSON.stringify(text)
  const spellUnit = (unit: string): string => {
    const hex = unit.charCodeAt(0).toString(16).padStart(4, '0')
    if (random.chance(0.3) || unit < ' ' || /["\\\ud800-\udfff]/.test(unit))
      return `\\u${random.chance(0.5) ? hex : hex.toUpperCase()}`
    return unit === '/' && random.chance(0.5) ? '\\/' : unit
  }
  return `"${text.split('').map(spellUnit).join('')}"`
}

function spellId(random: Random, id: bigint): string {
  if (random.chance(0.8)) return String(id)
  const forms = [`${id}.0`, `${id}e0`, `${id}E+00`, `${id}0e-1`, `${id}.000e-0`] as const
  const long = [`${id}${'0'.repeat(30)}e-30`, `${id}.${'0'.repeat(60)}`]
  if (id === 0n) return random.pick([...forms, ...long, '-0', '0e9999999999', '0.000', '-0.0e-5'])
  const digits = String(id).replace('-', '')
  const trimmed = String(id).replace(/0+$/, '')
  const shifted = `${trimmed}e${String(id).length - trimmed.length}`
  const fraction = `${id < 0n ? '-' : ''}0.${digits}e${digits.length}`
  return random.pick([...forms, ...long, shifted, fraction])
}

function nest(random: Random): string {
  const depth = random.small(1500)
  const closed = random.chance(0.7) ? depth : random.below(depth + 2)
  return random.chance(0.5)
    ? '['.repeat(depth) + ']'.repeat(closed)
    : '{"a":'.repeat(depth) + '1' + '}'.repeat(closed)
}

/** A body that is most likely wrong somewhere; the oracle decides by reading it. */
export function spoilBody(random: Random, id: bigint, plant: Content): string {
  return random.chance(0.5)
    ? utf8(spoilMember(random, id, JSON.stringify(plant.name)))
    : spoilBytes(random, spellPlant(random, id, plant))
}

/** JSON that is wrong as a plant, or as JSON. */
function spoilMember(random: Random, id: bigint, name: string): string {
  const start = `{"id":${id},"name":${name}`
  const spoil = random.pick([
    () => `{"id":${random.pick(dictionary.noIds)},"name":${name}}`,
    () => `{"id":${id},"name":${random.pick(dictionary.noStrings)}}`,
    () => `${start},"tag":${random.pick(dictionary.noStrings)}}`,
    () => {
      const value = random.pick(['1', '"a"', String(id), '{'])
      return `${start},${random.pick(dictionary.repeatedMembers)}:${value}}`
    },
    () => random.pick([`{"name":${name}}`, `{"id":${id}}`, ...dictionary.noPlants]),
    () => `${start},"x":${nest(random)}}`,
    () => {
      const digits = String(random.below(1e9)).repeat(1 + random.below(60))
      const exponent = `${random.pick(['-', '', '+'])}${random.below(600)}`
      return `{"id":${random.pick(['-', ''])}${digits}e${exponent},"name":${name}}`
    },
    () => {
      const length = random.below(200)
      const names = Array.from({ length }, (_, at) => `"${at * random.below(3)}":${at},`)
      return `{${names.join('')}"id":${id},"name":${name}}`
    },
  ])
  return spoil()
}

/** A good body whose bytes are changed. */
function spoilBytes(random: Random, good: string): string {
  const spoil = random.pick([
    // UTF-8 of what was UTF-8 already: other text, unless it is ASCII.
    () => utf8(good),
    () => `\xef\xbb\xbf${good}`,
    () => Buffer.from(random.pick(['', '\ufeff']) + good, 'utf16le').toString('latin1'),
    () => good.replace(/[a-z]/, random.pick(dictionary.noUtf8)),
    () => good + random.pick(dictionary.afterJson),
    () => good.replace(/[:,]/, random.pick(['', ',', '::', ',,', ';', '=', ' '])),
    () => good.slice(0, random.below(good.length + 1)),
    () => mutate(random, good),
  ])
  return spoil()
}
