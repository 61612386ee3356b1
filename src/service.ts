import type { RequestListener, Server } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { readBearer } from './auth/bearer.ts'
import { createKeySource } from './auth/keys.ts'
import { Verifier } from './auth/verifier.ts'
import type { Config } from './config.ts'
import { Problem } from './errors.ts'
import { createAdminServer } from './http/admin.ts'
import { BodyBudget, ClientGone } from './http/body.ts'
import type { ConnectionHost } from './http/connection.ts'
import type { Exchange } from './http/exchange.ts'
import { ListenFailed, listen } from './http/listen.ts'
import { RememberedPages } from './http/pages.ts'
import { createPlant, listPlants } from './http/plants.ts'
import { RateLimit } from './http/rate.ts'
import { type Answer, problemAnswer } from './http/respond.ts'
import { createRouter } from './http/router.ts'
import { Connections, createHttpServer, stopAccepting } from './http/server.ts'
import { type Log, ownerHash } from './ops/log.ts'
import { type PlantStore, StoreFull, StoreUnavailable } from './plants/store.ts'
import { loadSqlite } from './store/sqljs/database.ts'
import { SqljsStore } from './store/sqljs/store.ts'

export interface ServiceHooks {
  readonly log: Log
  /** Memory and disk may differ: the process must end, and the next one starts from the disk. */
  readonly onFatal: (error: unknown) => void
}

/** Where the service listens, as URLs or `unix:` paths. */
export interface Listening {
  readonly plants: string
  readonly admin: string | undefined
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
const PATH = '/plants'

/** Wires tokens, storage and HTTP. @throws ConfigError when the keys cannot be used. */
export function createService(config: Config, { log, onFatal }: ServiceHooks): PlantService {
  const keys = createKeySource(config.keys, config.issuer, (level, message, fields) => log[level](message, fields))
  const verifier = new Verifier(keys, config)
  const budget = new BodyBudget()
  const pages = new RememberedPages()
  const rateLimit = config.rateLimit === undefined ? undefined : new RateLimit(config.rateLimit)
  let store: PlantStore | undefined
  let opening: Promise<void> | undefined
  let listening: Promise<Listening> | undefined
  let closing: Promise<void> | undefined
  let draining = false
  let route: ((exchange: Exchange) => Answer | Promise<Answer>) | undefined
  let server: Server | undefined
  let admin: Server | undefined

  const host: ConnectionHost = {
    serve: (exchange) => (route ? route(exchange) : open().then(() => serveOpened(exchange))),
    explain,
    answered: logRequest,
    get draining() {
      return draining
    },
  }
  const connections = new Connections(host)

  function open(): Promise<void> {
    return (opening ??= openStore())
  }

  async function openStore(): Promise<void> {
    if (closing) throw new StoreUnavailable('the service is closed')
    keys.start?.()
    const opened = await SqljsStore.open({
      directory: config.dataDirectory,
      maxDataBytes: config.maxDataBytes,
      log: (level, message, fields) => log[level](message, fields),
      onFatal,
    })
    store = opened
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
      { authenticate: (exchange) => verifier.verify(readBearer(exchange.head.authorization)), rateLimit },
    )
  }

  function serveOpened(exchange: Exchange): Answer | Promise<Answer> {
    if (!route) throw new StoreUnavailable('the store is not open')
    return route(exchange)
  }

  function explain(error: unknown, exchange: Exchange): Answer | undefined {
    if (error instanceof ClientGone) return undefined
    if (error instanceof Problem) {
      log.debug('refused', { requestId: exchange.requestId, error: error.error, cause: error.cause })
      return problemAnswer(error)
    }
    if (error instanceof StoreUnavailable) return problemAnswer(new Problem('storageUnavailable', ['Retry-After', String(STORE_RETRY_SECONDS)]))
    if (error instanceof StoreFull) return problemAnswer(new Problem('storageFull'))
    log.error('a request failed', { requestId: exchange.requestId, error })
    return problemAnswer(new Problem('internal'))
  }

  function logRequest({ method, route: matched, owner, requestId, startedAtMs }: Exchange, status: number): void {
    const ms = Math.round((performance.now() - startedAtMs) * 1000) / 1000
    log.request({ method, route: matched, status, ms, requestId, owner: owner === undefined ? undefined : ownerHash(owner) })
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
    void loadSqlite()
    if (config.adminListen !== 'off') {
      admin = createAdminServer(() => ({
        service: closing ? 'draining' : route ? undefined : 'starting',
        keys: keys.trouble(),
        storage: store?.trouble(),
      }))
    }
    const adminAddress = admin && config.adminListen !== 'off' ? await listen(admin, config.adminListen) : undefined
    await open()
    server = createHttpServer(connections, config.maxConnections)
    return { plants: await listen(server, config.listen), admin: adminAddress }
  }

  function close(): Promise<void> {
    return (closing ??= closeAll())
  }

  async function closeAll(): Promise<void> {
    draining = true
    // What is about to listen would do so behind a close that did not wait for it.
    await listening?.catch(() => {})
    if (server?.listening) {
      await sleep(config.drainDelaySeconds * 1000)
      stopAccepting(server)
    }
    const givenUp = await connections.drain(config.shutdownTimeoutSeconds * 1000)
    if (givenUp > 0) log.error('requests still under way at the deadline were given up', { connections: givenUp, timeoutSeconds: config.shutdownTimeoutSeconds })
    // An open that is still under way ends first; that it failed was said to whoever asked for it.
    await opening?.catch(() => {})
    route = undefined
    server?.close()
    keys.close()
    await store?.close()
    admin?.closeAllConnections()
    admin?.close()
  }

  return { open, listen: listenAll, close, handler: connections.handler }
}
