import type { Plant } from '../../plants/plant.ts'

/*
 * How plants lie in etcd, and what its messages look like. A key is: prefix, base64url of the
 * owner's UTF-8, "/", and the id as 16 hex digits with its sign bit flipped, so that keys ascend as
 * ids do. base64url knows no "/", so no owner's keys begin as another's do. A value is a plant as
 * JSON. In messages keys and values are base64 and every int64 is a string; members that are false,
 * zero or empty are left out, and unknown ones ignored.
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
  return Buffer.from(
    `${ownerPrefix(prefix, owner)}/${(BigInt.asUintN(64, id) ^ SIGN).toString(16).padStart(ID_DIGITS, '0')}`,
  )
}

/** All keys of an owner's plants behind `after`. "0" follows "/". */
export function plantRange(prefix: string, owner: string, after: bigint | undefined): KeyRange {
  const begin = ownerPrefix(prefix, owner)
  return {
    first:
      after === undefined ? Buffer.from(`${begin}/`) : keyBehind(plantKey(prefix, owner, after)),
    end: Buffer.from(`${begin}0`),
  }
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
  if (digits === undefined) throw new Error("etcd holds a key that is no plant's")
  return BigInt.asIntN(64, BigInt(`0x${digits}`) ^ SIGN)
}

/** A plant as it lies in etcd, as base64. Like plants are like bytes: JSON.stringify is exact. */
export function plantValue({ name, tag }: Plant): string {
  const text = JSON.stringify(tag === undefined ? { name } : { name, tag })
  return Buffer.from(text).toString('base64')
}

/** Puts the plant unless its key exists. It does not read what is there, which may be long. */
export function createMessage(key: Buffer, plant: Plant): unknown {
  const k = key.toString('base64')
  return {
    compare: [{ key: k, target: 'CREATE', result: 'EQUAL', create_revision: '0' }],
    success: [{ request_put: { key: k, value: plantValue(plant) } }],
  }
}

/** Has etcd compare. A transaction without any range would not be linearizable. */
export function compareMessage(key: Buffer, plant: Plant): unknown {
  const k = key.toString('base64')
  const count = [{ request_range: { key: k, count_only: true } }]
  return {
    compare: [{ key: k, target: 'VALUE', result: 'EQUAL', value: plantValue(plant) }],
    success: count,
    failure: count,
  }
}

/**
 * Needs a majority and the rights to read and to write, and changes nothing: no create revision is
 * below 0, and etcd checks the rights of both branches. A full cluster takes a delete, but no put.
 */
export function probeMessage(key: Buffer): unknown {
  const k = key.toString('base64')
  return {
    compare: [{ key: k, target: 'CREATE', result: 'LESS', create_revision: '0' }],
    success: [{ request_delete_range: { key: k } }],
    failure: [{ request_range: { key: k, count_only: true } }],
  }
}

export function keyMessage(key: Buffer): unknown {
  return { key: key.toString('base64') }
}

/**
 * Without "serializable" a range is linearizable: it shows whatever was acknowledged before it was
 * asked for.
 */
export function rangeMessage({ first, end }: KeyRange, limit: number, keysOnly: boolean): unknown {
  const range = {
    key: first.toString('base64'),
    range_end: end.toString('base64'),
    limit: String(limit),
  }
  return keysOnly ? { ...range, keys_only: true } : range
}

// etcd's own answers, by its rpc.proto: that is why the casts below hold. All members are optional,
// as the gateway leaves out what is empty.
interface RangeAnswer {
  readonly header?: { readonly revision?: string }
  readonly kvs?: readonly {
    readonly key?: string
    readonly value?: string
    readonly create_revision?: string
  }[]
  readonly more?: boolean
  readonly count?: string
}

interface TxnAnswer {
  readonly header?: RangeAnswer['header']
  readonly succeeded?: boolean
  readonly responses?: readonly { readonly response_range?: RangeAnswer }[]
}

/**
 * @throws Error for what is no answer of etcd's: each has a revision, and without it would look
 * like an empty range.
 */
export function readPage(body: unknown): Page {
  const { header, more = false, count = '0', kvs = [] } = (body ?? {}) as RangeAnswer
  const revision = revisionOf(header)
  const entries = kvs.map(({ key = '', value = '', create_revision: created }) => ({
    key,
    value,
    createRevision: Number(created),
  }))
  return { entries, more, count: Number(count), revision }
}

function revisionOf(header: RangeAnswer['header']): number {
  const revision = Number(header?.revision)
  if (!(revision > 0)) throw new Error("the answer is not etcd's: it has no revision")
  return revision
}

export interface Outcome {
  /** Whether the comparison held. */
  readonly succeeded: boolean
  /** What the branch that was taken counted. */
  readonly count: number
}

/** @throws Error for what is no answer of etcd's. */
export function readOutcome(body: unknown): Outcome {
  const { succeeded = false, header, responses } = (body ?? {}) as TxnAnswer
  revisionOf(header)
  return { succeeded, count: Number(responses?.[0]?.response_range?.count ?? 0) }
}

/** @throws Error for a value that is no plant. */
export function readPlant({ key, value }: Entry): Plant {
  let plant: unknown
  try {
    plant = JSON.parse(Buffer.from(value, 'base64').toString('utf8'))
  } catch {
    plant = undefined
  }
  // The rest of the key names the owner, whom no line of the log names.
  if (!isPlant(plant)) {
    throw new Error(`etcd holds a value that is no plant, under the id ${idOf(key)}`)
  }
  return plant.tag === undefined ? { name: plant.name } : { name: plant.name, tag: plant.tag }
}

function isPlant(value: unknown): value is Plant {
  if (
    typeof value !== 'object' ||
    value === null ||
    !('name' in value) ||
    typeof value.name !== 'string'
  )
    return false
  return !('tag' in value) || typeof value.tag === 'string'
}
