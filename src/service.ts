/* Wires tokens, storage and HTTP, and has the order of a start and of a stop. */

import { readFileSync } from 'node:fs'
import type { RequestListener, Server } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { adminServer, type Checks, type Health, healthOf } from './api/admin.ts'
import { PageCache } from './api/page-cache.ts'
import { Router, type RouterOptions } from './api/router.ts'
import { rateLimitOf } from './api/rate-limit.ts'
import { KeySource } from './auth/key-source.ts'
import { Verifier } from './auth/verifier.ts'
import type { Adapter } from './http/adapter.ts'
import type { Responder } from './http/exchange.ts'
import { listen, type Listener } from './http/listen.ts'
import { HttpServer } from './http/server.ts'
import { Budget } from './limits/budget.ts'
import { FairQueue } from './limits/fair-queue.ts'
import type { ServiceConfig } from './settings/read.ts'
import type { Log } from './telemetry/log.ts'
import { Metrics } from './telemetry/metrics.ts'
import { type PlantStore, type Recovered, StoreUnavailable } from './plants/store.ts'
import { type OpenStore, openStore } from './store/open.ts'
import { VERSION } from './version.ts'

export interface ServiceOptions extends ServiceConfig {
  readonly log: Log
  /** Memory and disk may differ: the process must end, and the next one starts from the disk. */
  readonly onFatal: (error: unknown) => void
  /** What messages call an option. */
  readonly nameOf: (option: string) => string
}

/** Where the service listens, as URLs or `unix:` paths, and what its store recovered. */
export interface Listening {
  readonly plants: string
  readonly admin: string | undefined
  readonly recovered: Recovered | undefined
}

/** What an application embeds. */
export type PlantService = Pick<Service, 'open' | 'listen' | 'close' | 'health' | 'metrics'> & {
  /** Serves plants in any `node:http` server. */
  readonly handler: RequestListener
}

/** For all request bodies, and once more for all lists that clients have not taken yet. */
const BUDGET_BYTES = 64 * 1024 * 1024
/** From the first byte of a request to the end of its headers, and of its body; else 408. */
const TIMEOUTS = { headersTimeout: 10_000, requestTimeout: 30_000 }
const INACTIVE_MS = 60_000
/** Open files besides the connections: of the admin listener, the process and the store. */
const OTHER_FILES = 96
/** Load balancers keep an idle connection for 60 s and more, and must be the first to close it. */
const SHORT_KEEP_ALIVE_SECONDS = 60

export const CLOSED = 'the service is closed: create another one'
const NOT_OPEN =
  'requests are refused until the store is open: call open() or listen() first, and wait for it'

/**
 * The service without its adapter for other servers: so `serve` does not load that. Further calls
 * of `open` and `listen` share the first one. One that fails closes the service.
 */
export class Service {
  readonly #options: ServiceOptions
  readonly #keys: KeySource
  readonly #responder: Responder
  readonly #http: HttpServer
  #adapter: Adapter | undefined
  /** `draining` begins with a stop, and no state follows it. */
  #state: 'starting' | 'serving' | 'draining' = 'starting'
  readonly #metrics = new Metrics()
  #store: OpenStore | undefined
  /** A stop waits for this, and then closes the store. */
  #opening: Promise<void> | undefined
  #isRefusalLogged = false
  #listener: Listener | undefined
  #admin: Server | undefined
  #adminListener: Listener | undefined
  #listening: Promise<Listening> | undefined
  #closed: Promise<void> | undefined

