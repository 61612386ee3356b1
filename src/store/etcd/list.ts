/** Lists of plants, read from etcd page by page. */
import type { PlantChunk } from '../../plants/store.ts'
import { AnswerTooLong } from './grpc.ts'
import * as wire from './wire.ts'

/** The first page serves the usual limits. The size of the plants is not known yet. */
const FIRST_ENTRIES = 32
/** The length that later pages aim at, by the size of the plants in the page before. */
const PAGE_BYTES = 512 * 1024
/** A longer page is read again with fewer entries. */
const PAGE_MAX_BYTES = 4 * 1024 * 1024
const GROWTH = 4
const SHRINKING = 8
/** What one tick reads of keys and values: about 1 ms. A longer plant is read whole. */
const CHUNK_CHARS = 128 * 1024
/** The time and memory that an entry takes besides its key and value, as characters. */
const ENTRY_CHARS = 256

const EMPTY_PAGE: wire.Page = { entries: [], more: false, count: 0, revision: 0, bytes: 0 }

export type Call = (request: () => wire.EtcdRequest) => Promise<Buffer>
/** How a list is read. */
export interface Source {
  /** Reads the first page together with those of other lists, or with `alone`. */
  readonly readFirst: (
    read: wire.Read,
    alone: (call: Call) => Promise<wire.Page>,
  ) => Promise<wire.Page>
  /** For later pages. */
  readonly call: Call
}
/** Throws what the reader of the list is told. */
type Fail = (error: unknown) => never
/** How many plants a list has, and the last one if there are more after it. */
type Extent = { readonly length: number; readonly cutAt?: bigint | undefined }

/** Reads a range page by page, each from the key after the last one. */
class PageReader {
  readonly #call: Call
  /** The part that is not read yet. */
  #range: wire.KeyRange
  /** The most entries that the next page may have. */
  entries = FIRST_ENTRIES

  constructor(call: Call, range: wire.KeyRange) {
    this.#call = call
    this.#range = range
  }

