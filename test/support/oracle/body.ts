/*
 * The oracle's own reading of a body: JSON.parse decides whether it is JSON, and what JSON.parse
 * hides (repeated names, the digits of a number) is read from the text.
 */
import type { Content } from '../ledger.ts'

type BodyReading =
  | { readonly plant: Content; readonly id: bigint }
  /** Every error that is right: the service answers with the first that it finds. */
  | { readonly errors: readonly number[] }

const INT64_MIN = -(2n ** 63n)
const INT64_MAX = 2n ** 63n - 1n

export function readBody(bytes: Buffer): BodyReading {
  const text = bytes.toString('utf8')
  // What is no UTF-8 has become U+FFFD.
  if (!Buffer.from(text).equals(bytes) || text.startsWith('\ufeff')) return { errors: [40005] }
  try {
    const value: unknown = JSON.parse(text)
    if (typeof value !== 'object' || value === null || Array.isArray(value))
      return { errors: [40006] }
  } catch {
    return { errors: [40006] }
  }
  return readMembers(membersOf(text))
}

function readMembers(members: readonly (readonly [name: string, value: string])[]): BodyReading {
  const errors: number[] = []
  const last = new Map(members)
  if (last.size < members.length) errors.push(40007)
  const text = (name: string): string | undefined => {
    const written = last.get(name)
    if (written === undefined || !written.startsWith('"')) return undefined
    const value = String(JSON.parse(written))
    return value.isWellFormed() ? value : undefined
  }
  const [name, id, tag] = [text('name'), int64Of(last.get('id') ?? ''), text('tag')]
  if (name === undefined) errors.push(40008)
  if (id === undefined) errors.push(40009)
  if (last.has('tag') && tag === undefined) errors.push(40010)
  if (errors.length > 0 || name === undefined || id === undefined) return { errors }
  return { id, plant: tag === undefined ? { name } : { name, tag } }
}

/** Names, unescaped, and values as written, of an object that is known to be good JSON. */
function membersOf(text: string): readonly (readonly [string, string])[] {
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g) ?? []
  const members: (readonly [string, string])[] = []
  let depth = 0
  let name: string | undefined
  let value: string | undefined
  for (const token of tokens) {
    if (token === '}' || token === ']') depth -= 1
    const ends = depth === 0 || (depth === 1 && token === ',')
    if (ends && name !== undefined) {
      members.push([String(JSON.parse(name)), value ?? ''])
      name = value = undefined
    } else if (depth === 1 && token !== ':' && !ends) {
      if (name === undefined) name = token
      else value ??= token
    }
    if (token === '{' || token === '[') depth += 1
  }
  return members
}

/** By decimal arithmetic: digits × 10^shift. */
function int64Of(written: string): bigint | undefined {
  const [, sign, whole = '', fraction = '', exponent = '0'] =
    /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(written) ?? []
  if (sign === undefined) return undefined
  const digits = BigInt(whole + fraction)
  if (digits === 0n) return 0n
  const shift = BigInt(exponent) - BigInt(fraction.length)
  // At least one digit and 19 more zeros is more than 2^63.
  if (shift > 19n || -shift > BigInt(whole.length + fraction.length)) return undefined
  const scale = 10n ** (shift < 0n ? -shift : shift)
  if (shift < 0n && digits % scale !== 0n) return undefined
  const value = (shift < 0n ? digits / scale : digits * scale) * (sign === '-' ? -1n : 1n)
  return value >= INT64_MIN && value <= INT64_MAX ? value : undefined
}
