/** Tokens that were verified: the next request with the same token needs no signature check. */
import type { Caller } from './caller.ts'

/** What a token takes besides its texts, roughly, and each of its scopes. */
const ENTRY_BYTES = 512
const SCOPE_BYTES = 64
/** V8 may hold a text at two bytes a character. */
const CHARACTER_BYTES = 2

export const MAX_ENTRIES = 10_000
/** As `bytesOf` counts them. */
export const MAX_CACHED_BYTES = 16 * 1024 * 1024

/** The whole token is the key, because another token could have the same hash or jti. */
export class TokenCache {
  /** In the order in which they were added. */
  readonly #callers = new Map<string, Caller>()
  /** One iterator for the life of the map, as in `PageCache`: a new one would step over holes. */
  readonly #oldestFirst = this.#callers.keys()
  #bytes = 0

  get(token: string, nowSeconds: number): Caller | undefined {
    const caller = this.#callers.get(token)
    return caller && nowSeconds < caller.exp ? caller : undefined
  }

  /** Evicts the oldest tokens to make room. The caller is a copy: no text is a part of another. */
  add(token: string, caller: Caller): void {
    this.#delete(token)
    // A copy, because a substring would keep its whole header, up to 16 KiB, in memory.
    this.#callers.set(Buffer.from(token, 'latin1').toString('latin1'), caller)
    this.#bytes += bytesOf(token, caller)
    while (this.#callers.size > MAX_ENTRIES || this.#bytes > MAX_CACHED_BYTES)
      this.#delete(this.#oldestFirst.next().value ?? '')
  }

  #delete(token: string): void {
    const caller = this.#callers.get(token)
    if (caller) this.#bytes -= bytesOf(token, caller)
    this.#callers.delete(token)
  }
}

function bytesOf(token: string, { owner, scopes }: Caller): number {
  let bytes = ENTRY_BYTES + token.length + CHARACTER_BYTES * owner.length
  for (const scope of scopes) bytes += SCOPE_BYTES + CHARACTER_BYTES * scope.length
  return bytes
}
