import type { RequestListener, Server } from 'node:http'
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import { readBearer } from './auth/bearer.ts'
import type { Caller } from './auth/caller.ts'
import { createKeySource } from './auth/keys.ts'
import { Verifier } from './auth/verifier.ts'
import type { Address, Config } from './config.ts'
import { ClientGone, conditions, Problem } from './errors.ts'
import { addServiceMetrics } from './figures.ts'
import { type Checks, createAdminServer, livez, readyz, textAnswer } from './http/admin.ts'
import { MemoryBudget } from './http/budget.ts'
import type { ConnectionHost } from './http/connection.ts'
import { RequestDurations } from './http/durations.ts'
import type { Exchange, RequestRecord } from './http/exchange.ts'
import { ListenFailed, listen, type Listener } from './http/listen.ts'
import { openApiAnswer } from './http/openapi.ts'
import { RememberedPages } from './http/pages.ts'
import { createPlant, listPlants } from './http/plants.ts'
import { RateLimit } from './http/rate.ts'
import { type Answer, problemAnswer } from './http/respond.ts'
import { createRouter } from './http/router.ts'
import { Connections, createHttpServer } from './http/server.ts'
import { connectionsWithinLimit } from './ops/descriptors.ts'
import { type Log, ownerHash } from './ops/log.ts'
import { Metrics, METRICS_TYPE } from './ops/metrics.ts'
import { addProcessMetrics, watchEventLoop } from './ops/process.ts'
import { type PlantStore, PlantTooLarge, type Recovered, StoreFull, StoreUnavailable } from './plants/store.ts'
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

export interface PlantService {
  /** Opens the store. `listen` does it too; before it is done, requests wait. @throws DirectoryLocked, StoreCorrupt */
  open(): Promise<void>
  /** Opens the store and the configured listeners. @throws ListenFailed besides what `open` throws; nothing stays open then. */
  listen(): Promise<Listening>
  /** Answers what is under way, lets go of the store, and resolves; requests that come later are refused. */
  close(): Promise<void>
  /** Serves plants in any `node:http` server. */
  readonly handler: RequestListener
}

const STORE_RETRY_SECONDS = 1
/** For those who probe and scrape: they must not take the descriptors that the store needs either. */
const ADMIN_MAX_CONNECTIONS = 32
/** Bodies that are held and writes that wait, together. */
const BODIES_MAX_BYTES = 64 * 1024 * 1024
const PATH = '/plants'

type StorageConfig = Pick<Config, 'etcd' | 'dataDirectory' | 'maxDataBytes'>
/** What is kept elsewhere is not recovered. */
type Storage = PlantStore & { readonly recovered?: Recovered }

/** Opens the storage that was chosen. What etcd alone needs is loaded only then. @throws DirectoryLocked, StoreCorrupt */
export async function openStorage({ etcd, dataDirectory, maxDataBytes }: StorageConfig, log: StoreLog, onFatal: ServiceHooks['onFatal'], metrics = new Metrics()): Promise<Storage> {
  if (!etcd) return SqljsStore.open({ directory: dataDirectory, maxDataBytes, log, onFatal, metrics })
  const { EtcdStore } = await import('./store/etcd/store.ts')
  return EtcdStore.open(etcd, log)
}

