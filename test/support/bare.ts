import { once } from 'node:events'
import { createServer, type RequestListener, type Server } from 'node:http'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import type { Caller } from '../../dist/auth/caller.js'
import { Budget } from '../../dist/limits/budget.js'
import { Adapter } from '../../dist/http/adapter.js'
import { Router } from '../../dist/api/router.js'
import type { RateLimit } from '../../dist/api/rate-limit.js'
import { PageCache } from '../../dist/api/page-cache.js'
import { HttpServer } from '../../dist/http/server.js'
import { FairQueue } from '../../dist/limits/fair-queue.js'
import { createLog, type Log, type LogRequests } from '../../dist/telemetry/log.js'
import { Metrics } from '../../dist/telemetry/metrics.js'
import type { NewPlant, Plant } from '../../dist/plants/plant.js'
import type { Created, PlantChunk, PlantList, PlantStore } from '../../dist/plants/store.js'
import { temporaryDirectory } from './directories.ts'
import { listening } from './serving.ts'
import { gate } from './time.ts'

export interface BareOptions {
  readonly store?: Partial<PlantStore>
  readonly timeouts?: Partial<typeof LONG>
  /** Bytes of lists that clients have not taken yet. */
  readonly responsesMaxBytes?: number
  /** Bytes of request bodies. */
  readonly bodiesMaxBytes?: number
  readonly queue?: FairQueue
  readonly authenticate?: (token: string) => Caller | Promise<Caller>
  readonly rateLimit?: RateLimit
  readonly logRequests?: LogRequests
  /** True once a stop has begun. */
  readonly isDraining?: () => boolean
  /** A unix socket to listen on: its buffers are small, and the same everywhere. */
  readonly path?: string
}

export interface Bare {
  /** 0 on a unix socket. */
  readonly port: number
  readonly server: Server
  readonly connections: HttpServer
  readonly responder: Router
  /** For a server of another application. */
  readonly adapter: Adapter
  /** What is reserved for lists that clients have not taken yet. */
  readonly responses: Budget
  /** What is reserved for bodies until their response is sent. */
  readonly bodies: Budget
  /** Created plants by id. */
  readonly plants: ReadonlyMap<bigint, Plant>
  /** Method and status of every request so far, and "aborted" if it is. */
  readonly answered: readonly string[]
  /** The values of `error` that were counted. */
  readonly refused: readonly unknown[]
  /** The errors that were logged. */
  readonly failures: readonly unknown[]
}

const LONG_MS = 60_000
/** Often, so that tests take less. */
const CHECK_MS = 50
const LONG = {
  headersMs: LONG_MS,
  requestMs: LONG_MS,
  keepAliveMs: LONG_MS,
  inactiveMs: LONG_MS,
}

/** HTTP alone, with timeouts and a store in memory that a test can replace. */
export async function startBare(
  t: TestContext,
  {
    store = {},
    timeouts = {},
    responsesMaxBytes = 2 ** 26,
    bodiesMaxBytes = 2 ** 26,
    authenticate = () => ALICE,
    queue = new FairQueue(),
    path,
    logRequests = 'all',
    rateLimit,
    isDraining = () => false,
  }: BareOptions = {},
): Promise<Bare> {
  const plants = new Map<bigint, Plant>()
  const answered: string[] = []
  const refused: unknown[] = []
  const failures: unknown[] = []
  const whole: PlantStore = {
    isShared: false,
    create: (_owner: string, { id, name }: NewPlant): Promise<Created> => {
      plants.set(id, { name })
      return Promise.resolve('stored')
    },
    list: () => listOf([[...plants.values()]]),
    unavailableReason: () => undefined,
    close: () => Promise.resolve(),
    ...store,
  }
  const responses = new Budget(responsesMaxBytes)
  const bodies = new Budget(bodiesMaxBytes)
  const options = {
    store: () => whole,
    pageCache: new PageCache(),
    queue,
    bodies,
    responses,
    maxBodyBytes: 2 ** 20,
  }
  const log: Log = {
    ...createLog('silent'),
    request: ({ method, status, aborted }) =>
      answered.push(`${method} ${status}${aborted ? ' aborted' : ''}`),
    debug: (_message, fields) => refused.push(fields?.['error']),
    error: (_message, fields) => failures.push(fields?.['error']),
  }
  const responder = new Router({
    ...options,
    verifier: { verify: authenticate, counts: { accepted: 0, refused: 0, cached: 0 } },
    rateLimit,
    corsOrigins: undefined,
    scopes: { read: undefined, write: undefined },
    isDraining,
    metrics: new Metrics(),
    log,
    logRequests,
  })
  const limits = { ...LONG, ...timeouts }
  // Node refuses a limit of headers that is longer than that of the whole request.
  const connections = new HttpServer(responder, limits.inactiveMs, {
    headersTimeout: Math.min(limits.headersMs, limits.requestMs),
    requestTimeout: limits.requestMs,
    keepAliveTimeout: limits.keepAliveMs,
    connectionsCheckingInterval: CHECK_MS,
  })
  const adapter = new Adapter(responder, (message) => failures.push(message))
  const { server } = connections
  if (path === undefined) server.listen(0, '127.0.0.1')
  else server.listen(path)
  await once(server, 'listening')
  t.after(async () => {
    server.close()
    await Promise.all([connections.drain(0), adapter.drain(0)])
  })
  const address = server.address()
  const port = address !== null && typeof address === 'object' ? address.port : 0
  const records = { plants, answered, refused, failures, responder }
  return { port, server, connections, adapter, responses, bodies, ...records }
}

/** The same in a server of another application, whose port it has. */
export async function startMounted(
  t: TestContext,
  options: BareOptions = {},
  wrap = (handler: RequestListener): RequestListener => handler,
): Promise<Bare> {
  const bare = await startBare(t, options)
  return { ...bare, port: await listening(t, createServer(wrap(bare.adapter.handler))) }
}

/** The same on a unix socket, whose buffers are small. */
export async function startOnPath(t: TestContext, options: BareOptions) {
  const path = join(await temporaryDirectory(), 'plants.sock')
  return { ...(await startBare(t, { ...options, path })), path }
}

/** A store whose creates wait for `release`. */
export function slowStore() {
  const { opened, open: release } = gate()
  const create = async (): Promise<Created> => (await opened, 'stored')
  return { store: { create }, release }
}

export const ALICE: Caller = { owner: 'alice', ownerHash: '', scopes: new Set(), exp: 2e9 }

/** A chunk of a list, as a store returns it. */
export function chunkOf(plants: readonly Plant[]): string {
  return JSON.stringify(plants)
}

/** A list without an end, of the chunks that a test makes. */
export function listFrom(make: () => Promise<readonly Plant[]>): PlantList {
  let last = 0n
  return {
    async next() {
      const plants = await make()
      last += BigInt(plants.length)
      return { done: false, value: { json: chunkOf(plants), count: plants.length, next: last } }
    },
  }
}

/** A list of these chunks, whose ids are those of their places. */
export function* listOf(chunks: readonly (readonly Plant[])[]): Generator<PlantChunk, undefined> {
  let [last, json] = [0, '']
  for (const [at, plants] of chunks.entries()) {
    last += plants.length
    const next = at < chunks.length - 1 ? BigInt(last) : undefined
    // JSON takes long: what follows itself is written once.
    if (plants !== chunks[at - 1]) json = chunkOf(plants)
    yield { json, count: plants.length, next }
  }
  return undefined
}
