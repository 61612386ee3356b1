/** Tokens that were verified: the next request with the same token needs no signature check. */
import type { Caller } from './caller.ts'

interface Entry {
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
  readonly #entries = new Map<string, Entry>()
  /**
   * One iterator for the life of the map. A map leaves a hole for each entry that was deleted, and
   * a new iterator would step over all holes: 7 µs a token. An iterator that has ended stays so,
   * but this one never ends: it is asked only while the map has an entry that it has not passed.
   */
  readonly #oldestFirst = this.#entries.keys()
  #bytes = 0

  get size(): number {
    return this.#entries.size
  }

  /** Drops the token if it has expired. */
  get(token: string, nowSeconds: number): Caller | undefined {
    const entry = this.#entries.get(token)
    if (entry === undefined || nowSeconds < entry.exp) return entry?.caller
    this.#delete(token)
    return undefined
  }

  add(token: string, exp: number, caller: Caller): void {
    this.#delete(token)
    // V8 may hold an owner at two bytes a character.
    const bytes = token.length + 2 * caller.owner.length + SCOPE_BYTES * caller.scopes.size
    // A copy, because a substring would keep its whole header, up to 16 KiB, in memory.
    this.#entries.set(Buffer.from(token, 'latin1').toString('latin1'), { caller, exp, bytes })
    this.#bytes += bytes
    // A Map iterates in the order of insertion, and whatever the iterator has passed is deleted.
    while (this.#entries.size > MAX_ENTRIES || this.#bytes > MAX_CACHED_BYTES)
      this.#delete(this.#oldestFirst.next().value ?? '')
  }

  #delete(token: string): void {
    this.#bytes -= this.#entries.get(token)?.bytes ?? 0
    this.#entries.delete(token)
  }
}
