import { readFileSync } from 'node:fs'
import type { RequestListener } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { Admin, type Checks, type Health, healthOf } from './api/admin.ts'
import { PageCache } from './api/page-cache.ts'
import { PlantResponder, type ResponderOptions } from './api/plant-responder.ts'
import { type KeySource, readKeys } from './auth/keys.ts'
import { Verifier } from './auth/verifier.ts'
import type { Config } from './config.ts'
import type { Adapter } from './http/adapter.ts'
import { type Address, ListenFailed, listen, type Listener } from './http/listen.ts'
import type { Responder } from './http/responder.ts'
import { HttpServer } from './http/server.ts'
import { Budget } from './limits/budget.ts'
import { FairQueue } from './limits/fair-queue.ts'
import { RateLimit } from './limits/rate-limit.ts'
import type { Log } from './telemetry/log.ts'
import { Metrics } from './telemetry/metrics.ts'
import type { Recovered } from './plants/store.ts'
import { addServiceMetrics, addTokenMetrics } from './service-metrics.ts'
import { CLOSED, type Lifecycle, openStore, StoreOpening } from './store-opening.ts'
import { loadSqlite } from './store/sqljs/sqlite.ts'

export interface ServiceHooks {
  readonly log: Log
  /** Memory and disk may differ: the process must end, and the next one starts from the disk. */
  readonly onFatal: (error: unknown) => void
  /** What messages call an option; by default, its own name. */
  readonly nameOf?: (option: string) => string
}

/** Where the service listens, as URLs or `unix:` paths, and what its store recovered. */
export interface Listening {
  readonly plants: string
  readonly admin: string | undefined
  readonly recovered: Recovered | undefined
}

/**
 * Calls of `open` at the same time share one attempt, and so do calls of `listen`. A failed attempt
 * leaves nothing open, and may be repeated.
 */
export interface PlantService {
  /**
   * Opens the store. Before it is open, requests wait; `listen` and requests open it too.
   * @throws DirectoryLocked, StoreCorrupt
   */
  open(): Promise<void>
  /** Opens the store and the listeners. @throws ListenFailed besides what `open` throws. */
  listen(): Promise<Listening>
  /**
   * Answers the requests under way, then closes everything. Never rejects: failures are logged.
   * After it `open`, `listen` and requests are refused.
   */
  close(): Promise<void>
  /** Serves plants in any `node:http` server. */
  readonly handler: RequestListener
  /** The checks of `/readyz`: `ok` once the service is open, has keys and can store plants. */
  health(): Health
  /**
   * What `/metrics` answers, without the figures of the process: Prometheus' text format 0.0.4,
   * whose type is `text/plain; version=0.0.4; charset=utf-8`.
   */
  metrics(): string
}

/** For all request bodies, and once more for all lists that clients have not taken yet. */
const BUDGET_BYTES = 64 * 1024 * 1024
const TIMEOUTS = { headersMs: 10_000, requestMs: 30_000, inactiveMs: 60_000, checkMs: 1000 }
/** Open files besides the connections: of the admin listener, the process and the store. */
const OTHER_FILES = 96
/** Load balancers keep an idle connection for 60 s and more, and must be the first to close it. */
const SHORT_KEEP_ALIVE_SECONDS = 60

/** Something to do when a service ends, with its name in the log if it fails. */
type Step = readonly [name: string, run: () => unknown]

/** Wires tokens, storage and HTTP. */
export class Service implements Omit<PlantService, 'handler'> {
  readonly #config: Config
  readonly #log: Log
  readonly #nameOf: (option: string) => string
  readonly #keys: KeySource
  readonly #store: StoreOpening
  readonly #pages = new PageCache()
  readonly #responder: Responder
  readonly #http: HttpServer
  #adapter: Adapter | undefined
  readonly #lifecycle: Lifecycle = { state: 'starting' }
  readonly #metrics = new Metrics()
  #storeMetrics = new Metrics()
  #listener: Listener | undefined
  #admin: Admin | undefined
  /** The attempt to listen that is under way, or has succeeded. */
  #listening: Promise<Listening> | undefined
  #closed: Promise<void> | undefined

