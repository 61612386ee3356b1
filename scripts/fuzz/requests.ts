import { METHODS } from 'node:http'
import { jsonOf, plantOf } from '../../test/support/ledger.ts'
import { SHARED_TEXT } from '../../test/support/oracle/compare.ts'
import { OPERATIONS } from '../../test/support/oracle/operations.ts'
import type { Owner } from '../../test/support/oracle/owner.ts'
import type { Random } from '../../test/support/random.ts'
import { head, postBytes } from '../../test/support/wire.ts'
import { someId, someText, spellPlant, spoilBody } from './bodies.ts'
import { chunk } from './chunks.ts'
import { dictionary } from './dictionary.ts'

export type Tokens = readonly [string, ...string[]]

/** Whose tokens a connection may use. */
export interface Actors {
  readonly owners: readonly [Owner, ...Owner[]]
  /** Tokens of the owners that every connection may write for; none to leave them alone. */
  readonly shared: readonly string[]
  /** Tokens that are good for less, or for nothing, by kind. */
  readonly others: readonly [Tokens, ...Tokens[]]
  readonly maxBodyBytes: number
}

const SHARED_IDS = 300
const READS = OPERATIONS.filter(({ method }) => method === 'GET')
const JSON_TYPE = 'Content-Type: application/json'
const TYPES = [...dictionary.contentTypes, `application/json${';a=b'.repeat(300)}`] as const
const HEADERS = [
  ...dictionary.headers,
  `Request-Id: ${'r'.repeat(129)}`,
  // With the other headers of a request, these are just too many, or not quite.
  'a:\r\n'.repeat(96).trimEnd(),
  'a:\r\n'.repeat(97).trimEnd(),
] as const

/** One request, or what could pass for one. */
export function someRequest(random: Random, actors: Actors): string {
  const kind = random.next()
  if (kind < 0.5) return create(random, actors)
  if (kind < 0.84) return read(random, actors)
  if (kind < 0.9) return ofShared(random, actors) ?? read(random, actors)
  if (kind < 0.985) return odd(random, actors)
  return random.pick(dictionary.noRequests)
}

function create(random: Random, actors: Actors): string {
  const lines = ['POST /plants HTTP/1.1', 'Host: a', ...authorization(random, actors)]
  if (random.chance(0.97)) lines.push(JSON_TYPE)
  else if (random.chance(0.8)) lines.push(`Content-Type: ${random.pick(TYPES)}`)
  addHeaders(random, lines, 0.04)
  const tagged = random.chance(0.4)
  const id = someId(random)
  // Few different plants under an id: the same again, and another one, are both usual.
  const name = random.chance(0.8)
    ? `${id} ${random.below(2)}`
    : someText(random, actors.maxBodyBytes / 8)
  const plant = tagged
    ? { name, tag: random.chance(0.7) ? 'indoor' : someText(random, 100) }
    : { name }
  const body = random.chance(0.72) ? spellPlant(random, id, plant) : spoilBody(random, id, plant)
  // Now and then as long as a body may be, or one byte more or less.
  const longest = actors.maxBodyBytes + random.below(3) - 1
  return withBody(random, lines, random.chance(0.004) ? body.padEnd(longest) : body)
}

/** A GET or HEAD of any operation that reads. */
function read(random: Random, actors: Actors): string {
  const { path = '/plants' } = READS[random.below(READS.length)] ?? {}
  const owner = random.pick(actors.owners)
  const cursors = [...(random.chance(0.8) ? owner : random.pick(actors.owners)).cursors.keys()]
  const bearer = random.chance(0.5)
    ? [`Authorization: Bearer ${owner.token}`]
    : authorization(random, actors)
  const method = random.chance(0.93) ? 'GET' : 'HEAD'
  const target = filled(random, path) + query(random, cursors)
  const lines = [`${method} ${target} HTTP/1.1`, 'Host: a', ...bearer]
  addHeaders(random, lines, 0.04)
  if (random.chance(0.97)) return `${lines.join('\r\n')}\r\n\r\n`
  const length = random.chance(0.9) ? random.below(300) : 60_000 + random.below(12_000)
  return withBody(random, lines, 'x'.repeat(length))
}

/** A path with something in the place of each "{name}". */
function filled(random: Random, path: string): string {
  return path.replace(/\{\w+\}/g, () =>
    random.chance(0.9) ? String(someId(random)) : encodeURIComponent(random.pick(dictionary.noIds)),
  )
}

