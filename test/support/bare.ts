import { once } from 'node:events'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import type { Caller } from '../../dist/auth/caller.js'
import { ClientGone, Problem } from '../../dist/errors.js'
import { MemoryBudget } from '../../dist/http/budget.js'
import type { Exchange } from '../../dist/http/exchange.js'
import { RememberedPages } from '../../dist/http/pages.js'
import { createPlant, listPlants } from '../../dist/http/plants.js'
import { problemAnswer } from '../../dist/http/respond.js'
import { createRouter } from '../../dist/http/router.js'
import { Connections, createHttpServer, type HttpTimeouts } from '../../dist/http/server.js'
import type { NewPlant, Plant } from '../../dist/plants/plant.js'
import type { Created, PlantList, PlantStore } from '../../dist/plants/store.js'

export interface BareOptions {
  readonly store?: Partial<PlantStore>
  readonly timeouts?: Partial<HttpTimeouts>
  readonly authenticate?: (exchange: Exchange) => Caller | Promise<Caller>
}

export interface Bare {
  readonly port: number
  readonly server: Server
  readonly connections: Connections
  /** Plants that were created, by id. */
  readonly plants: ReadonlyMap<bigint, Plant>
  /** Method and status of every answer so far. */
  readonly answered: readonly string[]
}

const LONG_MS = 60_000

/** HTTP alone, around a store in memory that a test can make slow or break, with timeouts that a test can wait for. */
export async function startBare(t: TestContext, { store = {}, timeouts = {}, authenticate = () => ALICE }: BareOptions = {}): Promise<Bare> {
  const plants = new Map<bigint, Plant>()
  const answered: string[] = []
  const whole: PlantStore = {
    create: (_owner: string, { id, name }: NewPlant): Promise<Created> => {
      plants.set(id, { name })
      return Promise.resolve('stored')
    },
    list: () => listOf([[...plants.values()]]),
    trouble: () => undefined,
    close: () => Promise.resolve(),
    ...store,
  }
  const pages = new RememberedPages()
  const operations = new Map([
    ['GET', { handle: listPlants(whole, pages), scope: undefined }],
    ['POST', { handle: createPlant({ store: whole, pages, budget: new MemoryBudget(2 ** 26), maxBodyBytes: 2 ** 20 }), scope: undefined }],
  ])
  const connections = new Connections({
    serve: createRouter(new Map([['/plants', operations]]), { authenticate, rateLimit: undefined }),
    explain(error) {
      if (error instanceof ClientGone) return undefined
      return problemAnswer(error instanceof Problem ? error : new Problem('internal'))
    },
    answered: ({ method }, status) => answered.push(`${method} ${status}`),
    draining: false,
  })
  const server = createHttpServer(connections, 100, { headersMs: LONG_MS, requestMs: LONG_MS, stalledMs: LONG_MS, ...timeouts })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(async () => {
    server.close()
    await connections.drain(0)
  })
  // It listens on TCP.
  return { port: (server.address() as AddressInfo).port, server, connections, plants, answered }
}

export const ALICE: Caller = { owner: 'alice', scopes: new Set() }

/** A stretch as a store gives it. */
export function stretchOf(plants: readonly Plant[]): Buffer {
  return Buffer.from(JSON.stringify(plants))
}

/** A list of these stretches. `closed` is called when the list is let go of. */
export function listOf(stretches: readonly (readonly Plant[])[], closed: () => void = () => {}): PlantList {
  const left = stretches.map(stretchOf)
  return { cutAt: undefined, next: () => left.shift(), close: closed }
}
