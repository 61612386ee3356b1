import type { Answer } from './respond.ts'

/** Bytes of all pages that are remembered. */
const PAGES_MAX_BYTES = 16 * 1024 * 1024
/** Pages of one owner: more of them, as somebody makes who reads a long list page by page, push out only that owner's own. */
const OWNER_MAX_PAGES = 64
/** What a page costs beside its body. */
const PAGE_OVERHEAD_BYTES = 512
/** Queries as the service itself writes them, so that nobody fills the memory by spelling one in many ways. */
const USUAL_QUERY = /^(?:limit=[0-9]{1,10}(?:&after=[\w-]{1,32})?)?$/

/**
 * Answers to lists that were made before, by owner and query. An owner's are forgotten when a plant of that owner is
 * stored, before the create is answered; nobody else changes the list.
 */
export class RememberedPages {
  readonly #owners = new Map<string, Map<string, Answer>>()
  #bytes = 0

  get bytes(): number {
    return this.#bytes
  }

  get(owner: string, query: string): Answer | undefined {
    return this.#owners.get(owner)?.get(query)
  }

  add(owner: string, query: string, answer: Answer): void {
    const bytes = sizeOf(answer)
    if (bytes === undefined || bytes > PAGES_MAX_BYTES || !USUAL_QUERY.test(query)) return
    const pages = this.#owners.get(owner) ?? new Map<string, Answer>()
    if (pages.size >= OWNER_MAX_PAGES) this.forget(owner)
    // A Map iterates in the order of insertion: the first owner is the one whose pages are the oldest.
    for (const oldest of this.#owners.keys()) {
      if (this.#bytes + bytes <= PAGES_MAX_BYTES) break
      this.forget(oldest)
    }
    if (!this.#owners.has(owner)) {
      pages.clear()
      this.#owners.set(owner, pages)
    }
    // A copy: V8 keeps the whole request target, up to 16 KiB, for the part of it that is the query.
    pages.set(Buffer.from(query, 'latin1').toString('latin1'), answer)
    this.#bytes += bytes
  }

  forget(owner: string): void {
    const pages = this.#owners.get(owner)
    if (!pages) return
    for (const answer of pages.values()) this.#bytes -= sizeOf(answer) ?? 0
    this.#owners.delete(owner)
  }
}

/** Undefined for an answer that is made while it is sent. */
function sizeOf({ body }: Answer): number | undefined {
  return Buffer.isBuffer(body) ? body.length + PAGE_OVERHEAD_BYTES : undefined
}
