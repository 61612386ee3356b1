/**
 * How plants are stored in etcd, and the messages of its HTTP/JSON gateway.
 *
 * Key: prefix, base64url of the owner's UTF-8, "/", and as 16 hex digits how far the id is above
 * the smallest one, so that keys sort as ids do. base64url has no "/": no owner's keys begin with
 * another owner's. Value: the plant as JSON.
 *
 * In messages, and in this folder, keys and values are base64. An int64 is a string. The gateway
 * leaves out members that are false, zero or empty, and ignores unknown ones.
 */
import { INT64_MIN, isInt64, type Plant } from '../../plants/plant.ts'

export type EtcdUser = { readonly name: string; readonly password: string }

export interface EtcdRequest {
  readonly path: string
  readonly message: unknown
  /** Of the response: a longer one is ResponseTooLong. */
  readonly maxBytes: number
  /** True if it may store plants. */
  readonly isPut?: boolean
}

/** At most `limit` entries from `first` up to `end`, which is excluded. */
export type RangeQuery = { readonly first: string; readonly end: string; readonly limit: number }

/** The keys of an owner's plants, which begin with `own`. In this one member they are text. */
export type OwnRange = Omit<RangeQuery, 'limit'> & { readonly own: string }

/** A plant as etcd sends it; without a value if that is empty. */
export type Entry = { readonly key: string; readonly value?: string }

/**
 * The answer to a range: its first entries, whether it has more, and their count. Or to a
 * transaction: whether its comparisons held, and the answers of the branch that ran. Or to a login:
 * its token. The header of a part has no cluster.
 */
export interface EtcdResponse {
  readonly header?: { readonly revision?: string; readonly cluster_id?: string }
  readonly token?: string
  readonly kvs?: readonly Entry[]
  readonly more?: boolean
  readonly count?: string
  readonly succeeded?: boolean
  readonly responses?: readonly { readonly response_range?: EtcdResponse }[]
}

const RANGE_PATH = '/v3/kv/range'
/** Of a response. One that has a single plant may be longer: PLANTS_MAX_BODY_BYTES is its bound. */
const MAX_BYTES = 4 * 1024 * 1024
const ONE_PLANT_MAX_BYTES = 32 * 1024 * 1024
const ID_DIGITS = 16
const ID_OF_KEY = /^[0-9a-f]{16}$/

export function plantKey(prefix: string, owner: string, id: bigint): string {
  const digits = (id - INT64_MIN).toString(16).padStart(ID_DIGITS, '0')
  return base64(ownerPrefix(prefix, owner) + digits)
}

/** The keys of an owner's plants with an id above `after`. */
export function plantRange(prefix: string, owner: string, after: bigint | undefined): OwnRange {
  const own = ownerPrefix(prefix, owner)
  const first = isInt64(after) ? nextKey(plantKey(prefix, owner, after)) : base64(own)
  // "0" is the character after "/".
  return { own, first, end: base64(own.replace(/\/$/, '0')) }
}

/** The smallest key after a key. */
export function nextKey(key: string): string {
  return base64(`${textOf(key)}\0`)
}

/** Of a plant's key. */
export function idOf(key: string): bigint {
  return BigInt(`0x${textOf(key).slice(-ID_DIGITS)}`) + INT64_MIN
}

/** The same plant has the same bytes: JSON.stringify leaves out an undefined tag. */
export function plantValue({ name, tag }: Plant): string {
  return base64(JSON.stringify({ name, tag }))
}

/**
 * A plant of a range. Its key is looked at: another one is of a deployment whose prefix is inside
 * this range, and so of another owner, or was written by hand.
 * @throws Error if the entry is not a plant of this owner
 */
