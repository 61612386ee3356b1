import type { RequestListener, Server } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { readBearer } from './auth/bearer.ts'
import type { Caller } from './auth/caller.ts'
import { createKeySource, type KeyLog } from './auth/keys.ts'
import { Verifier } from './auth/verifier.ts'
import type { Address, Config, ServiceConfig } from './config.ts'
import { ClientGone, conditions, HttpError } from './errors.ts'
import { addServiceMetrics } from './service-metrics.ts'
import { type Checks, createAdminServer, livez, readyz, textResponse } from './http/admin.ts'
import { MemoryBudget } from './http/budget.ts'
import type { ConnectionHost } from './http/connection.ts'
import { RequestDurations } from './http/durations.ts'
import type { Exchange, RequestRecord } from './http/exchange.ts'
import { ListenFailed, listen, type Listener } from './http/listen.ts'
import { openApiResponse } from './http/openapi.ts'
import { PageCache } from './http/page-cache.ts'
import { createPlant, listPlants } from './http/plants.ts'
import { RateLimit } from './http/rate-limit.ts'
import { type HttpResponse, errorResponse } from './http/response.ts'
import { createRouter } from './http/router.ts'
import { Connections, createHttpServer } from './http/server.ts'
import { connectionsWithinLimit } from './ops/descriptors.ts'
import { FairQueue } from './ops/fair-queue.ts'
import { type Log, ownerHash } from './ops/log.ts'
import { Metrics, METRICS_TYPE } from './ops/metrics.ts'
import { addProcessMetrics, watchEventLoop } from './ops/process.ts'
import {
  type PlantStore,
  PlantTooLarge,
  type Recovered,
  StoreFull,
  StoreUnavailable,
} from './plants/store.ts'
import { loadSqlite } from './store/sqljs/database.ts'
import type { StoreLog } from './store/sqljs/keeper.ts'
import { SqljsStore } from './store/sqljs/store.ts'

export interface ServiceHooks {
  readonly log: Log
  /** Memory and disk may differ: the process must end, and the next one starts from the disk. */
  readonly onFatal: (error: unknown) => void
}

/** Where the service listens, as URLs or `unix:` paths, and what it found in its storage. */
export interface Listening {
  readonly plants: string
  readonly admin: string | undefined
  readonly recovered: Recovered | undefined
}

/**
 * Calls of `open`, and of `listen`, that come while one is under way share its attempt. A failed
 * attempt leaves nothing open, and may be repeated.
 */
export interface PlantService {
  /**
   * Opens the store. `listen` does it too; before it is done, requests wait. @throws
   * DirectoryLocked, StoreCorrupt
   */
  open(): Promise<void>
  /** Opens the store and the listeners. @throws ListenFailed besides what `open` throws. */
  listen(): Promise<Listening>
  /**
   * Answers what is under way, releases all that is open, and resolves. What fails of it is logged.
   * `open`, `listen` and requests are refused after it.
   */
  close(): Promise<void>
  /** Serves plants in any `node:http` server. */
  readonly handler: RequestListener
}

/** Something to do and its name in the log, if it fails. */
type Step = readonly [name: string, run: () => unknown]

const STORE_RETRY_SECONDS = 1
const UNOPENED = 'the store could not be opened'
const CLOSED = 'the service is closed: create another one'
/**
 * For those who probe and scrape: they must not take the descriptors that the store needs either.
 */
const ADMIN_MAX_CONNECTIONS = 32
/** Bodies that are held and writes that wait, together. */
const BODIES_MAX_BYTES = 64 * 1024 * 1024
/** Answers that clients have not taken yet, together. */
const ANSWERS_MAX_BYTES = 64 * 1024 * 1024
const PATH = '/plants'

type StorageConfig = Pick<Config, 'etcd' | 'dataDirectory' | 'maxDataBytes'>
/** What is kept elsewhere is not recovered. */
type Storage = PlantStore & { readonly recovered?: Recovered }

/**
 * Opens the storage that was chosen. What etcd alone needs is loaded only then. @throws
 * DirectoryLocked, StoreCorrupt
 */
export async function openStorage(
  { etcd, dataDirectory, maxDataBytes }: StorageConfig,
  log: StoreLog,
  onFatal: ServiceHooks['onFatal'],
  metrics = new Metrics(),
  queue = new FairQueue(),
): Promise<Storage> {
  if (!etcd)
    return SqljsStore.open({ directory: dataDirectory, maxDataBytes, log, onFatal, metrics, queue })
  const { EtcdStore } = await import('./store/etcd/store.ts')
  return EtcdStore.open(etcd, log)
}

