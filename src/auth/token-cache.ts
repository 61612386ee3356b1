/** Tokens that were verified: the next request with the same token needs no signature check. */
import type { Caller } from './caller.ts'

interface CachedToken {
  readonly caller: Caller
  readonly bytes: number
  /** Seconds since 1970, as in the token. */
  readonly exp: number
}

/** What each scope takes besides its characters. */
const SCOPE_BYTES = 64

export const MAX_ENTRIES = 10_000
/** As `bytes` counts them. In memory it is about twice as much at most: a caller is a copy. */
export const MAX_CACHED_BYTES = 8 * 1024 * 1024

/** The whole token is the key, because another token could have the same hash or jti. */
export class TokenCache {
  /** In the order in which they were added. */
  readonly #entries = new Map<string, CachedToken>()
  #bytes = 0

  get size(): number {
    return this.#entries.size
  }

  get(token: string, nowSeconds: number): Caller | undefined {
    const entry = this.#entries.get(token)
    return entry && nowSeconds < entry.exp ? entry.caller : undefined
  }

  /** Evicts the oldest tokens to make room. */
  add(token: string, exp: number, caller: Caller): void {
    this.#delete(token)
    // V8 may hold an owner at two bytes a character.
    const bytes = token.length + 2 * caller.owner.length + SCOPE_BYTES * caller.scopes.size
    // A copy, because a substring would keep its whole header, up to 16 KiB, in memory.
    this.#entries.set(Buffer.from(token, 'latin1').toString('latin1'), { caller, exp, bytes })
    this.#bytes += bytes
    for (const oldest of this.#entries.keys()) {
      if (this.#entries.size <= MAX_ENTRIES && this.#bytes <= MAX_CACHED_BYTES) return
      this.#delete(oldest)
    }
  }

  #delete(token: string): void {
    this.#bytes -= this.#entries.get(token)?.bytes ?? 0
    this.#entries.delete(token)
  }
}