export function plantOf({ key, value = '' }: Entry, own: string): object {
  const text = textOf(key)
  if (!text.startsWith(own) || !ID_OF_KEY.test(text.slice(own.length)))
    throw new Error("among an owner's keys etcd holds one that is not a plant's")
  try {
    // null alone throws here; the members of any other value are checked below.
    const { name, tag } = JSON.parse(textOf(value)) as Readonly<Record<keyof Plant, unknown>>
    if (typeof name === 'string' && (tag === undefined || typeof tag === 'string'))
      return { name, tag }
  } catch {
    // Not JSON.
  }
  // Only the id: the rest of the key names the owner, which must not be logged.
  throw new Error(`etcd holds a value that is not a plant, at the id ${idOf(key)}`)
}

/** Puts all if no key exists. If one does, puts none, and counts each key. */
export function putRequest(puts: readonly { key: string; value: string }[]): EtcdRequest {
  const request = txnRequest(
    puts.map(({ key }) => ({ key, target: 'CREATE', result: 'EQUAL', create_revision: '0' })),
    puts.map(({ key, value }) => ({ request_put: { key, value } })),
    puts.map(({ key }) => countOf(key)),
  )
  return { ...request, isPut: true }
}

/** Lets etcd compare the values. A transaction without a range would not be linearizable. */
export function compareRequest({ key, value }: { key: string; value: string }): EtcdRequest {
  const equal = { key, target: 'VALUE', result: 'EQUAL', value }
  return txnRequest([equal], [countOf(key)], [countOf(key)])
}

/**
 * Needs a majority and the rights to read and to write, and changes nothing: no create revision is
 * below 0, and etcd checks the rights of both branches. A full cluster refuses a put here, but not
 * a delete.
 */
export function probeRequest(key: string): EtcdRequest {
  const never = { key, target: 'CREATE', result: 'LESS', create_revision: '0' }
  return txnRequest([never], [{ request_delete_range: { key } }], [countOf(key)])
}

export function keyRequest(key: string): EtcdRequest {
  return { path: RANGE_PATH, message: { key }, maxBytes: ONE_PLANT_MAX_BYTES }
}

/**
 * One range, or a transaction of several. Without "serializable" both are linearizable: they have
 * all that was acknowledged before.
 */
export function rangesRequest(queries: readonly RangeQuery[]): EtcdRequest {
  const ranges = queries.map(({ first, end, limit }) => ({
    request_range: { key: first, range_end: end, limit: String(limit) },
  }))
  const [range, second] = ranges
  if (!range || second) return txnRequest([], ranges, [])
  const maxBytes = queries[0]?.limit === 1 ? ONE_PLANT_MAX_BYTES : MAX_BYTES
  return { path: RANGE_PATH, message: range.request_range, maxBytes }
}

export function loginRequest(user: EtcdUser): EtcdRequest {
  return { path: '/v3/auth/authenticate', message: user, maxBytes: MAX_BYTES }
}

function txnRequest(compare: object[], success: object[], failure: object[]): EtcdRequest {
  return { path: '/v3/kv/txn', message: { compare, success, failure }, maxBytes: MAX_BYTES }
}

function countOf(key: string): object {
  return { request_range: { key, count_only: true } }
}

/**
 * The responses to this many ranges of one request. To one range it is the whole response.
 * @throws Error if one is missing or is not etcd's
 */
export function partsOf(answer: EtcdResponse, count: number): readonly EtcdResponse[] {
  const parts = answer.responses?.map((each) => each.response_range ?? {}) ?? [answer]
  // Without its revision it would look like an empty range.
  const isWhole = parts.every(({ header }) => Number(header?.revision) > 0)
  if (parts.length === count && isWhole) return parts
  throw new Error('etcd has not answered every range')
}

export function base64(text: string): string {
  return Buffer.from(text).toString('base64')
}

/** What the keys of an owner's plants begin with, and no other owner's: base64url has no "/". */
function ownerPrefix(prefix: string, owner: string): string {
  return `${prefix}${Buffer.from(owner).toString('base64url')}/`
}

function textOf(encoded: string): string {
  return Buffer.from(encoded, 'base64').toString()
}
