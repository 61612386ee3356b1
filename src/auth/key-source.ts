/** The keys of a service: the set in use, and when it is loaded again. */
import type { CompactJWSHeaderParameters, CryptoKey } from 'jose'
import { reasonOf } from '../errors.ts'
import { nextDelay } from '../limits/backoff.ts'
import type { Log } from '../telemetry/log.ts'
import type { TokenCache } from './token-cache.ts'

/** Keys that verify tokens. They never change: other keys are another object. */
export interface Keys {
  /** Equal texts mean equal keys. Never shown: it may hold secrets. */
  readonly text: string
  /** How many keys are usable. */
  readonly size: number
  /** Their `kid`s. Undefined for secrets, which have none. */
  readonly kids?: ReadonlySet<unknown>
  /** Files of secrets that are no text: a final line end is part of such a secret. */
  readonly binary?: readonly string[]
  /** The only algorithms that a token may name. */
  readonly algorithms: string[]
  /** The tokens that these keys have verified. It goes with them. */
  readonly verified: TokenCache
  /**
   * Finds the keys, four at most, that a token with this header may be signed with.
   * @throws JOSEError (as a rejection) if none fits, or too many.
   */
  readonly find: (header: CompactJWSHeaderParameters) => Promise<readonly CryptoKey[]>
}

/** Milliseconds. Only tests change them. */
export const TIMING = {
  /** Between two readings of a file of keys. */
  poll: 2_000,
  /** For one fetch, body included. */
  fetch: 5_000,
  /** Between two loads in the background. */
  refresh: 10 * 60_000,
  /** Requests may fetch keys three times in a row, and then once in this time. */
  refill: 30_000,
  /** The first delay of the background without a usable set; it doubles up to `refill`. */
  retry: 1_000,
  /** How long a key set is used after its last load. */
  usable: 60 * 60_000,
}

/** Where keys are, and how they are loaded. */
export interface ConfiguredKeys {
  readonly kind: 'secret' | 'secrets' | 'file' | 'url' | 'discovery'
  /** The paths, or the URL without its query, which may hold a secret. */
  readonly from?: string
  /** Keys of this machine, which were read and checked. */
  readonly first?: Keys
  /**
   * Undefined for a secret that is no file. Rejects if there are no keys, or they must not be used,
   * or `running` is aborted. Each fetch may take this long.
   */
  readonly load?: (running: AbortController, timeoutMs: number) => Promise<Keys>
}

/** There are no keys to verify a token with. The message says why in a few words. */
export class KeysUnavailable extends Error {
  /** When keys are loaded again. */
  readonly retrySeconds: number

  constructor(message: string, retrySeconds: number) {
    super(message)
    this.retrySeconds = retrySeconds
  }
}

const BINARY = 'a secret file is no text: all its bytes are the secret'
/** Loads that requests may cause in a row. */
const LOADS_IN_A_ROW = 3
/** Characters: an error of Node may quote a whole URL. */
const MAX_REASON = 400

/**
 * jose's own remote set is not used: its cooldown counts only after a success, so every request
 * would reach an issuer that is down. All times are of the monotonic clock, in milliseconds.
 */
export class KeySource {
  readonly #load: ConfiguredKeys['load']
  readonly #log: Log
  readonly #timing: typeof TIMING
  /** The last set that was accepted, usable or not. */
  #set: Keys | undefined
  #loadedAtMs = performance.now()
  /** Why the last load failed, if it did. */
  #failure: string | undefined
  /** The delay of the next attempt while there is no usable set. It grows. */
  #retryMs = 0
  /** The attempt under way. It never rejects. */
  #attempt: Promise<void> | undefined
  /** Ends the attempt. Undefined once this is closed: then nothing is loaded. */
  #running: AbortController | undefined = new AbortController()
  /** When the bucket of loads that requests may cause is full again. */
  #fullAtMs = -Infinity
  #timer: NodeJS.Timeout | undefined

