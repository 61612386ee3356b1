import type { Caller } from './verifier.ts'

interface Entry {
  readonly caller: Caller
  /** Seconds since 1970, as the token has it. */
  readonly exp: number
}

export interface RememberedLimits {
  readonly entries: number
  readonly tokenBytes: number
}

/** About 16 MiB at worst: what is kept beside a token was read from it, and is no longer than the token itself. */
export const REMEMBERED_LIMITS: RememberedLimits = { entries: 10_000, tokenBytes: 8 * 1024 * 1024 }

/**
 * Tokens that have been verified, so that the next request with the same one costs no signature check. The whole token
 * is the key: a hash or a jti could be met by another token. All entries are of one generation of keys.
 */
export class RememberedTokens {
  readonly #limits: RememberedLimits
  readonly #entries = new Map<string, Entry>()
  #tokenBytes = 0
  #generation = 0

  constructor(limits: RememberedLimits = REMEMBERED_LIMITS) {
    this.#limits = limits
  }

  get size(): number {
    return this.#entries.size
  }

  /** Forgets everything when the keys have changed, and the token once `seconds` has reached its exp. */
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

  /** `generation` is that of the keys before the token was verified; when they have changed since, nothing is kept. */
  add(token: string, generation: number, exp: number, caller: Caller): void {
    if (generation !== this.#generation) return
    this.#forget(token)
    this.#entries.set(token, { caller, exp })
    this.#tokenBytes += token.length
    // A Map iterates in the order of insertion: its first key is the oldest.
    for (const oldest of this.#entries.keys()) {
      if (this.#entries.size <= this.#limits.entries && this.#tokenBytes <= this.#limits.tokenBytes) return
      this.#forget(oldest)
    }
  }

  #forget(token: string): void {
    if (this.#entries.delete(token)) this.#tokenBytes -= token.length
  }
}