function query(random: Random, cursors: readonly string[]): string {
  const known = cursors[random.below(Math.max(1, cursors.length))] ?? 'AbcDef_-'
  const cursor = random.chance(0.9)
    ? known
    : known.slice(0, -1) + random.pick(['A', 'B', 'g', 'w', ''])
  if (random.chance(0.4)) return ''
  if (random.chance(0.4)) return `?${random.pick(dictionary.queries)}`
  if (random.chance(0.5)) return `?limit=${1 + random.small(9)}&after=${cursor}`
  return random.chance(0.3) ? `?after=${cursor}` : `?limit=${random.small(12)}`
}

/** A create or a list of an owner that all connections write for at once. */
function ofShared(random: Random, { shared }: Actors): string | undefined {
  const token = shared[random.below(shared.length)]
  if (token === undefined) return undefined
  if (random.chance(0.3)) return head('GET', '/plants', { token })
  const plant = plantOf(BigInt(random.below(SHARED_IDS)), SHARED_TEXT)
  return postBytes(jsonOf(plant), { token })
}

/** Any method, target, version and Host. */
function odd(random: Random, actors: Actors): string {
  const method = random.chance(0.5)
    ? (METHODS[random.below(METHODS.length)] ?? 'GET')
    : random.pick(['GET', 'POST', 'HEAD', 'OPTIONS', 'PUT'])
  const { path: pattern = '/' } = OPERATIONS[random.below(OPERATIONS.length)] ?? {}
  const path = filled(random, pattern)
  const longTarget = (): string =>
    `${path}?${'x'.repeat(random.pick([13_000, 15_800, 16_384, 20_000]))}`
  const usualTarget = (): string => (random.chance(0.97) ? path : longTarget())
  const oddTarget = (): string => random.pick(dictionary.targets).replace('{path}', path)
  const target = random.chance(0.5) ? oddTarget() : usualTarget()
  const version = random.chance(0.9) ? '1.1' : random.pick(dictionary.versions)
  const lines = [`${method} ${target} HTTP/${version}`]
  if (random.chance(0.93)) lines.push(`Host: ${random.pick(dictionary.hosts)}`)
  lines.push(...authorization(random, actors))
  const connections = ['close', 'keep-alive', 'close, keep-alive', 'CLOSE'] as const
  if (random.chance(0.2)) lines.push(`Connection: ${random.pick(connections)}`)
  addHeaders(random, lines, 0.3)
  if (random.chance(0.1)) lines.push(`X: ${'h'.repeat(random.pick([100, 14_000, 16_000, 19_000]))}`)
  return random.chance(0.7)
    ? `${lines.join('\r\n')}\r\n\r\n`
    : withBody(random, lines, spellPlant(random, 1n, { name: 'odd' }))
}

function authorization(random: Random, { owners, others }: Actors): string[] {
  const { token } = random.pick(owners)
  const bearer = `Authorization: Bearer ${token}`
  if (random.chance(0.9)) return [bearer]
  const changed = (): string[] => {
    const at = random.below(token.length)
    const other = random.pick(['A', 'b', '_', '-', '.', '', '+', '/', '=', '~'])
    return [`Authorization: Bearer ${token.slice(0, at)}${other}${token.slice(at + 1)}`]
  }
  const worthless = (): string[] => [`Authorization: Bearer ${random.pick(random.pick(others))}`]
  const make = random.pick([
    () => [],
    () => [bearer, `Authorization: Bearer ${random.pick(owners).token}`],
    () => {
      const scheme = random.pick(['bearer', 'BEARER', 'Bearer '])
      return [`authorization:${random.pick([' ', '', '\t'])}${scheme} ${token} `]
    },
    () => [`Authorization: ${random.pick(dictionary.schemes)} ${token}`],
    () => [bearer + random.pick(dictionary.tokenEnds)],
    changed,
    changed,
    worthless,
    worthless,
    worthless,
  ])
  return make()
}

function addHeaders(random: Random, lines: string[], share: number): void {
  while (random.chance(share)) lines.splice(1 + random.below(lines.length), 0, random.pick(HEADERS))
}

function withBody(random: Random, lines: string[], body: string): string {
  if (random.chance(0.12))
    return `${[...lines, 'Transfer-Encoding: chunked'].join('\r\n')}\r\n\r\n${chunk(random, body)}`
  const length = random.chance(0.985)
    ? body.length
    : random.pick([body.length + 1, Math.max(0, body.length - 1), 0, 70_000, 2 ** 31, '1e1', ''])
  lines.splice(random.below(lines.length - 1) + 1, 0, `Content-Length: ${length}`)
  return `${lines.join('\r\n')}\r\n\r\n${body}`
}
