import type { CompactJWSHeaderParameters, CryptoKey } from 'jose'
import { errorCodeOf, HttpError, reasonOf } from '../errors.ts'
import { Backoff } from '../ops/backoff.ts'
import { Fetcher, isTrustworthy, shownUrl } from './fetch.ts'
import {
  AT_ONCE_IF_FAST,
  type KeySet,
  PUBLIC_ALGORITHMS,
  readJsonObject,
  readKeySetInSteps,
} from './key-set.ts'
import type { KeyLog, KeySource, Timing } from './key-source.ts'
import type { Wait } from './verification-queue.ts'

/** Characters: an error of Node may quote a whole URL. */
const MAX_REASON = 400

type LoadKeySet = (fetcher: Fetcher) => Promise<Uint8Array>

/**
 * Keys that are fetched from an issuer. jose's own remote set is not used: its cooldown counts only
 * after a success, so every request would reach an issuer that is down. All times are of the
 * monotonic clock, in milliseconds.
 */
export class RemoteKeys implements KeySource {
  readonly algorithms = PUBLIC_ALGORITHMS
  readonly #load: LoadKeySet
  readonly #log: KeyLog
  readonly #timing: Timing
  readonly #fetcher: Fetcher
  readonly #backoff: Backoff
  readonly #counts = { succeeded: 0, failed: 0 }
  /** The last set that was accepted; dropped when it is too old. */
  #set: KeySet | undefined
  #acceptedAtMs = -Infinity
  #generation = 0
  #isStale = false
  /** The attempt under way. It never rejects. */
  #attempt: Promise<void> | undefined
  #attemptedAtMs = -Infinity
  #timer: NodeJS.Timeout | undefined
  #nextAtMs = Infinity
  /** Why there is no usable set, if there is none. */
  #reason = 'no key set has been fetched yet'
  /** The rejected keys of the last set. The same ones are not logged again. */
  #rejectedKeys = ''

  constructor(load: LoadKeySet, log: KeyLog, timing: Timing) {
    this.#load = load
    this.#log = log
    this.#timing = timing
    this.#fetcher = new Fetcher(timing.fetch)
    this.#backoff = new Backoff(timing.retry, timing.cooldown)
  }

  get atOnce(): number {
    // Without a set, tokens only wait for one.
    return this.#set?.atOnce ?? AT_ONCE_IF_FAST
  }

  get generation(): number {
    this.#usableSet()
    return this.#generation
  }

  get isStale(): boolean {
    return this.#isStale
  }

  get fetches() {
    const hasSet = this.#usableSet() !== undefined
    return { ...this.#counts, ageMs: hasSet ? performance.now() - this.#acceptedAtMs : undefined }
  }

  async key(header: CompactJWSHeaderParameters, wait: Wait): Promise<CryptoKey> {
    const set = this.#usableSet()
    try {
      if (set !== undefined) return await set.find(header)
    } catch (error) {
      if (errorCodeOf(error) !== 'ERR_JWKS_NO_MATCHING_KEY') throw error
    }
    // There is no set, or the key is not in it: the issuer may have changed its keys.
    const hasCooled = performance.now() >= this.#attemptedAtMs + this.#timing.cooldown
    if (this.#attempt !== undefined || hasCooled) await wait(this.#fetchOnce())
    const latest = this.#usableSet()
    if (latest === undefined) throw this.#unavailable()
    return latest.find(header)
  }

  unavailableReason(): string | undefined {
    return this.#usableSet() === undefined ? `no usable key set: ${this.#reason}` : undefined
  }

  start(): void {
    void this.#fetchOnce()
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#fetcher.close()
  }

  /**
   * Drops a set that is too old. The new generation makes the cache drop the tokens that it
   * verified.
   */
  #usableSet(): KeySet | undefined {
    if (this.#set !== undefined && performance.now() >= this.#usableUntilMs()) {
      this.#set = undefined
      this.#generation++
    }
    return this.#set
  }

  #usableUntilMs(): number {
    return this.#acceptedAtMs + this.#timing.usable
  }

  #unavailable(): HttpError {
    const nextAtMs = Math.min(this.#nextAtMs, this.#attemptedAtMs + this.#timing.cooldown)
    const seconds = Math.max(1, Math.ceil((nextAtMs - performance.now()) / 1000))
    return new HttpError('keysUnavailable', ['Retry-After', String(seconds)], this.#reason)
  }

  /** One attempt at a time: all callers meanwhile wait for the same one. */
  #fetchOnce(): Promise<void> {
    return (this.#attempt ??= this.#fetchSet().finally(() => (this.#attempt = undefined)))
  }

  async #fetchSet(): Promise<void> {
    clearTimeout(this.#timer)
    this.#attemptedAtMs = performance.now()
    try {
      this.#accept(await readKeySetInSteps(await this.#load(this.#fetcher)))
      this.#counts.succeeded++
      this.#isStale = false
    } catch (error) {
      this.#counts.failed++
      this.#isStale = true
      this.#reason = reasonOf(error).slice(0, MAX_REASON)
      if (!this.#fetcher.isClosed)
        this.#log('error', 'key set could not be fetched', { reason: this.#reason })
    }
    this.#scheduleNext()
  }

  /** @throws Error if no key is usable: such a set does not replace an earlier one. */
  #accept(set: KeySet): void {
    const rejectedKeys = set.rejectedKeys.join('; ')
    if (rejectedKeys !== this.#rejectedKeys && rejectedKeys !== '')
      this.#log('error', 'keys of the key set are left out', { flaws: rejectedKeys })
    this.#rejectedKeys = rejectedKeys
    if (set.size === 0) throw new Error('the key set holds no key that can verify a token')
    // The same keys again leave the cached tokens valid.
    if (this.#usableSet()?.text !== set.text) {
      this.#set = set
      this.#generation++
      this.#log('info', 'key set fetched', { keys: set.size })
    }
    this.#acceptedAtMs = performance.now()
    this.#backoff.reset()
    this.#reason = 'the key set is too old'
  }

  #scheduleNext(): void {
    if (this.#fetcher.isClosed) return
    const nowMs = performance.now()
    const delayMs =
      this.#usableSet() === undefined
        ? this.#backoff.take()
        : Math.min(this.#timing.refresh, this.#usableUntilMs() - nowMs)
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
export async function discoverKeySet(issuer: string, fetcher: Fetcher): Promise<Uint8Array> {
  const url = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
  const { issuer: named, jwks_uri: keySetUrl } = readJsonObject(await fetcher.get(url))
  if (named !== issuer) {
    const other =
      typeof named === 'string' ? `of another issuer: ${shownUrl(named)}` : 'of no issuer'
    throw new Error(`${shownUrl(url)} is ${other}`)
  }
  if (!isTrustworthy(keySetUrl))
    throw new Error(`${shownUrl(url)} names a jwks_uri that is neither https nor on loopback`)
  return fetcher.get(keySetUrl)
}
