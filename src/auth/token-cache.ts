/** Tokens that were verified: the next request with the same token needs no signature check. */
import type { Caller } from './caller.ts'

/** What each scope takes besides its characters. */
const SCOPE_BYTES = 64

export const MAX_ENTRIES = 10_000
/** As `bytesOf` counts them. In memory it is about twice as much at most: a caller is a copy. */
export const MAX_CACHED_BYTES = 8 * 1024 * 1024

/** The whole token is the key, because another token could have the same hash or jti. */
export class TokenCache {
  /** In the order in which they were added. */
  readonly #callers = new Map<string, Caller>()
  #bytes = 0

  get(token: string, nowSeconds: number): Caller | undefined {
    const caller = this.#callers.get(token)
    return caller && nowSeconds < caller.exp ? caller : undefined
  }

  /** Evicts the oldest tokens to make room. */
  add(token: string, caller: Caller): void {
    this.#delete(token)
    // A copy, because a substring would keep its whole header, up to 16 KiB, in memory.
    this.#callers.set(Buffer.from(token, 'latin1').toString('latin1'), caller)
    this.#bytes += bytesOf(token, caller)
    for (const oldest of this.#callers.keys()) {
      if (this.#callers.size <= MAX_ENTRIES && this.#bytes <= MAX_CACHED_BYTES) return
      this.#delete(oldest)
    }
  }

  #delete(token: string): void {
    const caller = this.#callers.get(token)
    if (caller) this.#bytes -= bytesOf(token, caller)
    this.#callers.delete(token)
  }
}

/** V8 may hold an owner at two bytes a character. */
function bytesOf(token: string, { owner, scopes }: Caller): number {
  return token.length + 2 * owner.length + SCOPE_BYTES * scopes.size
}
