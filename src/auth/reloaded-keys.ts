/** Keys from files or an issuer: the set in use, and when it is loaded again. */
import { HttpError, reasonOf } from '../errors.ts'
import type { Log } from '../telemetry/log.ts'
import type { Keys, KeySource, Timing } from './key-source.ts'

/** Loads that requests may cause in a row. */
const LOADS_IN_A_ROW = 3
/** Characters: an error of Node may quote a whole URL. */
const MAX_REASON = 400

/** Loads a key set. Rejects if there is none, or it must not be used, or `running` is aborted. */
export type Load = (running: AbortController) => Promise<Keys>

/**
 * jose's own remote set is not used: its cooldown counts only after a success, so every request
 * would reach an issuer that is down. All times are of the monotonic clock, in milliseconds.
 */
export class ReloadedKeys implements KeySource {
  /** True if the last load failed. */
  isStale = false
  readonly #load: Load
  readonly #log: Log
  readonly #timing: Timing
  /** Attempts without a usable set, since the last that succeeded. */
  #failures = 0
  /** The last set that was accepted, usable or not. */
  #set: Keys | undefined
  #loadedAtMs = performance.now()
  /** The attempt under way. It never rejects. */
  #attempt: Promise<void> | undefined
  #running = new AbortController()
  #isClosed = false
  /** When the bucket of loads that requests may cause is full again. */
  #fullAtMs = -Infinity
  #timer: NodeJS.Timeout | undefined
  #nextAtMs = 0
  /** Why there is no usable set, if there is none. The same failure is not logged again. */
  #reason = 'no key set has been fetched yet'

  /** `first` is a set that was read before. */
  constructor(load: Load, log: Log, timing: Timing, first?: Keys) {
    this.#load = load
    this.#log = log
    this.#timing = timing
    this.#set = first
  }

  get keys(): Keys | undefined {
    return performance.now() < this.#loadedAtMs + this.#timing.usable ? this.#set : undefined
  }

  get unavailable(): HttpError | undefined {
    if (this.keys !== undefined) return undefined
    const seconds = Math.max(1, Math.ceil((this.#nextAtMs - performance.now()) / 1000))
    return new HttpError('keysUnavailable', ['Retry-After', String(seconds)], this.#reason)
  }

  get ageSeconds(): number | undefined {
    // Keys from a file do not expire.
    if (this.keys === undefined || this.#timing.usable === Infinity) return undefined
    return (performance.now() - this.#loadedAtMs) / 1000
  }

  fetchFor(kid: unknown): Promise<void> | undefined {
    const set = this.keys
    const isKnown = typeof kid !== 'string' || (set?.kids?.has(kid) ?? true)
    if (set !== undefined && isKnown) return undefined
    // The set that is being loaded may have the key.
    if (this.#attempt !== undefined) return this.#attempt
    const { refill } = this.#timing
    const fullAtMs = Math.max(this.#fullAtMs, performance.now()) + refill
    if (fullAtMs > performance.now() + LOADS_IN_A_ROW * refill) return undefined
    // The load is taken out of the bucket, whatever its result will be.
    this.#fullAtMs = fullAtMs
    return this.#loadOnce()
  }

  start(): void {
    void this.#loadOnce()
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#timer)
    this.#running.abort(new Error('closed'))
  }

  /** One attempt at a time: all callers meanwhile wait for the same one. */
  #loadOnce(): Promise<void> {
    return (this.#attempt ??= this.#tryToLoad().finally(() => (this.#attempt = undefined)))
  }

  async #tryToLoad(): Promise<void> {
    if (this.#isClosed) return
    clearTimeout(this.#timer)
    this.#running = new AbortController()
    try {
      this.#accept(await this.#load(this.#running))
    } catch (error) {
      const reason = reasonOf(error).slice(0, MAX_REASON)
      if (!this.#isClosed && !(this.isStale && reason === this.#reason))
        this.#log.error('key set could not be read', { reason })
      this.#reason = reason
      this.isStale = true
    }
    if (!this.#isClosed) this.#scheduleNext()
  }

  #accept(set: Keys): void {
    // The same keys again leave the cached tokens valid.
    if (this.keys?.text !== set.text) {
      this.#set = set
      this.#log.info('key set read', { keys: set.size })
    }
    this.#loadedAtMs = performance.now()
    this.isStale = false
    this.#failures = 0
    this.#reason = 'the key set is too old'
  }

  #scheduleNext(): void {
    const { refresh, usable, retry, refill } = this.#timing
    const leftMs = this.#loadedAtMs + usable - performance.now()
    const retryMs = Math.min(retry * 2 ** this.#failures, refill)
    const delayMs = this.keys ? Math.min(refresh, leftMs) : retryMs
    if (!this.keys) this.#failures++
    this.#nextAtMs = performance.now() + delayMs
    this.#timer = setTimeout(() => void this.#loadOnce(), delayMs).unref()
  }
}
