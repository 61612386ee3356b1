import { type HttpResponse, isStream } from './response.ts'

/** All cached pages and their owners' entries. */
const PAGES_MAX_BYTES = 16 * 1024 * 1024
/** One owner's share, so that an owner of large pages evicts no other owner's. */
const OWNER_MAX_BYTES = PAGES_MAX_BYTES / 16
/** An owner's entry takes this and its name, which V8 may keep as two bytes a character. */
const OWNER_OVERHEAD_BYTES = 512
const CHARACTER_BYTES = 2
/** What a page takes besides its body, roughly: its response, its headers, its entry in a Map. */
const PAGE_OVERHEAD_BYTES = 512
/**
 * Queries as most clients write them: one query spelled in many ways does not fill the cache. Pages
 * after a cursor are not cached: few are asked for twice, and they would evict pages that are.
 */
const USUAL_QUERY = /^(?:limit=[0-9]{1,10})?$/

/**
 * Responses to GET, by owner and query. A new plant invalidates all pages of its owner before the
 * POST is answered; it changes no other owner's list.
 */
export class PageCache {
  readonly #owners = new Map<string, { readonly pages: Map<string, HttpResponse>; bytes: number }>()
  #bytes = 0

  get bytes(): number {
    return this.#bytes
  }

  get(owner: string, query: string): HttpResponse | undefined {
    return this.#owners.get(owner)?.pages.get(query)
  }

  add(owner: string, query: string, response: HttpResponse): void {
    const { body } = response
    if (body === undefined || isStream(body) || !USUAL_QUERY.test(query)) return
    const bytes = body.length + PAGE_OVERHEAD_BYTES
    if (bytes > OWNER_MAX_BYTES) return
    if ((this.#owners.get(owner)?.bytes ?? 0) + bytes > OWNER_MAX_BYTES) this.invalidate(owner)
    const ownerBytes = OWNER_OVERHEAD_BYTES + CHARACTER_BYTES * owner.length
    this.#evictOldest(PAGES_MAX_BYTES - ownerBytes - bytes)
    let own = this.#owners.get(owner)
    if (!own) {
      own = { pages: new Map(), bytes: ownerBytes }
      this.#owners.set(owner, own)
      this.#bytes += ownerBytes
    }
    // Copies: a part of a buffer or of a string would keep the whole of it in memory. A body that
    // is text is never such a part.
    const key = Buffer.from(query, 'latin1').toString('latin1')
    const page = typeof body === 'string' ? body : Buffer.from(new Uint8Array(body).buffer)
    own.pages.set(key, { ...response, body: page })
    own.bytes += bytes
    this.#bytes += bytes
  }

  invalidate(owner: string): void {
    this.#bytes -= this.#owners.get(owner)?.bytes ?? 0
    this.#owners.delete(owner)
  }

  /** A Map iterates in insertion order: the first owner is the one that was added first. */
  #evictOldest(maxBytes: number): void {
    for (const owner of this.#owners.keys()) {
      if (this.#bytes <= maxBytes) return
      this.invalidate(owner)
    }
  }
}
