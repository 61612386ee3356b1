/* The interface between HTTP and a store. */

import type { NewPlant, Plant } from './plant.ts'

/**
 * `stored`: now, or before with the same content. `conflict`: the id has other content.
 * `overQuota`: with it the owner would have more data than one owner may have.
 */
export type Created = 'stored' | 'conflict' | 'overQuota'

export interface PlantRange {
  /** Only plants with a greater id. `id - 1n` is allowed for any id. */
  readonly after: bigint | undefined
  /** At most this many plants; undefined means all. */
  readonly limit: number | undefined
}

/** Some of one owner's plants, ascending by id. */
export interface PlantChunk {
  /** A JSON array of plants, each with name and tag alone. With several its length is bounded. */
  readonly json: string
  /** How many plants it has. */
  readonly count: number
  /** The list goes on after this id; undefined if nothing follows in the store. */
  readonly next: bigint | undefined
}

/**
 * One owner's plants, chunk by chunk: at least one, and any of them may be empty. Each chunk has
 * what is durable when it is read. Its reader may stop at any time.
 */
export type PlantList = Iterator<PlantChunk, undefined> | AsyncIterator<PlantChunk, undefined>

/**
 * The storage of plants: all that HTTP knows of a storage, and all that a storage knows of the
 * service. A plant is durable before `create` resolves, and before a list shows it. `owner` is any
 * text that UTF-8 can encode.
 */
export interface PlantStore {
  /** True if other processes add plants too: then no list may be cached. */
  readonly isShared: boolean
  /**
   * Stores a plant under (owner, id).
   * @throws StoreUnavailable if it is not certain that the plant is stored. Repeating is safe.
   * @throws StoreFull if there is no room now, PlantTooLarge if there can never be.
   */
  create(owner: string, plant: NewPlant): Promise<Created>
  /** @throws StoreUnavailable if plants cannot be read, now or with a later chunk. */
  list(owner: string, range: PlantRange): PlantList
  /** Why plants cannot be stored now, in a few words; undefined if they can. */
  unavailableReason(): string | undefined
  /** Answers the creates that wait, makes everything durable and closes the storage. */
  close(): Promise<void>
}

/** The storage cannot confirm a create, or cannot read. */
export class StoreUnavailable extends Error {}
StoreUnavailable.prototype.name = 'StoreUnavailable'

/** The plant is larger than the storage accepts. */
export class PlantTooLarge extends Error {
  override readonly message = 'the plant is too large for the store'
}

/** The longest plant as JSON text: a list must be able to send each. */
export const MAX_PLANT_BYTES = 16 * 1024 * 1024
/** JSON text has at most this many bytes for a character (`\u0001`), and for the rest. */
const [CHAR_BYTES, FRAME_BYTES] = [6, 32]

/** To be called by every store before it creates a plant. @throws PlantTooLarge */
export function checkSize({ name, tag }: Plant): void {
  const mostBytes = CHAR_BYTES * (name.length + (tag?.length ?? 0)) + FRAME_BYTES
  if (mostBytes <= MAX_PLANT_BYTES) return
  if (Buffer.byteLength(JSON.stringify({ name, tag })) > MAX_PLANT_BYTES) throw new PlantTooLarge()
}

/** The storage has no room for another plant. */
export class StoreFull extends Error {
  override readonly message = 'the store is full'
}

/** What a start found. */
export interface Recovered {
  readonly plants: number
  /** Batches that were replayed from the journals. */
  readonly batches: number
  /** Bytes of a torn last line, which were put aside. */
  readonly tornBytes: number
  readonly ms: number
}
