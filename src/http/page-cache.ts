import type { HttpResponse } from './response.ts'

/** Bytes of all pages in the cache. */
const PAGES_MAX_BYTES = 16 * 1024 * 1024
/** What one owner's pages may take of it: an owner of large pages evicts no other owner's. */
const OWNER_MAX_BYTES = PAGES_MAX_BYTES / 16
/**
 * What an owner costs beside its pages: its name, which V8 may keep at two bytes a character, and a
 * Map.
 */
const OWNER_OVERHEAD_BYTES = 512
const CHAR_BYTES = 2
/** What a page costs beside its body, roughly: its answer, its headers, its place in a Map. */
const PAGE_OVERHEAD_BYTES = 512
/**
 * Queries as most clients write them, so that spelling one query in many ways fills nothing. A page
 * after a cursor is not kept: it is hardly ever asked for twice, and keeping it would evict pages
 * that are.
 */
const USUAL_QUERY = /^(?:limit=[0-9]{1,10})?$/

/**
 * Answers to lists that were made before, by owner and query. An owner's are evicted when a plant
 * of that owner is stored, before the create is answered; no other owner's create changes the list.
 */
export class PageCache {
  readonly #owners = new Map<string, OwnerPages>()
  #bytes = 0

  get bytes(): number {
    return this.#bytes
  }

  get(owner: string, query: string): HttpResponse | undefined {
    return this.#owners.get(owner)?.pages.get(query)
  }

  add(owner: string, query: string, answer: HttpResponse): void {
    const { body } = answer
    if (!Buffer.isBuffer(body) || !USUAL_QUERY.test(query)) return
    const bytes = body.length + PAGE_OVERHEAD_BYTES
    if (bytes > OWNER_MAX_BYTES) return
    if ((this.#owners.get(owner)?.bytes ?? 0) + bytes > OWNER_MAX_BYTES) this.invalidate(owner)
    const ownerBytes = OWNER_OVERHEAD_BYTES + CHAR_BYTES * owner.length
    // A Map iterates in the order of insertion: the first owner is the one whose pages are the
    // oldest.
    for (const oldest of this.#owners.keys()) {
      if (this.#bytes + ownerBytes + bytes <= PAGES_MAX_BYTES) break
      this.invalidate(oldest)
    }
    let own = this.#owners.get(owner)
    if (!own) {
      this.#owners.set(owner, (own = { pages: new Map(), bytes: ownerBytes }))
      this.#bytes += ownerBytes
    }
    // Copies, or a page of 100 bytes keeps the 8 KiB that it was cut from, and a query the whole
    // request target.
    own.pages.set(copyOfText(query), { ...answer, body: copyOf(body) })
    own.bytes += bytes
    this.#bytes += bytes
  }

  invalidate(owner: string): void {
    this.#bytes -= this.#owners.get(owner)?.bytes ?? 0
    this.#owners.delete(owner)
  }
}

interface OwnerPages {
  readonly pages: Map<string, HttpResponse>
  bytes: number
}

function copyOf(bytes: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.length)
  copy.set(bytes)
  return copy
}

function copyOfText(ascii: string): string {
  return Buffer.from(ascii, 'latin1').toString('latin1')
}