  /** A reader for the part that is not read yet, which reads small pages at first. */
  fork(): PageReader {
    return new PageReader(this.#call, this.#range)
  }

  /** @throws what the call throws; Error if etcd holds something else than plants. */
  async next(max: number, keysOnly = false): Promise<wire.Page> {
    for (;;) {
      const limit = Math.min(max, this.entries)
      try {
        return this.accept(await this.#read(limit, keysOnly))
      } catch (error) {
        if (!(error instanceof AnswerTooLong)) throw error
        this.entries = Math.ceil(limit / SHRINKING)
      }
    }
  }

  /** Goes on after this page. @throws Error if it has something else than plants of the range. */
  accept(page: wire.Page): wire.Page {
    // A key of another length belongs to a deployment whose prefix is inside this range, and so to
    // another owner.
    if (!page.entries.every(({ key }) => wire.isPlantKeyOf(this.#range, key)))
      throw new Error("among an owner's keys etcd holds one that is not a plant's")
    const last = page.entries.at(-1)
    if (last) {
      this.#range = { first: wire.nextKey(last.key), end: this.#range.end }
      const fitting = Math.floor((PAGE_BYTES / page.bytes) * page.entries.length)
      this.entries = Math.max(1, Math.min(this.entries * GROWTH, fitting))
    }
    return page
  }

  async #read(limit: number, keysOnly: boolean): Promise<wire.Page> {
    const maxBytes = limit === 1 ? Infinity : PAGE_MAX_BYTES
    const read = { range: this.#range, limit }
    const request = () => ({ ...wire.rangeRequest(read, keysOnly), maxBytes })
    return wire.readPage(await this.#call(request))
  }
}

/** @throws what the source throws. Once the list has begun, `fail` gets that. */
export async function openList(
  { call, readFirst }: Source,
  range: wire.KeyRange,
  limit: number,
  fail: Fail,
): Promise<EtcdList> {
  const pages = new PageReader(call, range)
  const read = { range, limit: Math.min(limit, FIRST_ENTRIES) }
  // With a reader of its own: `pages` goes on after the first page, whichever way that was read.
  const alone = (callInSlot: Call) => new PageReader(callInSlot, range).next(limit)
  // To etcd a limit of 0 means all.
  const first = limit === 0 ? EMPTY_PAGE : pages.accept(await readFirst(read, alone))
  if (limit === Infinity) return new EtcdList(pages, first, { length: limit }, fail)
  if (first.count <= limit) return new EtcdList(pages, first, { length: first.count }, fail)
  // The response's Link header names the last plant, so that plant must be found first.
  let { entries, more } = first
  const rest = limit - entries.length
  if (rest > 0 && rest <= pages.entries) {
    const second = await pages.next(rest)
    entries = [...entries, ...second.entries]
    more = second.more
  }
  const known = knownAt(first.revision, entries)
  const missing = limit - known.length
  const last = missing > 0 ? await findLast(pages.fork(), first.revision, missing) : known.at(-1)
  const extent = { length: limit, cutAt: last && wire.idOf(last.key) }
  return new EtcdList(pages, { ...first, entries, more }, extent, fail)
}

/** A list, as HTTP reads it. */
export async function* chunksOf(
  open: () => Promise<EtcdList>,
): AsyncGenerator<PlantChunk, undefined> {
  const list = await open()
  let isFirst = true
  for (let json = await list.next(); json !== undefined; json = await list.next()) {
    const { length: count } = JSON.parse(json) as unknown[]
    yield { json, count, cutAt: list.ended ? list.cutAt : list.last }
    isFirst = false
  }
  if (isFirst) yield { json: '[]', count: 0, cutAt: undefined }
  return undefined
}

/** Reads keys alone, up to the entry at this place of the range. */
async function findLast(keys: PageReader, revision: number, place: number) {
  for (let left = place; ; ) {
    const { entries, more } = await keys.next(left, true)
    const known = knownAt(revision, entries)
    left -= known.length
    if (left <= 0 || !more) return known.at(-1)
  }
}

/** The entries that existed at a revision. */
function knownAt(revision: number, entries: readonly wire.Entry[]): wire.Entry[] {
  return entries.filter((entry) => entry.createRevision <= revision)
}

/**
 * A list as of the revision of its first page. Plants never change, so later pages only leave out
 * what was created after it. etcd may compact that revision away meanwhile.
 */
class EtcdList {
  readonly cutAt: bigint | undefined
  /** The id of the last plant that it returned. */
  last: bigint | undefined
  /** Of the entries that are read but not returned. */
  heldBytes = 0
  readonly #pages: PageReader
  readonly #fail: Fail
  readonly #revision: number
  /** Plants that the list has not returned yet; 0 once it is closed. */
  #left: number
  /** Entries that are read but not returned, the next one last. */
  #entries: wire.Entry[] = []
  #more = false

  constructor(pages: PageReader, first: wire.Page, { length, cutAt }: Extent, fail: Fail) {
    this.#pages = pages
    this.#fail = fail
    this.#revision = first.revision
    this.#left = length
    this.cutAt = cutAt
    this.#hold(first)
  }

  get ended(): boolean {
    return this.#left === 0 || (this.#entries.length === 0 && !this.#more)
  }

  async next(): Promise<string | undefined> {
    while (!this.ended && this.#entries.length === 0) {
      const page = await this.#pages.next(Infinity).catch(this.#fail)
      // The list may have been closed meanwhile.
      if (this.#left > 0) this.#hold(page)
    }
    if (!this.ended) return this.#chunk()
    this.close()
    return undefined
  }

  close(): void {
    this.#left = 0
    this.#entries = []
    this.heldBytes = 0
  }

  #hold({ entries, more }: wire.Page): void {
    const shown = this.#left === Infinity ? [...entries] : knownAt(this.#revision, entries)
    this.#entries = shown.reverse()
    this.heldBytes = this.#entries.reduce((sum, entry) => sum + charsOf(entry), 0)
    this.#more = more
  }

  #chunk(): string {
    const plants: unknown[] = []
    const enough = this.heldBytes - CHUNK_CHARS
    while (this.heldBytes > enough && this.#left > 0) {
      const entry = this.#entries.pop()
      if (!entry) break
      this.heldBytes -= charsOf(entry)
      plants.push(wire.readPlant(entry))
      this.last = wire.idOf(entry.key)
      this.#left -= 1
    }
    return JSON.stringify(plants)
  }
}

function charsOf({ key, value }: wire.Entry): number {
  return ENTRY_CHARS + key.length + value.length
}