  /** @throws ConfigError if the keys cannot be used. */
  constructor(config: Config, { log, onFatal, nameOf = (option) => option }: ServiceHooks) {
    this.#config = config
    this.#log = log
    this.#nameOf = nameOf
    const { keys, issuer, openKeys = readKeys(keys, issuer) } = config
    this.#keys = openKeys(log)
    const queue = new FairQueue()
    this.#store = new StoreOpening({
      open: () => {
        // While the store was closed, another process may have created plants.
        this.#pages.clear()
        // Each attempt registers its metrics again.
        const metrics = (this.#storeMetrics = new Metrics())
        return openStore(config, { log, onFatal, metrics, queue })
      },
      // Only now, because a failed attempt must leave nothing running.
      onServing: () => this.#keys.start?.(),
      lifecycle: this.#lifecycle,
      log,
    })
    const { rateLimit, maxBodyBytes, logRequests } = config
    const verifier = new Verifier(this.#keys, config)
    const options: ResponderOptions = {
      store: this.#store,
      verifier,
      rateLimit: rateLimit === undefined ? undefined : new RateLimit(rateLimit),
      pages: this.#pages,
      queue,
      bodies: new Budget(BUDGET_BYTES),
      responses: new Budget(BUDGET_BYTES),
      maxBodyBytes,
      scopes: { read: config.readScope, write: config.writeScope },
      lifecycle: this.#lifecycle,
      metrics: this.#metrics,
      log,
      logRequests,
    }
    this.#responder = new PlantResponder(options)
    this.#http = new HttpServer(this.#responder, {
      ...TIMEOUTS,
      keepAliveMs: config.keepAlive * 1000,
    })
    this.#http.server.on('connection', queue.connectionArrived)
    const mountedActive = (): number => this.#adapter?.active ?? 0
    const checks = (): Checks => this.#checks()
    addServiceMetrics(options, this.#http, mountedActive, checks)
    addTokenMetrics(this.#metrics, verifier, this.#keys)
  }

  /**
   * Returns a handler for other servers. The caller passes the adapter in: so `serve` does not load
   * it.
   */
  mount(create: (responder: Responder) => Adapter): RequestListener {
    this.#adapter = create(this.#responder)
    return this.#adapter.handler
  }

  // Arrow functions, so that an application may destructure the service.
  readonly open = (): Promise<void> => this.#store.openToServe()

  readonly close = (): Promise<void> => (this.#closed ??= this.#stop())

  readonly listen = async (): Promise<Listening> => {
    if (this.#isDraining) throw new ListenFailed(CLOSED)
    return (this.#listening ??= this.#tryToListen())
  }

  readonly health = (): Health => healthOf(this.#checks())

  readonly metrics = (): string => this.#metrics.render() + this.#storeMetrics.render()

  get #isDraining(): boolean {
    return this.#lifecycle.state === 'draining'
  }

  async #tryToListen(): Promise<Listening> {
    try {
      return await this.#listenOnBoth()
    } catch (error) {
      await runSteps(this.#closeSteps, this.#log)
      this.#listening = undefined
      throw error
    }
  }

  async #listenOnBoth(): Promise<Listening> {
    const { etcd, adminListen, listen: address } = this.#config
    // Compiling SQLite takes longest, and runs beside the rest.
    if (!etcd) void loadSqlite()
    // Before the store, so that probes are answered during a recovery.
    const admin = adminListen === 'off' ? undefined : await this.#listenForAdmin(adminListen)
    const { recovered } = await this.#store.open()
    if (this.#isDraining) throw new ListenFailed(CLOSED)
    this.#warn()
    this.#http.server.maxConnections = this.#config.maxConnections
    this.#listener = await listen(this.#http.server, address, this.#nameOf('listen'))
    await this.#store.openToServe()
    return { plants: this.#listener.url, admin, recovered }
  }

  #warn(): void {
    const [openFiles, needed] = [openFilesMax(), this.#config.maxConnections + OTHER_FILES]
    if (openFiles < needed) {
      const name = this.#nameOf('maxConnections')
      this.#log.info(`the limit of open files is low for ${name}`, { openFiles, needed })
    }
    const seconds = this.#config.keepAlive
    if (seconds < SHORT_KEEP_ALIVE_SECONDS) {
      const name = this.#nameOf('keepAlive')
      const short = `${name} is short: a load balancer may use a connection that is closing`
      this.#log.info(short, { seconds })
    }
  }

  #listenForAdmin(address: Address): Promise<string> {
    this.#admin = new Admin(() => this.#checks(), this.metrics, this.#log)
    return this.#admin.listen(address, this.#nameOf('adminListen'))
  }

  #checks(): Checks {
    const { state } = this.#lifecycle
    const absence = this.#keys.unavailable
    return {
      service: state === 'serving' ? undefined : state,
      keys: absence && `no usable key set: ${String(absence.cause)}`,
      storage: this.#store.unavailableReason(),
    }
  }

  async #stop(): Promise<void> {
    this.#lifecycle.state = 'draining'
    // A pending listen would open its listener after the stop.
    await this.#listening?.catch(() => {})
    const [listener, http] = [this.#listener, this.#http]
    const delayMs = this.#config.drainDelay * 1000
    const steps: readonly Step[] = [
      ['serve through the drain delay', () => listener && sleep(delayMs)],
      ['accept the connections that are made', () => listener && http.acceptAll()],
      ['accept no more', () => listener?.stop()],
      ['answer what is under way', () => this.#drain()],
      ...this.#closeSteps,
      ['close the keys', () => this.#keys.close?.()],
    ]
    await runSteps(steps, this.#log)
  }

  /** For a stop, and for a `listen` that fails. */
  get #closeSteps(): readonly Step[] {
    return [
      ['close the server', () => this.#http.server.close()],
      ['release the store', () => this.#store.close()],
      ['close the admin listener', () => this.#admin?.close()],
    ]
  }

  async #drain(): Promise<void> {
    const { shutdownTimeout: timeoutSeconds } = this.#config
    const parts = [this.#http, this.#adapter]
    const left = await Promise.all(parts.map((part) => part?.drain(timeoutSeconds * 1000) ?? 0))
    const connections = left.reduce((sum, each) => sum + each, 0)
    const message = 'requests still under way at the deadline were given up'
    if (connections > 0) this.#log.error(message, { connections, timeoutSeconds })
  }
}

/** Runs the steps in order. After one that fails it goes on: the others must close their parts. */
async function runSteps(steps: readonly Step[], log: Log): Promise<void> {
  for (const [step, run] of steps) {
    try {
      await run()
    } catch (error) {
      log.error('a step failed, and the others still run', { step, error })
    }
  }
}

/** Infinity without a limit. Node has raised the soft limit to the hard one at its start. */
function openFilesMax(): number {
  try {
    const limits = readFileSync('/proc/self/limits', 'latin1')
    return Number(/^Max open files +(\d+)/m.exec(limits)?.[1] ?? Infinity)
  } catch {
    return Infinity
  }
}
