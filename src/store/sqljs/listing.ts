import { setImmediate as nextTurn } from 'node:timers/promises'
import type { PlantList, PlantRange } from '../../plants/store.ts'
import { ALL_IDS, type PlantDatabase } from './database.ts'

/** A stretch ends behind so many plants or so many bytes, so that a list of any length takes constant memory. */
const STRETCH_PLANTS = 1000
const STRETCH_BYTES = 96 * 1024
/** Plants counted in one turn of the event loop. */
const COUNT_PLANTS = 20_000
const NONE: ReadonlySet<bigint> = new Set()

/**
 * The lists that are being read in several stretches. A limited one has said in its first line where it is cut, so what
 * its owner creates behind its back, in the part that was counted already, must be kept out of it.
 */
export class Listings {
  readonly #open = new Set<LongList>()

  add(list: LongList): void {
    this.#open.add(list)
  }

  delete(list: LongList): void {
    this.#open.delete(list)
  }

  created(owner: string, id: string): void {
    for (const list of this.#open) list.created(owner, id)
  }
}

export function listPlants(database: PlantDatabase, listings: Listings, owner: string, range: PlantRange): PlantList | Promise<PlantList> {
  const { after, limit } = range
  if (limit === 0 || after === ALL_IDS.to) return shortList(undefined, undefined)
  const from = after === undefined ? ALL_IDS.from : after + 1n
  const { json, isFull, cutAt } = database.page(owner, from, ALL_IDS.to, Math.min(limit ?? STRETCH_PLANTS, STRETCH_PLANTS), STRETCH_BYTES, NONE)
  if (cutAt === undefined || (isFull && limit !== undefined && limit <= STRETCH_PLANTS)) return shortList(json, cutAt)
  const list = new LongList(database, listings, owner, from)
  if (limit === undefined) return list
  return list.countTo(limit).catch((error: unknown) => {
    list.close()
    throw error
  })
}

/** A list that one stretch holds. */
function shortList(json: Buffer | undefined, cutAt: bigint | undefined): PlantList {
  let rest = json
  return {
    cutAt,
    next: () => {
      const stretch = rest
      rest = undefined
      return stretch
    },
    close: () => {},
  }
}

class LongList implements PlantList {
  readonly #database: PlantDatabase
  readonly #listings: Listings
  readonly #owner: string
  readonly #created = new Set<bigint>()
  #from: bigint | undefined
  /** Up to this id the plants are counted; nothing is, in a list without limit. */
  #counted: bigint | undefined
  #last = ALL_IDS.to
  cutAt: bigint | undefined

  constructor(database: PlantDatabase, listings: Listings, owner: string, from: bigint) {
    this.#database = database
    this.#listings = listings
    this.#owner = owner
    this.#from = from
  }

  /** Finds out where `limit` cuts the list, in several turns of the event loop. */
  async countTo(limit: number): Promise<this> {
    this.#listings.add(this)
    let at = this.#from
    for (let left = limit - 1; at !== undefined && left > 0; ) {
      const step = Math.min(left, COUNT_PLANTS)
      at = this.#database.idAt(this.#owner, at, step)
      this.#counted = at ?? ALL_IDS.to
      left -= step
      if (left > 0) await nextTurn()
    }
    const last = at
    if (last !== undefined && last < ALL_IDS.to && this.#database.idAt(this.#owner, last + 1n, 0) !== undefined) {
      this.#last = last
      this.cutAt = last
    } else {
      this.#counted = ALL_IDS.to
    }
    return this
  }

  created(owner: string, id: string): void {
    if (this.#counted !== undefined && owner === this.#owner && BigInt(id) <= this.#counted) this.#created.add(BigInt(id))
  }

  next(): Buffer | undefined {
    if (this.#from === undefined) return undefined
    const { json, cutAt } = this.#database.page(this.#owner, this.#from, this.#last, STRETCH_PLANTS, STRETCH_BYTES, this.#created)
    this.#from = cutAt === undefined ? undefined : cutAt + 1n
    if (this.#from === undefined) this.close()
    return json
  }

  close(): void {
    this.#listings.delete(this)
  }
}
