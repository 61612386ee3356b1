/** Keys that are fetched from an issuer: the set in use, and when it is fetched again. */
import { HttpError, reasonOf } from '../errors.ts'
import type { Log } from '../telemetry/log.ts'
import { fetchBytes, isTrustworthy, shownUrl } from './fetch.ts'
import { type KeySet, readJsonObject, readKeySet } from './key-set.ts'
import type { KeySource, Timing } from './key-source.ts'

/** Fetches that requests may cause in a row. */
const FETCHES_IN_A_ROW = 3
/** Characters: an error of Node may quote a whole URL, and a set have 100 rejected keys. */
const MAX_REASON = 400

/** Fetches a document and reads it. An error names the URL. */
type Get = <T>(url: string, read: (bytes: Uint8Array) => T) => Promise<T>
type Load = (get: Get) => Promise<KeySet>

/**
 * jose's own remote set is not used: its cooldown counts only after a success, so every request
 * would reach an issuer that is down. All times are of the monotonic clock, in milliseconds.
 */
export class RemoteKeys implements KeySource {
  /** True if the last fetch failed. */
  isStale = false
  readonly #load: Load
  readonly #log: Log
  readonly #timing: Timing
  /** The last set that was accepted, usable or not. */
  #set: KeySet | undefined
  #usableUntilMs = -Infinity
  /** The attempt under way. It never rejects. */
  #attempt: Promise<void> | undefined
  #running = new AbortController()
  #isClosed = false
  /** When the bucket of fetches that requests may cause is full again. */
  #fullAtMs = -Infinity
  #timer: NodeJS.Timeout | undefined
  #nextAtMs = 0
  /** The delay after the next failure without a usable set. */
  #retryMs: number
  /** Why there is no usable set, if there is none. */
  #reason = 'no key set has been fetched yet'
  /** The rejected keys of the last set. The same ones are not logged again. */
  #rejectedKeys = ''

  constructor(load: Load, log: Log, timing: Timing) {
    this.#load = load
    this.#log = log
    this.#timing = timing
    this.#retryMs = timing.retry
  }

  get keys(): KeySet | undefined {
    return performance.now() < this.#usableUntilMs ? this.#set : undefined
  }

  get unavailable(): HttpError | undefined {
    if (this.keys !== undefined) return undefined
    const seconds = Math.max(1, Math.ceil((this.#nextAtMs - performance.now()) / 1000))
    return new HttpError('keysUnavailable', ['Retry-After', String(seconds)], this.#reason)
  }

  get ageMs(): number | undefined {
    return this.keys && performance.now() - (this.#usableUntilMs - this.#timing.usable)
  }

  fetchFor(kid: unknown): Promise<void> | undefined {
    const set = this.keys
    if (set !== undefined && (typeof kid !== 'string' || set.kids.has(kid))) return undefined
    // The issuer may have changed its keys.
    if (this.#attempt !== undefined) return this.#attempt
    const { refill } = this.#timing
    const fullAtMs = Math.max(this.#fullAtMs, performance.now()) + refill
    if (fullAtMs > performance.now() + FETCHES_IN_A_ROW * refill) return undefined
    // The fetch is taken out of the bucket, whatever its result will be.
    this.#fullAtMs = fullAtMs
    return this.#fetchOnce()
  }

  start(): void {
    void this.#fetchOnce()
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#timer)
    this.#running.abort(new Error('closed'))
  }

  /** One attempt at a time: all callers meanwhile wait for the same one. */
  #fetchOnce(): Promise<void> {
    return (this.#attempt ??= this.#fetchSet().finally(() => (this.#attempt = undefined)))
  }

  async #fetchSet(): Promise<void> {
    if (this.#isClosed) return
    clearTimeout(this.#timer)
    const running = (this.#running = new AbortController())
    try {
      const get: Get = async (url, read) => {
        const bytes = await fetchBytes(url, this.#timing.fetch, running)
        try {
          return read(bytes)
        } catch (cause) {
          throw new Error(shownUrl(url), { cause })
        }
      }
      this.#accept(await this.#load(get))
      this.isStale = false
    } catch (error) {
      this.isStale = true
      this.#reason = reasonOf(error).slice(0, MAX_REASON)
      if (!this.#isClosed) this.#log.error('key set could not be fetched', { reason: this.#reason })
    }
    if (!this.#isClosed) this.#scheduleNext()
  }

  /** @throws Error if no key is usable: such a set does not replace an earlier one. */
  #accept(set: KeySet): void {
    const rejectedKeys = set.rejectedKeys.join('; ').slice(0, MAX_REASON)
    if (rejectedKeys !== this.#rejectedKeys && rejectedKeys !== '')
      this.#log.error('keys of the key set are left out', { flaws: rejectedKeys })
    this.#rejectedKeys = rejectedKeys
    if (set.size === 0) throw new Error('the key set holds no key that can verify a token')
    // The same keys again leave the cached tokens valid.
    if (this.keys?.text !== set.text) {
      this.#set = set
      this.#log.info('key set fetched', { keys: set.size })
    }
    this.#usableUntilMs = performance.now() + this.#timing.usable
    this.#retryMs = this.#timing.retry
    this.#reason = 'the key set is too old'
  }

  #scheduleNext(): void {
    const nowMs = performance.now()
    const leftMs = this.#usableUntilMs - nowMs
    const delayMs = leftMs > 0 ? Math.min(this.#timing.refresh, leftMs) : this.#retryMs
    if (leftMs <= 0) this.#retryMs = Math.min(2 * this.#retryMs, this.#timing.refill)
    this.#nextAtMs = nowMs + delayMs
    this.#timer = setTimeout(() => void this.#fetchOnce(), delayMs).unref()
  }
}

/**
 * Fetches the key set that the discovery document of an issuer names (OpenID Connect Discovery 1.0
 * §4). The document is read at every refresh, because an issuer may move its keys.
 * @throws Error if the document names another issuer (§4.3: exactly the same string is required),
 * or a URL that cannot be trusted.
 */
export async function discoverKeySet(issuer: string, get: Get): Promise<KeySet> {
  const url = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
  const { issuer: named, jwks_uri: keySetUrl } = await get(url, (bytes) =>
    readJsonObject(bytes, 'an OpenID discovery document'),
  )
  const other = typeof named === 'string' ? shownUrl(named) : 'none'
  if (named !== issuer) throw new Error(`${shownUrl(url)} is of another issuer: ${other}`)
  if (!isTrustworthy(keySetUrl))
    throw new Error(`${shownUrl(url)} names a jwks_uri that is neither https nor on loopback`)
  return get(keySetUrl, readKeySet)
}
