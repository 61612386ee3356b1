import type { Lifecycle } from '../ops/lifecycle.ts'
import type { Log } from '../ops/log.ts'
import { StoreUnavailable } from '../plants/store.ts'
import type { OpenStore } from './open.ts'

type State =
  | { readonly name: 'closed' }
  | { readonly name: 'opening'; readonly attempt: Promise<OpenStore> }
  | { readonly name: 'open'; readonly store: OpenStore }
  | { readonly name: 'closing'; readonly store: OpenStore; readonly closed: Promise<void> }

/** Requests try to open the store this often at most: an attempt locks and scans a directory. */
const RETRY_MS = 1000
const NOT_OPENED = 'the store could not be opened'
export const CLOSED = 'the service is closed: create another one'

interface LazyStoreOptions {
  readonly open: () => Promise<OpenStore>
  /** Called once, when `keepOpen` first succeeds. */
  readonly onKept: () => void
  readonly lifecycle: Readonly<Lifecycle>
  readonly log: Log
}

/**
 * The service's store. It is opened when it is first needed. After a failed attempt a later request
 * tries again. During a stop it is not opened.
 */
export class LazyStore {
  readonly #options: LazyStoreOptions
  #state: State = { name: 'closed' }
  #retryAtMs = -Infinity
  #isKept = false

  constructor(options: LazyStoreOptions) {
    this.#options = options
  }

  get isOpen(): boolean {
    return this.#state.name === 'open'
  }

  /** @throws StoreUnavailable if it is not open. */
  get current(): OpenStore {
    if (this.#state.name === 'open') return this.#state.store
    throw new StoreUnavailable(CLOSED)
  }

  unavailableReason(): string | undefined {
    return 'store' in this.#state ? this.#state.store.unavailableReason() : 'not recovered yet'
  }

  /** Opens the store until `close`. Calls at the same time share one attempt. */
  open(): Promise<OpenStore> {
    const state = this.#state
    if (state.name === 'open') return Promise.resolve(state.store)
    if (state.name === 'opening') return state.attempt
    if (state.name === 'closing') return state.closed.catch(() => {}).then(() => this.open())
    if (this.#isDraining) return Promise.reject(new StoreUnavailable(CLOSED))
    const attempt = this.#tryToOpen()
    this.#state = { name: 'opening', attempt }
    return attempt
  }

  /** Opens the store and keeps it open: until the service drains, `close` does nothing. */
  async keepOpen(): Promise<void> {
    await this.open()
    if (!this.#isKept) this.#options.onKept()
    this.#isKept = true
  }

  /**
   * @throws StoreUnavailable if the service drains, the attempt fails, or the last one failed less
   * than RETRY_MS ago.
   */
  async openForRequest(): Promise<void> {
    const isFirst = this.#state.name !== 'opening'
    if (this.#isDraining) throw new StoreUnavailable(CLOSED)
    if (isFirst && performance.now() < this.#retryAtMs) throw new StoreUnavailable(NOT_OPENED)
    try {
      await this.keepOpen()
    } catch (error) {
      if (isFirst) this.#options.log.error(NOT_OPENED, { error })
      throw new StoreUnavailable(NOT_OPENED, { cause: error })
    }
  }

  /** Closes the store, unless `keepOpen` was called and the service does not drain. */
  async close(): Promise<void> {
    // Callers of a failed attempt know the error. A successful one may be for `keepOpen`.
    if (this.#state.name === 'opening') await this.#state.attempt.catch(() => {})
    if (this.#isKept && !this.#isDraining) return
    if (this.#state.name === 'open') {
      const { store } = this.#state
      const closed = store.close().finally(() => (this.#state = { name: 'closed' }))
      this.#state = { name: 'closing', store, closed }
    }
    if (this.#state.name === 'closing') await this.#state.closed
  }

  get #isDraining(): boolean {
    return this.#options.lifecycle.state === 'draining'
  }

  async #tryToOpen(): Promise<OpenStore> {
    try {
      const store = await this.#options.open()
      this.#state = { name: 'open', store }
      return store
    } catch (error) {
      this.#state = { name: 'closed' }
      this.#retryAtMs = performance.now() + RETRY_MS
      throw error
    }
  }
}