  constructor(options: ServiceOptions) {
    this.#options = options
    const { log, rateLimit } = options
    this.#keys = new KeySource(options.keys, log)
    const queue = new FairQueue()
    const routerOptions: RouterOptions = {
      ...options,
      store: () => this.#openedStore(),
      verifier: new Verifier(this.#keys, options, queue),
      rateLimit: rateLimit === undefined ? undefined : rateLimitOf(rateLimit),
      pageCache: new PageCache(),
      queue,
      bodies: new Budget(BUDGET_BYTES),
      responses: new Budget(BUDGET_BYTES),
      scopes: { read: options.readScope, write: options.writeScope },
      isDraining: () => this.#state === 'draining',
      metrics: this.#metrics,
    }
    this.#responder = new Router(routerOptions)
    const timeouts = { ...TIMEOUTS, keepAliveTimeout: options.keepAlive * 1000 }
    this.#http = new HttpServer(this.#responder, INACTIVE_MS, timeouts)
    this.#http.server.on('connection', () => (queue.hasArrival = true))
    this.#addMetrics(routerOptions)
  }

  /** Adds the handler for other servers. Returns what an application may use. */
  mount(create: (responder: Responder) => Adapter): PlantService {
    this.#adapter = create(this.#responder)
    const { open, listen, close, health, metrics } = this
    return { open, listen, close, health, metrics, handler: this.#adapter.handler }
  }

  // Arrow functions: an application has them without this object.
  /**
   * Opens the store. Until then requests get 503.
   * @throws DirectoryLocked, StoreCorrupt
   */
  readonly open = (): Promise<void> => this.#start(() => (this.#opening ??= this.#openStore()))

  /**
   * Opens the store and the listeners.
   * @throws ListenFailed besides what `open` throws.
   */
  readonly listen = (): Promise<Listening> =>
    this.#start(() => (this.#listening ??= this.#listenOnBoth()))

  /**
   * Answers the requests under way, then closes everything. Never rejects: failures are logged.
   * After it `open`, `listen` and requests are refused.
   */
  readonly close = (): Promise<void> => (this.#closed ??= this.#stop())

  /** The checks of `/readyz`: `ok` once the service is open, has keys and can store plants. */
  readonly health = (): Health => healthOf(this.#checks())

  /**
   * What `/metrics` answers, without the figures of the process: Prometheus' text format 0.0.4,
   * whose type is `text/plain; version=0.0.4; charset=utf-8`.
   */
  readonly metrics = (): string => this.#metrics.render()

  /** @throws StoreUnavailable until the store is open, and after a stop. */
  #openedStore(): PlantStore {
    if (this.#store) return this.#store
    if (this.#state === 'draining') throw new StoreUnavailable(CLOSED)
    if (!this.#isRefusalLogged) this.#options.log.error(NOT_OPEN)
    this.#isRefusalLogged = true
    throw new StoreUnavailable(NOT_OPEN)
  }

  /** Serves once it has started. A start that fails closes what it opened, and the service. */
  async #start<T>(run: () => Promise<T>): Promise<T> {
    try {
      if (this.#state === 'draining') throw new StoreUnavailable(CLOSED)
      const started = await run()
      if (this.#state === 'starting') {
        this.#state = 'serving'
        this.#keys.start()
      }
      return started
    } catch (error) {
      await this.close()
      throw error
    }
  }

  async #openStore(): Promise<void> {
    const { log, onFatal } = this.#options
    this.#store = await openStore(this.#options, { log, onFatal, metrics: this.#metrics })
    if (this.#state === 'draining') throw new StoreUnavailable(CLOSED)
  }

  async #listenOnBoth(): Promise<Listening> {
    const { adminListen, listen: address, keepAlive: seconds, maxConnections } = this.#options
    const { log, nameOf, socketMode } = this.#options
    // Before the store, so that probes are answered during a recovery.
    if (adminListen !== 'off') {
      this.#admin = adminServer(() => this.#checks(), this.metrics, log)
      const option = nameOf('adminListen')
      this.#adminListener = await listen(this.#admin, adminListen, option, socketMode)
    }
    await (this.#opening ??= this.#openStore())
    const [openFiles, needed] = [openFilesMax(), maxConnections + OTHER_FILES]
    const isLow = `the limit of open files is low for ${nameOf('maxConnections')}`
    if (openFiles < needed) log.info(isLow, { openFiles, needed })
    const isShort = `${nameOf('keepAlive')} is short: a load balancer may use a closing connection`
    if (seconds < SHORT_KEEP_ALIVE_SECONDS) log.info(isShort, { seconds })
    this.#http.server.maxConnections = maxConnections
    this.#listener = await listen(this.#http.server, address, nameOf('listen'), socketMode)
    const [plants, admin] = [this.#listener.url, this.#adminListener?.url]
    return { plants, admin, recovered: this.#store?.recovered }
  }

  /** Each is read during a scrape, and costs nothing before. No label is what a client chose. */
  #addMetrics({ metrics, log, bodies, responses, verifier: { counts } }: RouterOptions): void {
    const [http, keys] = [this.#http, this.#keys]
    const ready = '1 if this check of /readyz passes, else 0.'
    const dropped = 'Log lines that were lost because their reader was too slow.'
    const active = 'Requests that are being served or wait for their turn on their connection.'
    const refused = 'Connections that were closed at once because there were too many.'
    const ofBodies = 'Request bodies, until they are stored and answered.'
    const ofResponses = 'Pages above 64 KiB, and what parts of lists have above that, until taken.'
    const verified = 'Tokens verified, by result.'
    const cached = 'Requests whose token was in the cache.'
    const stale = '1 if the last version of the keys could not be read or used, else 0.'
    const age = 'Time since the last successful fetch of the key set.'
    const activeNow = () => http.active + (this.#adapter?.active ?? 0)
    metrics.add('gauge', 'plant_store_build_info', 'Always 1; the labels name what runs.', () => [
      [{ version: VERSION, node: process.version }, 1],
    ])
    metrics.add('gauge', 'plant_store_ready', ready, () =>
      Object.entries(this.#checks()).map(([check, why]) => [{ check }, why === undefined ? 1 : 0]),
    )
    metrics.add('counter', 'plant_store_log_lines_dropped_total', dropped, log.dropped)
    metrics.add('gauge', 'http_server_active_requests', active, activeNow)
    metrics.add('gauge', 'plant_store_connections', 'Open connections.', () => http.sockets.length)
    metrics.add('counter', 'plant_store_connections_refused_total', refused, () => http.refused)
    metrics.add('gauge', 'plant_store_held_body_bytes', ofBodies, () => bodies.held)
    metrics.add('gauge', 'plant_store_held_response_bytes', ofResponses, () => responses.held)
    metrics.add('counter', 'plant_store_tokens_verified_total', verified, () => [
      [{ result: 'accepted' }, counts.accepted],
      [{ result: 'refused' }, counts.refused],
    ])
    metrics.add('counter', 'plant_store_token_cache_hits_total', cached, () => counts.cached)
    // A secret has no age and is never stale; a set has an age if it was fetched and is usable.
    metrics.add('gauge', 'plant_store_keys_stale', stale, () => keys.isStale)
    metrics.add('gauge', 'plant_store_key_set_age_seconds', age, () => keys.ageSeconds)
  }

  #checks(): Checks {
    const absence = this.#keys.unavailable
    return {
      service: this.#state === 'serving' ? undefined : this.#state,
      keys: absence && `no usable key set: ${absence.message}`,
      storage: this.#store ? this.#store.unavailableReason() : 'not recovered yet',
    }
  }

  async #stop(): Promise<void> {
    this.#state = 'draining'
    // A pending listen would open its listener after the stop, and a pending open its store.
    await Promise.allSettled([this.#listening, this.#opening])
    const [listener, http, store] = [this.#listener, this.#http, this.#store]
    const { drainDelay, log, shutdownTimeout } = this.#options
    // One deadline for all that waits for clients. New connections are accepted for half of it.
    const acceptMs = (shutdownTimeout * 1000) / 2
    const deadlineMs = performance.now() + (drainDelay + shutdownTimeout) * 1000
    const steps: Readonly<Record<string, () => unknown>> = {
      'serve through the drain delay': () => listener && sleep(drainDelay * 1000),
      'accept the connections that are made': () => listener && http.acceptAll(acceptMs),
      'accept no more': () => listener?.stop(),
      'answer what is under way': () => this.#drain(deadlineMs),
      // It also ends Node's timer for late requests.
      'close the server': () => http.server.close(),
      'refuse requests of other servers': () => (this.#store = undefined),
      'release the store': () => store?.close(),
      'close the admin listener': () => this.#adminListener?.stop(),
      'close admin connections': () => this.#admin?.closeAllConnections(),
      'close the admin server': () => this.#admin?.close(),
      'close the keys': () => this.#keys.close(),
    }
    for (const [step, run] of Object.entries(steps)) {
      try {
        await run()
      } catch (error) {
        // The others must still close their parts.
        log.error('a step failed, and the others still run', { step, error })
      }
    }
  }

  async #drain(deadlineMs: number): Promise<void> {
    const { log, shutdownTimeout: timeoutSeconds } = this.#options
    const leftMs = deadlineMs - performance.now()
    const parts = [this.#http.drain(leftMs), this.#adapter?.drain(leftMs)]
    const [own = 0, mounted = 0] = await Promise.all(parts)
    const connections = own + mounted
    const message = 'requests still under way at the deadline were given up'
    if (connections > 0) log.error(message, { connections, timeoutSeconds })
  }
}

/** NaN if there is no limit, or none is known. Node has raised the soft limit to the hard one. */
function openFilesMax(): number {
  try {
    return Number(/^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'latin1'))?.[1])
  } catch {
    return NaN
  }
}