  constructor({ first, load }: ConfiguredKeys, log: Log, timing = TIMING) {
    // Files do not expire. They are read again every few seconds, because a mounted volume swaps
    // symbolic links, which some watchers do not see.
    this.#timing = first ? { ...timing, refresh: timing.poll, usable: Infinity } : timing
    this.#load = load
    this.#log = log
    this.#set = first
  }

  /** The latest usable keys. */
  get keys(): Keys | undefined {
    return performance.now() < this.#loadedAtMs + this.#timing.usable ? this.#set : undefined
  }

  /** If there are no keys, the error for a token. */
  get unavailable(): KeysUnavailable | undefined {
    if (this.keys !== undefined) return undefined
    const seconds = Math.max(1, Math.ceil(this.#retryMs / 1000))
    return new KeysUnavailable(this.#failure ?? 'no key set has been fetched yet', seconds)
  }

  /**
   * True if the last version of the keys could not be read or used, so that earlier keys stay in
   * use, if there are any. Undefined for a secret that is no file.
   */
  get isStale(): boolean | undefined {
    return this.#load && this.#failure !== undefined
  }

  /** Since the last fetch that succeeded; undefined without a usable set that was fetched. */
  get ageSeconds(): number | undefined {
    // Keys of this machine do not expire.
    if (this.keys === undefined || this.#timing.usable === Infinity) return undefined
    return (performance.now() - this.#loadedAtMs) / 1000
  }

  /**
   * Loads keys if there are none, or none has this kid, which is a string. The promise never
   * rejects; undefined if there is nothing to wait for.
   */
  fetchFor(kid: unknown): Promise<void> | undefined {
    const { keys } = this
    if (keys && (typeof kid !== 'string' || (keys.kids?.has(kid) ?? true))) return undefined
    // The set that is being loaded may have the key.
    if (this.#attempt !== undefined) return this.#attempt
    const { refill } = this.#timing
    const fullAtMs = Math.max(this.#fullAtMs, performance.now()) + refill
    if (fullAtMs > performance.now() + LOADS_IN_A_ROW * refill) return undefined
    // The load is taken out of the bucket, whatever its result will be.
    this.#fullAtMs = fullAtMs
    return this.#loadOnce()
  }

  /** Begins the work in the background, if there is any. */
  start(): void {
    for (const path of this.#set?.binary ?? []) this.#log.info(BINARY, { path })
    void this.#loadOnce()
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#running?.abort(new Error('closed'))
    this.#running = undefined
  }

  /** One attempt at a time: all callers meanwhile wait for the same one. */
  #loadOnce(): Promise<void> {
    return (this.#attempt ??= this.#tryToLoad().finally(() => (this.#attempt = undefined)))
  }

  async #tryToLoad(): Promise<void> {
    if (!this.#load || !this.#running) return
    clearTimeout(this.#timer)
    this.#running = new AbortController()
    try {
      const set = await this.#load(this.#running, this.#timing.fetch)
      // The same keys again leave the cached tokens valid.
      if (this.keys?.text !== set.text) {
        this.#set = set
        this.#log.info('key set read', { keys: set.size })
      }
      this.#loadedAtMs = performance.now()
      this.#failure = undefined
    } catch (error) {
      const reason = reasonOf(error).slice(0, MAX_REASON)
      // The same failure is not logged again.
      const isNew = this.#running && reason !== this.#failure
      if (isNew) this.#log.error('key set could not be read', { reason })
      this.#failure = reason
    }
    if (!this.#running) return
    const { refresh, usable, retry, refill } = this.#timing
    const leftMs = this.#set ? this.#loadedAtMs + usable - performance.now() : 0
    this.#retryMs = leftMs > 0 ? 0 : nextDelay(this.#retryMs, retry, refill)
    const delayMs = leftMs > 0 ? Math.min(refresh, leftMs) : this.#retryMs
    this.#timer = setTimeout(() => void this.#loadOnce(), delayMs).unref()
  }
}
