/* Opens the service's store when it is first needed, and closes it. */

import type { Config } from './config.ts'
import type { Log } from './telemetry/log.ts'
import { type PlantStore, type Recovered, StoreUnavailable } from './plants/store.ts'
import { IN_MEMORY, inMemory } from './store/sqljs/in-memory.ts'
import { SqljsStore, type SqljsStoreOptions } from './store/sqljs/store.ts'

/** How far a service has come. `draining` begins with a stop, and no state follows it. */
export interface Lifecycle {
  state: 'starting' | 'serving' | 'draining'
}

/** After a failed attempt, requests make the next one after this time: it scans a directory. */
const RETRY_MS = 1000
const NOT_OPENED = 'the store could not be opened'
export const CLOSED = 'the service is closed: create another one'

/** etcd recovers by itself: its store has no `recovered`. */
type OpenStore = PlantStore & { readonly recovered?: Recovered }

/**
 * Opens the store that the configuration names. The code for etcd is loaded only if it is needed.
 * @throws DirectoryLocked, StoreCorrupt
 */
export async function openStore(
  { etcd, data, maxDataBytes }: Pick<Config, 'etcd' | 'data' | 'maxDataBytes'>,
  hooks: Pick<SqljsStoreOptions, 'log' | 'onFatal' | 'metrics' | 'queue'>,
): Promise<OpenStore> {
  const embedded = data === IN_MEMORY ? inMemory : { directory: data }
  if (!etcd) return SqljsStore.open({ ...embedded, maxDataBytes, ...hooks })
  const { EtcdStore } = await import('./store/etcd/store.ts')
  return EtcdStore.open(etcd, hooks.log)
}

type State =
  | { readonly name: 'closed' }
  | { readonly name: 'opening'; readonly attempt: Promise<OpenStore> }
  | { readonly name: 'open'; readonly store: OpenStore }
  | { readonly name: 'closing'; readonly store: OpenStore; readonly closed: Promise<void> }

interface StoreOpeningOptions {
  readonly open: () => Promise<OpenStore>
  /** Called once, when the service begins to serve. */
  readonly onServing: () => void
  readonly lifecycle: Lifecycle
  readonly log: Log
}

/** After a failed attempt a later request tries again. During a stop the store is not opened. */
export class StoreOpening {
  readonly #options: StoreOpeningOptions
  #state: State = { name: 'closed' }
  #retryAtMs = -Infinity

  constructor(options: StoreOpeningOptions) {
    this.#options = options
  }

  get isOpen(): boolean {
    return this.#state.name === 'open'
  }

  /** The store. @throws StoreUnavailable unless it is open. */
  get current(): PlantStore {
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

  /** Opens the store for a service that serves from then on, until it drains. */
  async openToServe(): Promise<void> {
    const { lifecycle, onServing } = this.#options
    await this.open()
    // A `listen` that failed may be closing it.
    if (this.#state.name !== 'open') return this.openToServe()
    if (lifecycle.state !== 'starting') return
    lifecycle.state = 'serving'
    onServing()
  }

  /**
   * @throws StoreUnavailable if the service drains, the attempt fails, or the last one failed less
   * than RETRY_MS ago.
   */
  async openForRequest(): Promise<void> {
    const beginsAttempt = this.#state.name !== 'opening'
    if (this.#isDraining) throw new StoreUnavailable(CLOSED)
    if (beginsAttempt && performance.now() < this.#retryAtMs) throw new StoreUnavailable(NOT_OPENED)
    try {
      await this.openToServe()
    } catch (error) {
      if (beginsAttempt) this.#options.log.error(NOT_OPENED, { error })
      throw new StoreUnavailable(NOT_OPENED, { cause: error })
    }
  }

  /** Closes the store, unless the service serves. */
  async close(): Promise<void> {
    // If it fails, its callers get the error. If it succeeds, the service may serve: then the store
    // stays open.
    if (this.#state.name === 'opening') await this.#state.attempt.catch(() => {})
    if (this.#state.name === 'open' && this.#options.lifecycle.state !== 'serving') {
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
