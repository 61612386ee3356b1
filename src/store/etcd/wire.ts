/**
 * How plants are stored in etcd, and etcd's messages, which its `rpc.proto` and `kv.proto` define.
 *
 * Key: prefix, base64url of the owner's UTF-8, "/", and the id as 16 hex digits with its sign bit
 * flipped, so that keys sort as ids do. base64url has no "/": no owner's keys begin with another
 * owner's. Value: the plant as JSON.
 *
 * In this folder, keys and values are texts with one character for each byte.
 */
import type { Plant } from '../../plants/plant.ts'
import { binary, encode, type Fields, Message } from './protobuf.ts'

export type EtcdUser = { readonly name: string; readonly password: string }

export interface EtcdRequest {
  readonly path: string
  readonly message: Buffer
  /** Of the answer: a longer one is AnswerTooLong. */
  readonly maxBytes?: number
}

/** All keys from `first` up to `end`, which is excluded. */
export type KeyRange = { readonly first: string; readonly end: string }

/** The first entries of a range. */
export type Read = { readonly range: KeyRange; readonly limit: number }

export interface Entry {
  readonly key: string
  /** Empty if only keys were asked for. */
  readonly value: string
  readonly createRevision: number
}

/** Revisions and counts stay far below 2^53. */
export interface Page {
  readonly entries: readonly Entry[]
  /** True if the range has more entries after these. */
  readonly more: boolean
  /** Entries of the whole range. */
  readonly count: number
  /** The store's revision when the page was read. */
  readonly revision: number
  /** The length of the message. */
  readonly bytes: number
}

const TXN_PATH = '/etcdserverpb.KV/Txn'
const RANGE_PATH = '/etcdserverpb.KV/Range'
const LOGIN_PATH = '/etcdserverpb.Auth/Authenticate'

// The numbers of fields. The first field of every answer is its header.
const HEADER = 1
const HEADER_REVISION = 3
const RANGE = { key: 1, end: 2, limit: 3, keysOnly: 8, countOnly: 9 }
const RANGE_ANSWER = { entries: 2, more: 3, count: 4 }
const ENTRY = { key: 1, createRevision: 2, value: 5 }
const PUT = { key: 1, value: 2 }
const DELETE = { key: 1 }
const TXN = { compare: 1, success: 2, failure: 3 }
const TXN_ANSWER = { succeeded: 2, responses: 3 }
/** What a transaction may do; the first number is also that of a range's response. */
const OPERATION = { range: 1, put: 2, delete: 3 }
const COMPARE = { result: 1, target: 2, key: 3, createRevision: 5, value: 7 }
const LOGIN = { name: 1, password: 2 }
const LOGIN_ANSWER = { token: 2 }
// The values of enumerations.
const RESULT = { equal: 0, less: 2 }
const TARGET = { createRevision: 1, value: 3 }
const TRUE = 1

const SIGN_BIT = 1n << 63n
const ID_DIGITS = 16

export function plantKey(prefix: string, owner: string, id: bigint): string {
  const digits = (BigInt.asUintN(64, id) ^ SIGN_BIT).toString(16).padStart(ID_DIGITS, '0')
  return binary(`${ownerPrefix(prefix, owner)}/${digits}`)
}

/** The keys of an owner's plants with an id above `after`. */
export function plantRange(prefix: string, owner: string, after: bigint | undefined): KeyRange {
  const begin = ownerPrefix(prefix, owner)
  return {
    first: after === undefined ? binary(`${begin}/`) : nextKey(plantKey(prefix, owner, after)),
    // "0" is the character after "/".
    end: binary(`${begin}0`),
  }
}

/** The smallest key after a key. */
export function nextKey(key: string): string {
  return `${key}\0`
}

/** True if a key is in the range, and as long as a plant's: `end` has one character for "/". */
export function isPlantKeyOf({ first, end }: KeyRange, key: string): boolean {
  return key >= first && key < end && key.length === end.length + ID_DIGITS
}

/** @throws Error if the key is not a plant's. */
export function idOf(key: string): bigint {
  const digits = /\/([0-9a-f]{16})$/.exec(key)?.[1]
  if (digits === undefined) throw new Error("etcd holds a key that is not a plant's")
  return BigInt.asIntN(64, BigInt(`0x${digits}`) ^ SIGN_BIT)
}

/** The same plant has the same bytes: JSON.stringify leaves out an undefined tag. */
export function plantValue({ name, tag }: Plant): string {
  return binary(JSON.stringify({ name, tag }))
}

