/**
 * How plants are stored in etcd, and the messages of its HTTP/JSON gateway.
 *
 * Key: prefix, base64url of the owner's UTF-8, "/", and the id as 16 hex digits with its sign bit
 * flipped, so that keys sort as ids do. base64url has no "/": no owner's keys begin with another
 * owner's. Value: the plant as JSON.
 *
 * In messages, and in this folder, keys and values are base64. An int64 is a string. The gateway
 * leaves out members that are false, zero or empty, and ignores unknown ones.
 */
import type { Plant } from '../../plants/plant.ts'

export type EtcdUser = { readonly name: string; readonly password: string }

export interface EtcdRequest {
  readonly path: string
  readonly message: unknown
  /** Of the answer: a longer one is AnswerTooLong. */
  readonly maxBytes?: number
}

/** All keys from `first` up to `end`, which is excluded. */
export type KeyRange = { readonly first: string; readonly end: string }

/** As etcd sends it. */
export interface Entry {
  readonly key: string
  /** Left out if it is empty, or only keys were asked for. */
  readonly value?: string
  readonly create_revision: string
}

/** Revisions and counts are numbers here: they stay far below 2^53. */
export interface Page {
  readonly entries: readonly Entry[]
  /** True if the range has more entries after these. */
  readonly more: boolean
  /** Entries of the whole range. */
  readonly count: number
  /** The store's revision when the page was read. */
  readonly revision: number
}

const TXN_PATH = '/v3/kv/txn'
const RANGE_PATH = '/v3/kv/range'
const LOGIN_PATH = '/v3/auth/authenticate'
const SIGN_BIT = 1n << 63n
const ID_DIGITS = 16

export function plantKey(prefix: string, owner: string, id: bigint): string {
  const digits = (BigInt.asUintN(64, id) ^ SIGN_BIT).toString(16).padStart(ID_DIGITS, '0')
  return base64(`${ownerPrefix(prefix, owner)}/${digits}`)
}

/** The keys of an owner's plants with an id above `after`. */
export function plantRange(prefix: string, owner: string, after: bigint | undefined): KeyRange {
  const begin = ownerPrefix(prefix, owner)
  return {
    first: after === undefined ? base64(`${begin}/`) : nextKey(plantKey(prefix, owner, after)),
    // "0" is the character after "/".
    end: base64(`${begin}0`),
  }
}

/** The smallest key after a key. */
export function nextKey(key: string): string {
  return base64(Buffer.concat([Buffer.from(key, 'base64'), Buffer.alloc(1)]))
}

/** True if a key of a range has the length of a plant's: `end` has one character for "/". */
export function hasPlantKeyLength(key: string, end: string): boolean {
  return Buffer.byteLength(key, 'base64') === Buffer.byteLength(end, 'base64') + ID_DIGITS
}

/** @throws Error if the key is not a plant's. */
export function idOf(key: string): bigint {
  const digits = /\/([0-9a-f]{16})$/.exec(textOf(key))?.[1]
  if (digits === undefined) throw new Error("etcd holds a key that is not a plant's")
  return BigInt.asIntN(64, BigInt(`0x${digits}`) ^ SIGN_BIT)
}

/** The same plant has the same bytes: JSON.stringify leaves out an undefined tag. */
export function plantValue({ name, tag }: Plant): string {
  return base64(JSON.stringify({ name, tag }))
}

/** @throws Error if the value is not a plant. */
export function readPlant({ key, value = '' }: Entry): { name: string; tag: string | undefined } {
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

/** Puts all plants unless a key exists. Does not read an existing value, which may be long. */
export function putRequest(puts: readonly { key: string; plant: Plant }[]): EtcdRequest {
  const unused = { target: 'CREATE', result: 'EQUAL', create_revision: '0' }
  const compare = puts.map(({ key }) => ({ key, ...unused }))
  const success = puts.map(({ key, plant }) => ({ request_put: { key, value: plantValue(plant) } }))
  return { path: TXN_PATH, message: { compare, success } }
}

/** Lets etcd compare the values. A transaction without a range would not be linearizable. */
export function compareRequest(key: string, plant: Plant): EtcdRequest {
  const compare = [{ key, target: 'VALUE', result: 'EQUAL', value: plantValue(plant) }]
  const count = [{ request_range: { key, count_only: true } }]
  return { path: TXN_PATH, message: { compare, success: count, failure: count } }
}

/**
 * Needs a majority and the rights to read and to write, and changes nothing: no create revision is
 * below 0, and etcd checks the rights of both branches. A full cluster refuses a put here, but not
 * a delete.
 */
export function probeRequest(key: string): EtcdRequest {
  const compare = [{ key, target: 'CREATE', result: 'LESS', create_revision: '0' }]
  const success = [{ request_delete_range: { key } }]
  const failure = [{ request_range: { key, count_only: true } }]
  return { path: TXN_PATH, message: { compare, success, failure } }
}

export function keyRequest(key: string): EtcdRequest {
  return { path: RANGE_PATH, message: { key } }
}

/** Without "serializable" a range is linearizable: it has all that was acknowledged before. */
export function rangeRequest({ first, end }: KeyRange, limit: number, keysOnly: boolean) {
  const message = { key: first, range_end: end, limit: String(limit) }
  return { path: RANGE_PATH, message: keysOnly ? { ...message, keys_only: true } : message }
}

export function loginRequest({ name, password }: EtcdUser): EtcdRequest {
  return { path: LOGIN_PATH, message: { name, password } }
}

/** @throws Error if the body is not etcd's. */
export function readPage(body: unknown): Page {
  const { kvs = [], more = false, count = 0, revision } = readAnswer(body)
  return { entries: kvs, more, count: Number(count), revision }
}

/**
 * Whether the comparisons of a transaction held, and what the branch that ran counted.
 * @throws Error if the body is not etcd's.
 */
export function readOutcome(body: unknown) {
  const { succeeded = false, responses } = readAnswer(body)
  return { succeeded, count: Number(responses?.[0]?.response_range?.count ?? 0) }
}

interface Answer {
  readonly header?: { readonly revision?: string }
  readonly kvs?: readonly Entry[]
  readonly more?: boolean
  readonly count?: string
  readonly succeeded?: boolean
  readonly responses?: readonly { readonly response_range?: Answer }[]
}

/** Every answer has a revision. A body without one would look like an empty range. */
function readAnswer(body: unknown): Answer & { readonly revision: number } {
  // etcd's rpc.proto defines these members. The revision shows that the body is etcd's.
  const answer = (body ?? {}) as Answer
  const revision = Number(answer.header?.revision)
  if (revision > 0) return { ...answer, revision }
  throw new Error("the answer is not etcd's: it has no revision")
}

/** A member of an object if it is a string, else "": the gateway leaves out empty strings. */
export function stringOf(value: unknown, name: string): string {
  if (typeof value !== 'object' || value === null) return ''
  const member: unknown = Reflect.get(value, name)
  return typeof member === 'string' ? member : ''
}

function ownerPrefix(prefix: string, owner: string): string {
  return prefix + Buffer.from(owner).toString('base64url')
}

export function base64(bytes: string | Buffer): string {
  return Buffer.from(bytes).toString('base64')
}

function textOf(encoded: string): string {
  return Buffer.from(encoded, 'base64').toString()
}