/** Wires tokens, storage and HTTP. @throws ConfigError when the keys cannot be used. */
export function createService(config: ServiceConfig, { log, onFatal }: ServiceHooks): PlantService {
  const keyLog: KeyLog = (level, message, fields) => log[level](message, fields)
  // Built already where the configuration was read.
  const keys = config.openKeys?.(keyLog) ?? createKeySource(config.keys, config.issuer, keyLog)
  const verifier = new Verifier(keys, config)
  const bodies = new MemoryBudget(BODIES_MAX_BYTES)
  const answers = new MemoryBudget(ANSWERS_MAX_BYTES)
  const queue = new FairQueue()
  const pages = new PageCache()
  const rateLimit = config.rateLimit === undefined ? undefined : new RateLimit(config.rateLimit)
  const metrics = new Metrics()
  const durations = new RequestDurations(metrics, [PATH])
  const errors = new Map([...conditions.values()].map(([error]) => [error, 0]))
  let store: PlantStore | undefined
  let storeMetrics = new Metrics()
  let processMetrics = new Metrics()
  /** The attempt that is under way, or has succeeded. */
  let opening: Promise<Recovered | undefined> | undefined
  let listening: Promise<Listening> | undefined
  let closing: Promise<void> | undefined
  /** A request opens the store again only after this. */
  let openAgainAtMs = -Infinity
  /** Whether `open` or a request wants the store: a `listen` that fails leaves it open then. */
  let keepsOpen = false
  /** A store that is closed before another one can be opened. */
  let releasing: Promise<void> | undefined
  /** Called once nothing can fail any more: a failed attempt must not leave keys being fetched. */
  let startKeys = (): void => {
    startKeys = () => {}
    keys.start?.()
  }
  let draining = false
  /** Set once plants are listened for. */
  let serving = false
  let route: ((exchange: Exchange) => HttpResponse | Promise<HttpResponse>) | undefined
  let server: Server | undefined
  let admin: Server | undefined
  let stopWatching = (): void => {}
  let listener: Listener | undefined
  let adminListener: Listener | undefined

  const host: ConnectionHost = {
    serve: (exchange) => (route ? route(exchange) : serveUnopened(exchange)),
    explain,
    answered,
    accepted: () => queue.connectionArrived(),
    holdResponse: (owner, bytes) => answers.hold(owner, bytes),
    get draining() {
      return draining
    },
  }
  const authenticate = ({ head, req }: Exchange): Caller | Promise<Caller> => {
    return verifier.verify(readBearer(head.authorization), req)
  }
  const connections = new Connections(host)
  const maxConnections = Math.min(
    config.maxConnections,
    connectionsWithinLimit(ADMIN_MAX_CONNECTIONS),
  )
  addServiceMetrics(metrics, {
    connections,
    maxConnections,
    verifier,
    keys,
    pages,
    bodies,
    answers,
    log,
    errors,
    checks,
  })

  const closeServer: Step = ['close the server', () => server?.close()]
  const release: Step = ['release the store', releaseStore]
  const closeAdmin: readonly Step[] = [
    ['stop watching the event loop', () => stopWatching()],
    ['accept no more on the admin listener', () => adminListener?.stop()],
    ['close the connections of the admin listener', () => admin?.closeAllConnections()],
    ['close the admin server', () => admin?.close()],
  ]

  function openStore(): Promise<Recovered | undefined> {
    return (opening ??= tryToOpenStore().catch((error: unknown) => {
      opening = undefined
      openAgainAtMs = performance.now() + STORE_RETRY_SECONDS * 1000
      throw error
    }))
  }

  async function tryToOpenStore(): Promise<Recovered | undefined> {
    await releasing?.catch(() => {})
    if (closing) throw new StoreUnavailable(CLOSED)
    storeMetrics = new Metrics()
    const tell: StoreLog = (level, message, fields) => log[level](message, fields)
    const storage = await openStorage(config, tell, onFatal, storeMetrics, queue)
    store = storage
    const { maxBodyBytes } = config
    const options = { store: storage, pages, queue, bodies, answers, maxBodyBytes }
    route = createRouter(
      new Map([
        [
          PATH,
          new Map([
            ['GET', { handle: listPlants(options), scope: config.readScope }],
            ['POST', { handle: createPlant(options), scope: config.writeScope }],
          ]),
        ],
      ]),
      { authenticate, rateLimit },
    )
    return storage.recovered
  }

  async function open(): Promise<void> {
    keepsOpen = true
    try {
      await openStore()
    } catch (error) {
      keepsOpen = false
      throw error
    }
    startKeys()
  }

  /** Requests try once a second at most: repeated ones must not lock and scan a directory each. */
  async function serveUnopened(exchange: Exchange): Promise<HttpResponse> {
    const isFirst = opening === undefined
    if (closing) throw new StoreUnavailable(CLOSED)
    if (isFirst && performance.now() < openAgainAtMs) throw new StoreUnavailable(UNOPENED)
    try {
      await open()
    } catch (error) {
      if (isFirst) log.error(UNOPENED, { error })
      throw new StoreUnavailable(UNOPENED, { cause: error })
    }
    if (!route) throw new StoreUnavailable(CLOSED)
    return route(exchange)
  }

  function explain(error: unknown, { requestId }: RequestRecord): HttpResponse | undefined {
    if (error instanceof ClientGone) return undefined
    const problem = httpErrorOf(error)
    errors.set(problem.error, (errors.get(problem.error) ?? 0) + 1)
    if (problem === error)
      log.debug('refused', { requestId, error: problem.error, cause: problem.cause })
    else if (problem.condition === 'internal') log.error('a request failed', { requestId, error })
    return errorResponse(problem)
  }

  function answered(
    { method, route: matched, owner, requestId, traceId, startedAtMs }: RequestRecord,
    status: number,
  ): void {
    const ms = performance.now() - startedAtMs
    durations.record(method, matched, status, ms / 1000)
    log.request({
      method,
      route: matched,
      status,
      ms: Math.round(ms * 1000) / 1000,
      requestId,
      traceId,
      owner: owner === undefined ? undefined : ownerHash(owner),
    })
  }

  /**
   * What is wrong, by the name of what the service needs. Red from the first moment of a stop on.
   */
  function checks(): Checks {
    return {
      service: closing ? 'draining' : serving ? undefined : 'starting',
      keys: keys.unavailableReason(),
      storage: store ? store.unavailableReason() : 'not recovered yet',
    }
  }

  async function listenAll(): Promise<Listening> {
    if (closing) throw new ListenFailed(CLOSED)
    return (listening ??= listenBoth().catch(async (error: unknown) => {
      await runAll([closeServer, ...(keepsOpen ? [] : [release]), ...closeAdmin])
      listening = undefined
      throw error
    }))
  }

  async function listenBoth(): Promise<Listening> {
    // Compiling SQLite takes the longest of all: it begins before anything else.
    if (!config.etcd) loadSqlite().catch(() => {})
    // Whoever looks after the service can see how it starts, however long that takes.
    if (config.adminListen !== 'off') adminListener = await listenForAdmin(config.adminListen)
    const recovered = await openStore()
    if (closing) throw new ListenFailed(CLOSED)
    if (maxConnections < config.maxConnections)
      log.info(
        'the limit of open files leaves room for fewer connections than PLANTS_MAX_CONNECTIONS',
        { connections: maxConnections },
      )
    server = createHttpServer(connections, maxConnections)
    listener = await listen(server, config.listen)
    serving = true
    startKeys()
    return { plants: listener.url, admin: adminListener?.url, recovered }
  }

  function listenForAdmin(address: Address): Promise<Listener> {
    processMetrics = new Metrics()
    addProcessMetrics(processMetrics)
    stopWatching = watchEventLoop(processMetrics)
    admin = createAdminServer(
      new Map([
        ['/livez', livez],
        ['/openapi.json', openApiResponse],
        ['/readyz', () => readyz(checks())],
        ['/metrics', () => textResponse(renderAll(), METRICS_TYPE)],
      ]),
      ADMIN_MAX_CONNECTIONS,
      (error) => log.error('an admin request failed', { error }),
    )
    return listen(admin, address)
  }

  function renderAll(): string {
    return [metrics, processMetrics, storeMetrics].map((each) => each.render()).join('')
  }

  function close(): Promise<void> {
    return (closing ??= closeAll())
  }

  async function closeAll(): Promise<void> {
    draining = true
    await runAll([
      // It would open its listener after the stop.
      ['wait for a pending listen', () => listening?.catch(() => {})],
      ['serve through the drain delay', () => listener && sleep(config.drainDelaySeconds * 1000)],
      ['accept the connections that are made', () => listener && connections.acceptAll()],
      ['accept no more', () => listener?.stop()],
      ['answer what is under way', drain],
      // That it failed was told to its caller.
      ['wait for the store to open', () => opening?.catch(() => {})],
      ['close the keys', () => keys.close()],
      closeServer,
      release,
      ...closeAdmin,
    ])
  }

  async function drain(): Promise<void> {
    const { shutdownTimeoutSeconds: timeoutSeconds } = config
    const givenUp = await connections.drain(timeoutSeconds * 1000)
    if (givenUp === 0) return
    const message = 'requests still under way at the deadline were given up'
    log.error(message, { connections: givenUp, timeoutSeconds })
  }

  async function releaseStore(): Promise<void> {
    route = opening = undefined
    releasing = store?.close()
    await releasing
    store = undefined
  }

  /** Runs each step, whatever became of the one before. */
  async function runAll(steps: readonly Step[]): Promise<void> {
    for (const [name, step] of steps) {
      try {
        await step()
      } catch (error) {
        log.error('a step failed, and the next ones are taken', { step: name, error })
      }
    }
  }

  return {
    open,
    listen: listenAll,
    close,
    handler: connections.handler,
  }
}

/** A failure as the caller is told of it; what nobody foresaw says nothing outside. */
function httpErrorOf(error: unknown): HttpError {
  if (error instanceof HttpError) return error
  if (error instanceof StoreUnavailable)
    return new HttpError('storageUnavailable', ['Retry-After', String(STORE_RETRY_SECONDS)])
  if (error instanceof StoreFull) return new HttpError('storageFull')
  if (error instanceof PlantTooLarge) return new HttpError('bodyTooLarge')
  return new HttpError('internal')
}