/** @throws Error if the value is not a plant. */
export function readPlant({ key, value }: Entry): { name: string; tag: string | undefined } {
  try {
    // null alone throws here; the members of any other value are checked below.
    const { name, tag } = JSON.parse(utf8Of(value)) as Readonly<Record<keyof Plant, unknown>>
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
  return txnRequest({
    [TXN.compare]: puts.map(({ key }) => compareRevision(key, RESULT.equal)),
    [TXN.success]: puts.map(({ key, plant }) => ({
      [OPERATION.put]: { [PUT.key]: key, [PUT.value]: plantValue(plant) },
    })),
  })
}

/** Lets etcd compare the values. A transaction without a range would not be linearizable. */
export function compareRequest(key: string, plant: Plant): EtcdRequest {
  return txnRequest({
    [TXN.compare]: {
      [COMPARE.result]: RESULT.equal,
      [COMPARE.target]: TARGET.value,
      [COMPARE.key]: key,
      [COMPARE.value]: plantValue(plant),
    },
    [TXN.success]: countOf(key),
    [TXN.failure]: countOf(key),
  })
}

/**
 * Needs a majority and the rights to read and to write, and changes nothing: no create revision is
 * below 0, and etcd checks the rights of both branches. A full cluster refuses a put here, but not
 * a delete.
 */
export function probeRequest(key: string): EtcdRequest {
  return txnRequest({
    [TXN.compare]: compareRevision(key, RESULT.less),
    [TXN.success]: { [OPERATION.delete]: { [DELETE.key]: key } },
    [TXN.failure]: countOf(key),
  })
}

export function keyRequest(key: string): EtcdRequest {
  return { path: RANGE_PATH, message: encode({ [RANGE.key]: key }) }
}

/** Without "serializable" a range is linearizable: it has all that was acknowledged before. */
export function rangeRequest(read: Read, keysOnly: boolean): EtcdRequest {
  return { path: RANGE_PATH, message: encode(rangeOf(read, keysOnly)) }
}

/** Reads them all at one revision. It is linearizable, as a range is. */
export function readsRequest(reads: readonly Read[]): EtcdRequest {
  const ranges = reads.map((read) => ({ [OPERATION.range]: rangeOf(read, false) }))
  return txnRequest({ [TXN.success]: ranges })
}

export function loginRequest({ name, password }: EtcdUser): EtcdRequest {
  const message = { [LOGIN.name]: binary(name), [LOGIN.password]: binary(password) }
  return { path: LOGIN_PATH, message: encode(message) }
}

/** @throws Error if the bytes are not etcd's. */
export function readPage(bytes: Buffer): Page {
  return pageOf(new Message(bytes))
}

/** The pages of `count` reads, in their order. @throws Error if the bytes are not etcd's. */
export function readPages(bytes: Buffer, count: number): readonly Page[] {
  const responses = new Message(bytes).messages(TXN_ANSWER.responses)
  const pages = responses.flatMap((each) => each.messages(OPERATION.range)).map(pageOf)
  if (pages.length === count) return pages
  throw new Error("the answer is not etcd's: it has not one page for each read")
}

function pageOf(answer: Message): Page {
  const entries = answer.messages(RANGE_ANSWER.entries).map((entry) => ({
    key: entry.text(ENTRY.key),
    value: entry.text(ENTRY.value),
    createRevision: entry.integer(ENTRY.createRevision),
  }))
  const more = answer.integer(RANGE_ANSWER.more) === TRUE
  const count = answer.integer(RANGE_ANSWER.count)
  return { entries, more, count, revision: revisionOf(answer), bytes: answer.length }
}

/**
 * Whether the comparisons of a transaction held, and what the branch that ran counted.
 * @throws Error if the bytes are not etcd's.
 */
export function readOutcome(bytes: Buffer) {
  const answer = new Message(bytes)
  revisionOf(answer)
  const [response] = answer.messages(TXN_ANSWER.responses)
  const [range] = response?.messages(OPERATION.range) ?? []
  const succeeded = answer.integer(TXN_ANSWER.succeeded) === TRUE
  return { succeeded, count: range?.integer(RANGE_ANSWER.count) ?? 0 }
}

/** @throws Error if the bytes are no message. */
export function readToken(bytes: Buffer): string {
  return new Message(bytes).text(LOGIN_ANSWER.token)
}

/** Every answer has a revision. A message without one would look like an empty range. */
function revisionOf(answer: Message): number {
  const [header] = answer.messages(HEADER)
  const revision = header?.integer(HEADER_REVISION) ?? 0
  if (revision > 0) return revision
  throw new Error("the answer is not etcd's: it has no revision")
}

function txnRequest(message: Fields): EtcdRequest {
  return { path: TXN_PATH, message: encode(message) }
}

function rangeOf({ range, limit }: Read, keysOnly: boolean): Fields {
  return {
    [RANGE.key]: range.first,
    [RANGE.end]: range.end,
    [RANGE.limit]: limit,
    [RANGE.keysOnly]: Number(keysOnly),
  }
}

/** Compares with 0, the create revision of a key that does not exist. */
function compareRevision(key: string, result: number): Fields {
  return {
    [COMPARE.result]: result,
    [COMPARE.target]: TARGET.createRevision,
    [COMPARE.key]: key,
    [COMPARE.createRevision]: 0,
  }
}

function countOf(key: string): Fields {
  return { [OPERATION.range]: { [RANGE.key]: key, [RANGE.countOnly]: TRUE } }
}

function ownerPrefix(prefix: string, owner: string): string {
  return prefix + Buffer.from(owner).toString('base64url')
}

function utf8Of(bytes: string): string {
  return Buffer.from(bytes, 'latin1').toString()
}
