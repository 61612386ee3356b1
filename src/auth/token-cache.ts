import type { Caller } from './caller.ts'

interface Entry {
  readonly caller: Caller
  readonly bytes: number
  /** Seconds since 1970, as in the token. */
  readonly exp: number
}

/** What each scope takes besides its characters. */
const SCOPE_BYTES = 64

/** About 16 MiB at most: a caller was read from its token, and is no longer than the token. */
const LIMITS = { entries: 10_000, tokenBytes: 8 * 1024 * 1024 }

/**
 * Tokens that were verified: the next request with the same token needs no signature check. The
 * whole token is the key, because another token could have the same hash or jti. All entries were
 * verified by keys of one generation.
 */
export class TokenCache {
  readonly #limits: Readonly<typeof LIMITS>
  readonly #entries = new Map<string, Entry>()
  #tokenBytes = 0
  #generation = 0

  constructor(limits = LIMITS) {
    this.#limits = limits
  }

  get size(): number {
    return this.#entries.size
  }

  /** Drops all entries if the generation is a new one, and the token if it has expired. */
  get(token: string, generation: number, nowSeconds: number): Caller | undefined {
    if (generation !== this.#generation) {
      this.#entries.clear()
      this.#tokenBytes = 0
      this.#generation = generation
    }
    const entry = this.#entries.get(token)
    if (entry === undefined || nowSeconds < entry.exp) return entry?.caller
    this.#delete(token)
    return undefined
  }

  /** `generation` is that of the keys when the verification began. An old one adds nothing. */
  add(token: string, generation: number, exp: number, caller: Caller): void {
    if (generation !== this.#generation) return
    this.#delete(token)
    // V8 may hold an owner at two bytes a character.
    const bytes = token.length + 2 * caller.owner.length + SCOPE_BYTES * caller.scopes.size
    // A copy, because a substring would keep its whole header, up to 16 KiB, in memory.
    this.#entries.set(Buffer.from(token, 'latin1').toString('latin1'), { caller, exp, bytes })
    this.#tokenBytes += bytes
    // A Map iterates in the order of insertion: its first key is the oldest.
    for (const oldest of this.#entries.keys()) {
      if (this.#entries.size <= this.#limits.entries && this.#tokenBytes <= this.#limits.tokenBytes)
        return
      this.#delete(oldest)
    }
  }

  #delete(token: string): void {
    this.#tokenBytes -= this.#entries.get(token)?.bytes ?? 0
    this.#entries.delete(token)
  }
}
