import type { NewPlant, Plant } from '../../plants/plant.ts'

/*
 * How plants lie in etcd, and what its messages look like. A key is: prefix, base64url of the owner's UTF-8, "/", and the id
 * as 16 hex digits with its sign bit flipped, so that keys ascend as ids do. base64url knows no "/", so no owner's keys begin
 * as another's do. A value is a plant as JSON. In messages keys and values are base64 and every int64 is a string; members
 * that are false, zero or empty are left out, and unknown ones ignored.
 */

/** From `first` to `end`, which is excluded. */
export interface KeyRange {
  readonly first: Buffer
  readonly end: Buffer
}

export interface Entry {
  /** base64, as is `value`, which is empty where only keys were asked for. */
  readonly key: string
  readonly value: string
  readonly createRevision: number
}

export interface Page {
  readonly entries: readonly Entry[]
  /** Whether the range holds more behind them. */
  readonly more: boolean
  /** Of the whole range. */
  readonly count: number
  /** Of the store when it was read. Revisions, like counts, stay far below 2^53. */
  readonly revision: number
}

const SIGN = 1n << 63n
export const ID_DIGITS = 16

export function plantKey(prefix: string, owner: string, id: bigint): Buffer {
  return Buffer.from(`${ownerPrefix(prefix, owner)}/${(BigInt.asUintN(64, id) ^ SIGN).toString(16).padStart(ID_DIGITS, '0')}`)
}

/** All keys of an owner's plants behind `after`. "0" follows "/". */
export function plantRange(prefix: string, owner: string, after: bigint | undefined): KeyRange {
  const begin = ownerPrefix(prefix, owner)
  return { first: after === undefined ? Buffer.from(`${begin}/`) : keyBehind(plantKey(prefix, owner, after)), end: Buffer.from(`${begin}0`) }
}

function ownerPrefix(prefix: string, owner: string): string {
  return prefix + Buffer.from(owner).toString('base64url')
}

/** The first key behind a key. */
export function keyBehind(key: Buffer): Buffer {
  return Buffer.concat([key, Buffer.alloc(1)])
}

/** @throws Error for a key that is no plant's. */
export function idOf(key: string): bigint {
  const digits = /\/([0-9a-f]{16})$/.exec(Buffer.from(key, 'base64').toString('latin1'))?.[1]
  if (digits === undefined) throw new Error(`etcd holds a key that is no plant's: ${key.slice(0, 100)}`)
  return BigInt.asIntN(64, BigInt(`0x${digits}`) ^ SIGN)
}

/** Puts the plant unless its key exists; then reads what is there. */
export function createMessage(key: Buffer, { name, tag }: NewPlant): unknown {
  const k = key.toString('base64')
  const value = Buffer.from(JSON.stringify(tag === undefined ? { name } : { name, tag })).toString('base64')
  return {
    compare: [{ key: k, target: 'CREATE', result: 'EQUAL', create_revision: '0' }],
    success: [{ request_put: { key: k, value } }],
    failure: [{ request_range: { key: k } }],
  }
}

export function keyMessage(key: Buffer): unknown {
  return { key: key.toString('base64') }
}

/** Without "serializable" a range is linearizable: it shows whatever was acknowledged before it was asked for. */
export function rangeMessage({ first, end }: KeyRange, limit: number, keysOnly: boolean): unknown {
  const range = { key: first.toString('base64'), range_end: end.toString('base64'), limit: String(limit) }
  return keysOnly ? { ...range, keys_only: true } : range
}

// etcd's own answers, by its rpc.proto: that is why the casts below hold. All members are optional, as the gateway leaves out what is empty.
interface RangeAnswer {
  readonly header?: { readonly revision?: string }
  readonly kvs?: readonly { readonly key?: string; readonly value?: string; readonly create_revision?: string }[]
  readonly more?: boolean
  readonly count?: string
}

interface TxnAnswer {
  readonly succeeded?: boolean
  readonly responses?: readonly { readonly response_range?: RangeAnswer }[]
}

/** @throws Error for what is no answer of etcd's: each has a revision, and without it would look like an empty range. */
export function readPage(body: unknown): Page {
  const { header, more = false, count = '0', ...range } = body as RangeAnswer
  const revision = Number(header?.revision)
  if (!(revision > 0)) throw new Error('the answer is not etcd\'s: it has no revision')
  return { entries: entriesOf(range), more, count: Number(count), revision }
}

function entriesOf({ kvs = [] }: RangeAnswer): readonly Entry[] {
  return kvs.map(({ key = '', value = '', create_revision: created }) => ({ key, value, createRevision: Number(created) }))
}

/** Undefined where the plant was put; else what its key held. */
export function readRival(body: unknown): Plant | undefined {
  const { succeeded = false, responses } = body as TxnAnswer
  if (succeeded) return undefined
  const [rival] = entriesOf(responses?.[0]?.response_range ?? {})
  if (!rival) throw new Error('etcd neither put a plant nor says what is there')
  return readPlant(rival)
}

/** @throws Error for a value that is no plant. */
export function readPlant({ key, value }: Entry): Plant {
  let plant: unknown
  try {
    plant = JSON.parse(Buffer.from(value, 'base64').toString('utf8'))
  } catch {
    plant = undefined
  }
  if (!isPlant(plant)) throw new Error(`etcd holds a value that is no plant, under the key ${key.slice(0, 100)}`)
  return plant.tag === undefined ? { name: plant.name } : { name: plant.name, tag: plant.tag }
}

function isPlant(value: unknown): value is Plant {
  if (typeof value !== 'object' || value === null || !('name' in value) || typeof value.name !== 'string') return false
  return !('tag' in value) || typeof value.tag === 'string'
}
