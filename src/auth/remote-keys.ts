import type { CompactJWSHeaderParameters, CryptoKey } from 'jose'
import { JWKSNoMatchingKey } from 'jose/errors'
import { HttpError, reasonOf } from '../errors.ts'
import { Fetcher, type Get } from './fetch.ts'
import { AT_ONCE_IF_FAST, type KeySet, PUBLIC_ALGORITHMS, readKeySetInSteps } from './key-set.ts'
import type { Wait } from './verification-queue.ts'
import type { KeyFetches, KeyLog, KeySource, Timing } from './key-source.ts'

/** Characters: an error of Node may quote a whole URL. */
const MAX_REASON = 400

/**
 * Keys that are fetched from an issuer. jose's own remote set is not used: its cooldown counts only
 * after a success, so that every request would reach an issuer that is down. Times are of the
 * monotonic clock, in milliseconds.
 */
export class RemoteKeys implements KeySource {
  readonly algorithms = PUBLIC_ALGORITHMS
  readonly #load: (get: Get) => Promise<Uint8Array>
  readonly #log: KeyLog
  readonly #timing: Timing
  readonly #fetcher: Fetcher
  #set: KeySet | undefined
  #usableUntil = 0
  #generation = 0
  #running: Promise<void> | undefined
  #attemptedAt = -Infinity
  #failures = 0
  #succeeded = 0
  #failed = 0
  #reason = 'no key set has been fetched yet'
  #flaws = ''
  #timer: NodeJS.Timeout | undefined
  #nextAt = Infinity

  /** `load` fetches the key set, and may first fetch where it is. */
  constructor(load: (get: Get) => Promise<Uint8Array>, log: KeyLog, timing: Timing) {
    this.#load = load
    this.#log = log
    this.#timing = timing
    this.#fetcher = new Fetcher(timing.fetch)
  }

  get atOnce(): number {
    // Without a set, tokens only come to wait for one.
    return this.#set?.atOnce ?? AT_ONCE_IF_FAST
  }

  get generation(): number {
    this.#usable()
    return this.#generation
  }

  async key(header: CompactJWSHeaderParameters, wait: Wait): Promise<CryptoKey> {
    const set = this.#usable()
    try {
      if (set !== undefined) return await set.find(header)
    } catch (error) {
      if (!(error instanceof JWKSNoMatchingKey)) throw error
    }
    // No set, or a key that it does not know: perhaps the issuer has changed its keys.
    const fetching = this.#attempt(this.#timing.cooldown)
    if (fetching !== undefined) await wait(fetching)
    const latest = this.#usable()
    if (latest === undefined) throw this.#unavailable()
    return latest.find(header)
  }

  unavailableReason(): string | undefined {
    return this.#usable() === undefined ? `no usable key set: ${this.#reason}` : undefined
  }

  get fetches(): KeyFetches {
    const ageMs =
      this.#usable() === undefined
        ? undefined
        : performance.now() - this.#usableUntil + this.#timing.usable
    return { succeeded: this.#succeeded, failed: this.#failed, ageMs }
  }

  start(): void {
    void this.#attempt(0)
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#fetcher.close()
  }

  /**
   * The set at hand, dropped once it is too old: what was verified with it is then not remembered
   * either.
   */
  #usable(): KeySet | undefined {
    if (this.#set !== undefined && performance.now() >= this.#usableUntil) {
      this.#set = undefined
      this.#generation++
    }
    return this.#set
  }

  #unavailable(): HttpError {
    const next = Math.min(this.#nextAt, this.#attemptedAt + this.#timing.cooldown)
    const seconds = Math.max(1, Math.ceil((next - performance.now()) / 1000))
    return new HttpError('keysUnavailable', ['Retry-After', String(seconds)], this.#reason)
  }

  /**
   * One at a time: who comes while it runs waits for it. None while the last one is younger than
   * this. Never rejects.
   */
  #attempt(cooldown: number): Promise<void> | undefined {
    if (this.#running !== undefined) return this.#running
    if (performance.now() < this.#attemptedAt + cooldown) return undefined
    this.#running = this.#fetchSet().finally(() => (this.#running = undefined))
    return this.#running
  }

  async #fetchSet(): Promise<void> {
    clearTimeout(this.#timer)
    this.#attemptedAt = performance.now()
    try {
      this.#accept(await readKeySetInSteps(await this.#load(this.#fetcher.get)))
    } catch (error) {
      this.#failures++
      this.#failed++
      this.#reason = reasonOf(error).slice(0, MAX_REASON)
      if (!this.#fetcher.closed)
        this.#log('error', 'key set could not be fetched', { reason: this.#reason })
    }
    this.#schedule()
  }

  /**
   * @throws Error when no key is usable: the set is as good as none, and does not replace one that
   * is better.
   */
  #accept(set: KeySet): void {
    const flaws = set.flaws.join('; ')
    if (flaws !== this.#flaws && flaws !== '')
      this.#log('error', 'keys of the key set are left out', { flaws })
    this.#flaws = flaws
    if (set.size === 0) throw new Error('the key set holds no key that can verify a token')
    // The same keys again leave remembered tokens as they are.
    if (this.#usable()?.text !== set.text) {
      this.#set = set
      this.#generation++
      this.#log('info', 'key set fetched', { keys: set.size })
    }
    this.#usableUntil = performance.now() + this.#timing.usable
    this.#failures = 0
    this.#succeeded++
    this.#reason = 'the key set is too old'
  }

  #schedule(): void {
    if (this.#fetcher.closed) return
    const { refresh, retry, cooldown } = this.#timing
    const now = performance.now()
    const pause =
      this.#usable() === undefined
        ? Math.min(retry * 2 ** (this.#failures - 1), cooldown)
        : Math.min(refresh, this.#usableUntil - now)
    this.#nextAt = now + pause
    this.#timer = setTimeout(() => void this.#attempt(0), pause).unref()
  }
}