/** Wires tokens, storage and HTTP. @throws ConfigError when the keys cannot be used. */
export function createService(config: Config, { log, onFatal }: ServiceHooks): PlantService {
  const keys = createKeySource(config.keys, config.issuer, (level, message, fields) => log[level](message, fields))
  const verifier = new Verifier(keys, config)
  const budget = new MemoryBudget(BODIES_MAX_BYTES)
  const pages = new RememberedPages()
  const rateLimit = config.rateLimit === undefined ? undefined : new RateLimit(config.rateLimit)
  const metrics = new Metrics()
  const durations = new RequestDurations(metrics, [PATH])
  const errors = new Map([...conditions.values()].map(([error]) => [error, 0]))
  let store: PlantStore | undefined
  let opening: Promise<Recovered | undefined> | undefined
  let listening: Promise<Listening> | undefined
  let closing: Promise<void> | undefined
  let draining = false
  /** Set once plants are listened for. */
  let serving = false
  let route: ((exchange: Exchange) => Answer | Promise<Answer>) | undefined
  let server: Server | undefined
  let admin: Server | undefined
  let stopWatching = (): void => {}
  let listener: Listener | undefined
  let adminListener: Listener | undefined

  const host: ConnectionHost = {
    serve: (exchange) => (route ? route(exchange) : open().then(() => serveOpened(exchange))),
    explain,
    answered,
    get draining() {
      return draining
    },
  }
  const authenticate = ({ head, req }: Exchange): Caller | Promise<Caller> => {
    return verifier.verify(readBearer(head.authorization), req)
  }
  const connections = new Connections(host)
  const maxConnections = Math.min(config.maxConnections, connectionsWithinLimit(ADMIN_MAX_CONNECTIONS))
  addServiceMetrics(metrics, { connections, maxConnections, verifier, keys, pages, budget, log, errors, checks })

  function open(): Promise<Recovered | undefined> {
    return (opening ??= openStore())
  }

  async function openStore(): Promise<Recovered | undefined> {
    if (closing) throw new StoreUnavailable('the service is closed')
    keys.start?.()
    const opened = (store = await openStorage(config, (level, message, fields) => log[level](message, fields), onFatal, metrics))
    route = createRouter(
      new Map([
        [
          PATH,
          new Map([
            ['GET', { handle: listPlants(opened, pages), scope: config.readScope }],
            ['POST', { handle: createPlant({ store: opened, pages, budget, maxBodyBytes: config.maxBodyBytes }), scope: config.writeScope }],
          ]),
        ],
      ]),
      { authenticate, rateLimit },
    )
    return opened.recovered
  }

  function serveOpened(exchange: Exchange): Answer | Promise<Answer> {
    if (!route) throw new StoreUnavailable('the store is not open')
    return route(exchange)
  }

  function explain(error: unknown, { requestId }: RequestRecord): Answer | undefined {
    if (error instanceof ClientGone) return undefined
    const problem = problemOf(error)
    errors.set(problem.error, (errors.get(problem.error) ?? 0) + 1)
    if (problem === error) log.debug('refused', { requestId, error: problem.error, cause: problem.cause })
    else if (problem.condition === 'internal') log.error('a request failed', { requestId, error })
    return problemAnswer(problem)
  }

  function answered({ method, route: matched, owner, requestId, traceId, startedAtMs }: RequestRecord, status: number): void {
    const ms = performance.now() - startedAtMs
    durations.record(method, matched, status, ms / 1000)
    log.request({ method, route: matched, status, ms: Math.round(ms * 1000) / 1000, requestId, traceId, owner: owner === undefined ? undefined : ownerHash(owner) })
  }

  /** What is wrong, by the name of what the service needs. Red from the first moment of a stop on. */
  function checks(): Checks {
    return {
      service: closing ? 'draining' : serving ? undefined : 'starting',
      keys: keys.trouble(),
      storage: store ? store.trouble() : 'not recovered yet',
    }
  }

  async function listenAll(): Promise<Listening> {
    if (closing) throw new ListenFailed('the service is closed')
    try {
      return await (listening ??= listenBoth())
    } catch (error) {
      await close()
      throw error
    }
  }

  async function listenBoth(): Promise<Listening> {
    // Compiling SQLite takes the longest of all: it begins before anything else.
    if (!config.etcd) void loadSqlite()
    // Whoever looks after the service can see how it starts, however long that takes.
    if (config.adminListen !== 'off') adminListener = await listenForAdmin(config.adminListen)
    const recovered = await open()
    if (maxConnections < config.maxConnections) log.info('the limit of open files leaves room for fewer connections than PLANTS_MAX_CONNECTIONS', { connections: maxConnections })
    server = createHttpServer(connections, maxConnections)
    listener = await listen(server, config.listen)
    serving = true
    return { plants: listener.url, admin: adminListener?.url, recovered }
  }

  function listenForAdmin(address: Address): Promise<Listener> {
    addProcessMetrics(metrics)
    stopWatching = watchEventLoop(metrics)
    admin = createAdminServer(
      new Map([
        ['/livez', livez],
        ['/openapi.json', openApiAnswer],
        ['/readyz', () => readyz(checks())],
        ['/metrics', () => textAnswer(metrics.render(), METRICS_TYPE)],
      ]),
      (error) => log.error('an admin request failed', { error }),
    )
    admin.maxConnections = ADMIN_MAX_CONNECTIONS
    return listen(admin, address)
  }

  function close(): Promise<void> {
    return (closing ??= closeAll())
  }

  async function closeAll(): Promise<void> {
    draining = true
    // What is about to listen would do so behind a close that did not wait for it.
    await listening?.catch(() => {})
    if (listener) {
      await sleep(config.drainDelaySeconds * 1000)
      // Connections that are made already are taken first: whatever is not would be reset.
      await nextTurn()
      listener.stop()
    }
    const givenUp = await connections.drain(config.shutdownTimeoutSeconds * 1000)
    if (givenUp > 0) log.error('requests still under way at the deadline were given up', { connections: givenUp, timeoutSeconds: config.shutdownTimeoutSeconds })
    // An open that is still under way ends first; that it failed was said to whoever asked for it.
    await opening?.catch(() => {})
    route = undefined
    server?.close()
    keys.close()
    await store?.close()
    stopWatching()
    adminListener?.stop()
    admin?.closeAllConnections()
    admin?.close()
  }

  return {
    async open() {
      await open()
    },
    listen: listenAll,
    close,
    handler: connections.handler,
  }
}

/** A failure as the caller is told of it; what nobody foresaw says nothing outside. */
function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error
  if (error instanceof StoreUnavailable) return new Problem('storageUnavailable', ['Retry-After', String(STORE_RETRY_SECONDS)])
  if (error instanceof StoreFull) return new Problem('storageFull')
  if (error instanceof PlantTooLarge) return new Problem('bodyTooLarge')
  return new Problem('internal')
}
