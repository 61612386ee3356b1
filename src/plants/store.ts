import type { NewPlant } from './plant.ts'

/**
 * What became of a create: the plant is stored (now, or before with the same content), or its id is
 * taken by another.
 */
export type Created = 'stored' | 'conflict'

export interface PlantRange {
  /** Only plants with a greater id. */
  readonly after: bigint | undefined
  /** At most so many plants; undefined means all. */
  readonly limit: number | undefined
}

/** One owner's plants as of one moment: what is created while the list is read is not in it. */
export interface PlantList {
  /** The id of the last plant of the list where `limit` cut it short. */
  readonly cutAt: bigint | undefined
  /**
   * The next chunk, bounded in bytes, or undefined after the last: a JSON array of plants in UTF-8,
   * each with name and tag alone. The bytes of one that is not empty are the caller's.
   */
  next(): Promise<Buffer | undefined> | Buffer | undefined
  /** True once `next` has no more chunks to return. */
  readonly ended: boolean
  /** Bytes that the list keeps in memory between two chunks; undefined for none. */
  readonly heldBytes?: number
  /** Must be called when the reader leaves before the end. */
  close(): void
}

/**
 * Where plants are kept: all that HTTP knows of a storage, and all that a storage knows of the
 * service. A create that resolves is durable; a list shows nothing that is not. `owner` is any text
 * that UTF-8 can carry.
 */
export interface PlantStore {
  /**
   * Keeps a plant under (owner, id).
   * @throws StoreUnavailable when it is not certain that the plant is kept; repeating the create is
   * safe.
   * @throws StoreFull when there is no room for it, PlantTooLarge when there never would be.
   */
  create(owner: string, plant: NewPlant): Promise<Created>
  /** @throws StoreUnavailable when plants cannot be read. */
  list(owner: string, range: PlantRange): Promise<PlantList> | PlantList
  /** Why creates cannot be kept at the moment, in a few words; undefined while they can. */
  unavailableReason(): string | undefined
  /**
   * Makes everything durable and lets go of the storage; creates that still wait are answered
   * first.
   */
  close(): Promise<void>
}

/** The storage cannot say for certain that a create was kept. */
export class StoreUnavailable extends Error {}

/** The plant is larger than the storage keeps any. */
export class PlantTooLarge extends Error {
  override readonly message = 'the plant is too large for the store'
}

/** The storage has no room for another plant. */
export class StoreFull extends Error {
  override readonly message = 'the store is full'
}

/** What a start found. */
export interface Recovered {
  readonly plants: number
  /** Groups that were replayed from the journals. */
  readonly groups: number
  /** Bytes of a torn last line, which were cut off. */
  readonly tornBytes: number
  readonly ms: number
}
