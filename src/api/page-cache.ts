/* Responses to lists that are kept until a create may change them. */

import type { HttpResponse } from '../http/response.ts'
import { Latest } from '../latest.ts'

/** All cached pages and their owners' entries. */
const PAGES_MAX_BYTES = 16 * 1024 * 1024
/** One owner's share. Reading long lists evicts this much of other owners' pages at most. */
const OWNER_MAX_BYTES = PAGES_MAX_BYTES / 16
/** A create looks at each. Clients use a few limits. */
const OWNER_MAX_PAGES = 16
/** What a page, and the entry of an owner, take, roughly, besides the body and the owner's name. */
const OVERHEAD_BYTES = 512
/** V8 may keep an owner's name as two bytes a character, and there are two of it. */
const CHARACTER_BYTES = 4
/**
 * Queries as most clients write them: one query spelled in many ways does not fill the cache. Pages
 * after a cursor are not cached: few are asked for twice, and they would evict pages that are.
 */
const USUAL_QUERY = /^(?:limit=[0-9]{1,10})?$/

interface CachedPage {
  readonly response: HttpResponse
  /** The list goes on after this id, if others follow. */
  readonly next: bigint | undefined
  readonly bytes: number
}

interface OwnPages {
  readonly pages: Map<string, CachedPage>
  /** Also without pages it takes some. */
  bytes: number
}

/**
 * Responses to GET, by owner and query. A new plant removes the pages that may show it before the
 * POST is answered; it changes no other owner's list. Plants are listed by id, ascending, and none
 * is ever deleted: so a page that is cut before the new id stays as it is. A create by another
 * process is not seen here: lists of a store that `isShared` are not cached.
 */
export class PageCache {
  readonly #owners = new Latest<OwnPages>(PAGES_MAX_BYTES)

  get(owner: string, query: string): HttpResponse | undefined {
    return this.#owners.get(owner)?.pages.get(query)?.response
  }

  /** `next` as in `CachedPage`. */
  add(owner: string, query: string, response: HttpResponse, next?: bigint): void {
    const { body } = response
    if (body === undefined || typeof body === 'function' || !USUAL_QUERY.test(query)) return
    // Another request has read the same list at the same time.
    if (this.get(owner, query)) return
    const bytes = body.length + OVERHEAD_BYTES
    const ownerBytes = CHARACTER_BYTES * owner.length + OVERHEAD_BYTES
    if (ownerBytes + bytes > OWNER_MAX_BYTES) return
    let own = this.#owners.get(owner)
    if (!own || own.bytes + bytes > OWNER_MAX_BYTES || own.pages.size === OWNER_MAX_PAGES)
      own = { pages: new Map(), bytes: ownerBytes }
    // Copies: a part of a buffer or of a string would keep the whole of it in memory. A body that
    // is text is never such a part.
    const key = Buffer.from(query, 'latin1').toString('latin1')
    const page = typeof body === 'string' ? body : Buffer.from(new Uint8Array(body).buffer)
    own.pages.set(key, { response: { ...response, body: page }, next, bytes })
    own.bytes += bytes
    this.#owners.set(owner, own, own.bytes)
  }

  /** Removes the pages of an owner that may show a new plant of this id. */
  invalidate(owner: string, id: bigint): void {
    const own = this.#owners.get(owner)
    if (!own) return
    for (const [query, { next, bytes }] of own.pages) {
      if (next !== undefined && next < id) continue
      own.pages.delete(query)
      own.bytes -= bytes
    }
    this.#owners.set(owner, own, own.bytes)
  }
}
