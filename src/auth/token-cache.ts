/** Tokens that were verified: the next request with the same token needs no signature check. */
import { Latest } from '../latest.ts'
import type { Caller } from './caller.ts'

/** All cached tokens, as `add` counts them: at most 16,384 of the shortest. */
export const MAX_CACHED_BYTES = 16 * 1024 * 1024
/** What a token takes besides its texts, roughly, and each of its scopes. */
const ENTRY_BYTES = 1024
const SCOPE_BYTES = 64
/** V8 may hold a text at two bytes a character. */
const CHARACTER_BYTES = 2

/** The whole token is the key, because another token could have the same hash or jti. */
export class TokenCache {
  readonly #callers = new Latest<Caller>(MAX_CACHED_BYTES)

  get(token: string, nowSeconds: number): Caller | undefined {
    const caller = this.#callers.get(token)
    return caller && nowSeconds < caller.exp ? caller : undefined
  }

  /** No text of the caller is a part of another. */
  add(token: string, caller: Caller): void {
    // A copy, because a substring would keep its whole header, up to 16 KiB, in memory.
    const key = Buffer.from(token, 'latin1').toString('latin1')
    const { owner, scopes } = caller
    let bytes = ENTRY_BYTES + token.length + CHARACTER_BYTES * owner.length
    for (const scope of scopes) bytes += SCOPE_BYTES + CHARACTER_BYTES * scope.length
    this.#callers.set(key, caller, bytes)
  }
}
