import type { Plant } from '../../plants/plant.ts'
import { type PlantList, StoreUnavailable } from '../../plants/store.ts'
import { AnswerTooLong, type EtcdClient, reasonOf } from './client.ts'
import { type Entry, ID_DIGITS, idOf, keyBehind, type KeyRange, type Page, rangeMessage, readPage, readPlant } from './wire.ts'

export const RANGE_PATH = '/v3/kv/range'
/** Nothing is known of the sizes yet; the usual limits are met by one page. */
const FIRST_ENTRIES = 32
/** As long as a page should become, by what the ones before it held; and what is taken where the plants are larger than those. */
const PAGE_BYTES = 1024 * 1024
const PAGE_MAX_BYTES = 4 * 1024 * 1024
const GROWTH = 4
/** A page that comes out too long is asked for again with so many times fewer entries. */
const SHRINKING = 8
/** base64 of so many characters is decoded in one turn of the event loop. */
const STRETCH_CHARS = 128 * 1024

export const EMPTY: PlantList = { cutAt: undefined, next: () => undefined, ended: true, close: () => {} }

/** Reads a range page by page, each from the last key on. */
class Pages {
  readonly #client: EtcdClient
  /** What is not read yet. */
  range: KeyRange
  /** How many entries the next page may have. */
  entries = FIRST_ENTRIES

  constructor(client: EtcdClient, range: KeyRange) {
    this.#client = client
    this.range = range
  }

  async next(max: number, keysOnly = false): Promise<Page> {
    for (;;) {
      const asked = Math.min(max, this.entries)
      try {
        const { body, bytes } = await this.#client.call(RANGE_PATH, rangeMessage(this.range, asked, keysOnly), { maxBytes: asked === 1 ? Infinity : PAGE_MAX_BYTES })
        const page = readPage(body)
        // A key of another length is that of a deployment whose prefix lies in this range, and of a plant of somebody else.
        const keyBytes = this.range.end.length + ID_DIGITS
        if (page.entries.some(({ key }) => Buffer.byteLength(key, 'base64') !== keyBytes)) throw new Error('among an owner\'s plants etcd holds a key that is none of them')
        const last = page.entries.at(-1)
        if (last) {
          this.range = { first: keyBehind(Buffer.from(last.key, 'base64')), end: this.range.end }
          this.entries = Math.max(1, Math.min(this.entries * GROWTH, Math.floor((PAGE_BYTES / bytes) * page.entries.length)))
        }
        return page
      } catch (error) {
        if (!(error instanceof AnswerTooLong)) throw error
        this.entries = Math.ceil(asked / SHRINKING)
      }
    }
  }
}

/**
 * A list as of one moment, which is its first page's revision: plants never change, so leaving out what was created later
 * makes later reads the same, and needs no revision that a compaction of etcd's may take away.
 */
class EtcdList implements PlantList {
  readonly cutAt: bigint | undefined
  readonly #pages: Pages
  readonly #revision: number
  /** Plants that the list has yet to give. */
  #left: number
  #entries: readonly Entry[]
  #at = 0
  #more: boolean

  constructor(pages: Pages, { entries, more, revision }: Page, left: number, cutAt: bigint | undefined) {
    this.#pages = pages
    this.#revision = revision
    this.#entries = entries
    this.#more = more
    this.#left = left
    this.cutAt = cutAt
  }

  get ended(): boolean {
    return this.#left === 0 || (this.#at >= this.#entries.length && !this.#more)
  }

  next(): Promise<Buffer | undefined> | Buffer | undefined {
    if (this.#left === 0) return undefined
    if (this.#at < this.#entries.length) return this.#stretch()
    return this.#more ? this.#turn() : undefined
  }

  close(): void {
    this.#left = 0
    this.#entries = []
  }

  #stretch(): Buffer {
    const plants: Plant[] = []
    for (let chars = 0; chars < STRETCH_CHARS && this.#left > 0; this.#at++) {
      const entry = this.#entries[this.#at]
      if (!entry) break
      if (entry.createRevision > this.#revision) continue
      plants.push(readPlant(entry))
      chars += entry.value.length
      this.#left -= 1
    }
    return Buffer.from(JSON.stringify(plants))
  }

  async #turn(): Promise<Buffer | undefined> {
    const { entries, more } = await this.#pages.next(Infinity).catch((error: unknown) => {
      throw new StoreUnavailable(reasonOf(error), { cause: error })
    })
    this.#entries = entries
    this.#at = 0
    this.#more = more
    return this.next()
  }
}

/** The list of the plants in a range. @throws whatever the client throws. */
export async function openList(client: EtcdClient, range: KeyRange, limit = Infinity): Promise<PlantList> {
  const pages = new Pages(client, range)
  const first = await pages.next(limit)
  if (first.count <= limit) return new EtcdList(pages, first, first.count, undefined)
  const entries = [...first.entries]
  // What the list says first of all is where it is cut: by the entry at which it is full.
  let { more } = first
  if (entries.length < limit && limit - entries.length <= pages.entries) {
    const second = await pages.next(limit - entries.length)
    entries.push(...second.entries)
    more = second.more
  }
  const known = entries.filter(({ createRevision }) => createRevision <= first.revision)
  const last = known.length < limit ? await findLast(new Pages(client, pages.range), first.revision, limit - known.length) : known.at(-1)
  return new EtcdList(pages, { ...first, entries: known, more }, limit, last && idOf(last.key))
}

/** The entry at a place behind those that were read, by the keys alone. */
async function findLast(pages: Pages, revision: number, place: number): Promise<Entry | undefined> {
  for (let left = place; ; ) {
    const { entries, more } = await pages.next(left, true)
    const known = entries.filter(({ createRevision }) => createRevision <= revision)
    left -= known.length
    if (left <= 0 || !more) return known.at(-1)
  }
}
