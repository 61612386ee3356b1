import type { Caller } from './caller.ts'

interface Entry {
  readonly caller: Caller
  readonly bytes: number
  /** Seconds since 1970, as the token has it. */
  readonly exp: number
}

export interface TokenCacheLimits {
  readonly entries: number
  readonly tokenBytes: number
}

/** What a scope costs that is kept by itself: some have a single character. */
const SCOPE_BYTES = 64

/**
 * About 16 MiB at worst: what is kept beside a token was read from it, and is no longer than the
 * token itself; scopes are counted as well.
 */
export const TOKEN_CACHE_LIMITS: TokenCacheLimits = { entries: 10_000, tokenBytes: 8 * 1024 * 1024 }

/**
 * Tokens that have been verified, so that the next request with the same one costs no signature
 * check. The whole token is the key: a hash or a jti could be met by another token. All entries are
 * of one generation of keys.
 */
export class TokenCache {
  readonly #limits: TokenCacheLimits
  readonly #entries = new Map<string, Entry>()
  #tokenBytes = 0
  #generation = 0

  constructor(limits: TokenCacheLimits = TOKEN_CACHE_LIMITS) {
    this.#limits = limits
  }

  get size(): number {
    return this.#entries.size
  }

  /**
   * Forgets everything when the keys have changed, and the token once `seconds` has reached its
   * exp.
   */
  get(token: string, generation: number, seconds: number): Caller | undefined {
    if (generation !== this.#generation) {
      this.#entries.clear()
      this.#tokenBytes = 0
      this.#generation = generation
    }
    const entry = this.#entries.get(token)
    if (entry === undefined || seconds < entry.exp) return entry?.caller
    this.#forget(token)
    return undefined
  }

  /**
   * `generation` is that of the keys before the token was verified; when they have changed since,
   * nothing is kept.
   */
  add(token: string, generation: number, exp: number, caller: Caller): void {
    if (generation !== this.#generation) return
    this.#forget(token)
    // V8 may keep an owner at two bytes a character.
    const bytes = token.length + 2 * caller.owner.length + SCOPE_BYTES * caller.scopes.size
    // A copy: V8 keeps the whole header line, up to 16 KiB, for the part of it that is the token.
    this.#entries.set(Buffer.from(token, 'latin1').toString('latin1'), { caller, exp, bytes })
    this.#tokenBytes += bytes
    // A Map iterates in the order of insertion: its first key is the oldest.
    for (const oldest of this.#entries.keys()) {
      if (this.#entries.size <= this.#limits.entries && this.#tokenBytes <= this.#limits.tokenBytes)
        return
      this.#forget(oldest)
    }
  }

  #forget(token: string): void {
    this.#tokenBytes -= this.#entries.get(token)?.bytes ?? 0
    this.#entries.delete(token)
  }
}
