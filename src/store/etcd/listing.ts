import type { Plant } from '../../plants/plant.ts'
import type { PlantList } from '../../plants/store.ts'
import type { EtcdClient } from './client.ts'
import { AnswerTooLong } from './gateway.ts'
import {
  type Entry,
  ID_DIGITS,
  idOf,
  keyBehind,
  type KeyRange,
  type Page,
  rangeMessage,
  readPage,
  readPlant,
} from './wire.ts'

export const RANGE_PATH = '/v3/kv/range'
/** Nothing is known of the sizes yet; the usual limits are met by one page. */
const FIRST_ENTRIES = 32
/**
 * As long as a page should become, by what the ones before it held; and what is taken where the
 * plants are larger than those.
 */
const PAGE_BYTES = 1024 * 1024
const PAGE_MAX_BYTES = 4 * 1024 * 1024
const GROWTH = 4
/** A page that comes out too long is asked for again with so many times fewer entries. */
const SHRINKING = 8
/** What one tick reads, in characters of base64: about 1 ms. A longer plant is read whole. */
const CHUNK_CHARS = 128 * 1024
/** An entry itself, without its key and value, takes as long and as much memory as so many. */
const ENTRY_CHARS = 256

export const EMPTY: PlantList = {
  cutAt: undefined,
  next: () => undefined,
  ended: true,
  close: () => {},
}

/** Reads a range page by page, each from the last key on. */
class Pages {
  readonly #client: EtcdClient
  readonly #owner: string
  /** What is not read yet. */
  range: KeyRange
  /** How many entries the next page may have. */
  entries = FIRST_ENTRIES

  constructor(client: EtcdClient, owner: string, range: KeyRange) {
    this.#client = client
    this.#owner = owner
    this.range = range
  }

  async next(max: number, keysOnly = false): Promise<Page> {
    for (;;) {
      const asked = Math.min(max, this.entries)
      try {
        const { body, bytes } = await this.#client.call({
          path: RANGE_PATH,
          message: () => rangeMessage(this.range, asked, keysOnly),
          owner: this.#owner,
          maxBytes: asked === 1 ? Infinity : PAGE_MAX_BYTES,
        })
        const page = readPage(body)
        // A key of another length is that of a deployment whose prefix lies in this range, and of a
        // plant of somebody else.
        const keyBytes = this.range.end.length + ID_DIGITS
        if (page.entries.some(({ key }) => Buffer.byteLength(key, 'base64') !== keyBytes))
          throw new Error("among an owner's plants etcd holds a key that is none of them")
        const last = page.entries.at(-1)
        if (last) {
          this.range = { first: keyBehind(Buffer.from(last.key, 'base64')), end: this.range.end }
          this.entries = Math.max(
            1,
            Math.min(this.entries * GROWTH, Math.floor((PAGE_BYTES / bytes) * page.entries.length)),
          )
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
 * A list as of one moment, which is its first page's revision: plants never change, so leaving out
 * what was created later makes later reads the same, and needs no revision that a compaction of
 * etcd's may take away.
 */
class EtcdList implements PlantList {
  readonly cutAt: bigint | undefined
  readonly #pages: Pages
  readonly #fail: Fail
  readonly #revision: number
  /** Plants that the list has yet to give. */
  #left: number
  /** Of the pages that came, what is not read yet; the next one is last. */
  #entries: Entry[]
  /** Characters of these entries. */
  #held: number
  #more: boolean

  constructor(pages: Pages, first: Page, left: number, cutAt: bigint | undefined, fail: Fail) {
    this.#pages = pages
    this.#fail = fail
    this.#revision = first.revision
    this.#entries = first.entries.toReversed()
    this.#held = charsOf(first.entries)
    this.#more = first.more
    this.#left = left
    this.cutAt = cutAt
  }

  get ended(): boolean {
    return this.#left === 0 || (this.#entries.length === 0 && !this.#more)
  }

  get heldBytes(): number {
    return this.#held
  }

  next(): Promise<Buffer | undefined> | Buffer | undefined {
    if (this.#left === 0) {
      this.close()
      return undefined
    }
    if (this.#entries.length > 0) return this.#chunk()
    return this.#more ? this.#nextPage() : undefined
  }

  close(): void {
    this.#left = 0
    this.#entries = []
    this.#held = 0
  }

  #chunk(): Buffer {
    const plants: Plant[] = []
    for (let chars = 0; chars < CHUNK_CHARS && this.#left > 0; ) {
      const entry = this.#entries.pop()
      if (!entry) break
      const entryChars = charsOf([entry])
      chars += entryChars
      this.#held -= entryChars
      if (entry.createRevision > this.#revision) continue
      plants.push(readPlant(entry))
      this.#left -= 1
    }
    return Buffer.from(JSON.stringify(plants))
  }

  async #nextPage(): Promise<Buffer | undefined> {
    const { entries, more } = await this.#pages.next(Infinity).catch(this.#fail)
    // Closed meanwhile.
    if (this.#left === 0) return undefined
    this.#entries = entries.toReversed()
    this.#held = charsOf(entries)
    this.#more = more
    return this.next()
  }
}

function charsOf(entries: readonly Entry[]): number {
  return entries.reduce((sum, { key, value }) => sum + ENTRY_CHARS + key.length + value.length, 0)
}

export type Fail = (error: unknown) => never

/**
 * The list of the plants in a range. `fail` is told of what goes wrong once the list is there.
 * @throws whatever the client throws.
 */
export async function openList(
  client: EtcdClient,
  owner: string,
  range: KeyRange,
  limit: number,
  fail: Fail,
): Promise<PlantList> {
  const pages = new Pages(client, owner, range)
  const first = await pages.next(limit)
  if (first.count <= limit) return new EtcdList(pages, first, first.count, undefined, fail)
  const entries = [...first.entries]
  // What the list says first of all is where it is cut: by the entry at which it is full.
  let { more } = first
  if (entries.length < limit && limit - entries.length <= pages.entries) {
    const second = await pages.next(limit - entries.length)
    entries.push(...second.entries)
    more = second.more
  }
  const known = entries.filter(({ createRevision }) => createRevision <= first.revision)
  const place = limit - known.length
  const keys = new Pages(client, owner, pages.range)
  const last = place > 0 ? await findLast(keys, first.revision, place) : known.at(-1)
  const cutAt = last && idOf(last.key)
  return new EtcdList(pages, { ...first, entries: known, more }, limit, cutAt, fail)
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
