import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { describe, test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Adapter } from '../../dist/http/adapter.js'
import type { HttpServer } from '../../dist/http/server.js'
import type { Plant } from '../../dist/plants/plant.js'
import type { Created, PlantList } from '../../dist/plants/store.js'
import { ALICE, type Bare, type BareOptions, listFrom, listOf, startBare } from '../support/bare.ts'
import { call, post } from '../support/http.ts'
import { scrape } from '../support/metrics.ts'
import { startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

/*
 * Every request that is served has one line in the log and counts once, also if its client leaves,
 * or is cut off.
 */

const SHORT_MS = 300
const LIST = head('GET', '/plants')
const FERN = postBytes({ id: 1, name: 'Fern' })
const PLANT = { name: 'x'.repeat(1_000_000) }

/** A store whose creates wait for `release`. */
function slowStore(): Required<Pick<BareOptions, 'store'>> & { release(): void } {
  let release = (): void => {}
  const released = new Promise<void>((resolve) => (release = resolve))
  const create = async (): Promise<Created> => (await released, 'stored')
  return { store: { create }, release: () => release() }
}

/** Lists of 100 MB. */
const ENDLESS: BareOptions['store'] = {
  list: () => listOf(Array.from({ length: 100 }, () => [PLANT])),
}

for (const isEmbedded of [false, true]) {
  const where = isEmbedded ? 'embedded' : 'own server'

  async function start(t: TestContext, options: BareOptions): Promise<Bare> {
    const bare = await startBare(t, options)
    if (!isEmbedded) return bare
    const outer = createServer((req, res) => {
      // Limits of time are the application's; from here on: a busy machine reads requests late.
      req.socket.setTimeout(options.timeouts?.inactiveMs ?? 0)
      bare.adapter.handler(req, res)
    }).listen(0, '127.0.0.1')
    await once(outer, 'listening')
    t.after(() => outer.close())
    // It listens on TCP.
    return { ...bare, port: (outer.address() as AddressInfo).port }
  }

  const serverOf = ({ adapter, connections }: Bare): Adapter | HttpServer =>
    isEmbedded ? adapter : connections

  /** Sends the bytes, waits until `begun`, and resets the connection. */
  async function leave(port: number, bytes: string, begun: (wire: Wire) => boolean): Promise<void> {
    const wire = await Wire.to(port)
    wire.write(bytes)
    await until('it is under way', () => begun(wire))
    wire.socket.resetAndDestroy()
  }

  /** Asserts the lines, and that no other one follows. */
  async function logged(bare: Bare, lines: readonly string[]): Promise<void> {
    const isDone = (): boolean => serverOf(bare).active === 0
    await until('all are logged', () => bare.answered.length >= lines.length && isDone())
    await sleep(20)
    assert.deepEqual(bare.answered, lines)
  }

  describe(`aborted: ${where}`, { concurrency: true }, () => {
    test('a client that leaves while its plant is stored', async (t) => {
      const { store, release } = slowStore()
      const bare = await start(t, { store })
      await leave(bare.port, FERN, () => serverOf(bare).active === 1)
      await until('it has left', () => serverOf(bare).active === 0)
      release()
      await logged(bare, ['POST 200 aborted'])
    })

    test('a client that leaves before its body is whole', async (t) => {
      const bare = await start(t, {})
      await leave(bare.port, FERN.slice(0, -1), () => serverOf(bare).active === 1)
      await logged(bare, ['POST 499 aborted'])
      assert.equal(bare.plants.size, 0)
    })

    test('a client that leaves while its token is verified', async (t) => {
      let decide = (): void => {}
      const decided = new Promise<void>((resolve) => (decide = resolve))
      const bare = await start(t, { authenticate: async () => (await decided, ALICE) })
      await leave(bare.port, LIST, () => serverOf(bare).active === 1)
      await until('it has left', () => serverOf(bare).active === 0)
      decide()
      await logged(bare, ['GET 499 aborted'])
    })

    test('a client that leaves in the middle of a list', async (t) => {
      const bare = await start(t, { store: ENDLESS })
      await leave(bare.port, LIST, ({ text }) => text !== '')
      await logged(bare, ['GET 200 aborted'])
    })

    test('a reader that stalls, of a list and of a response in one piece', async (t) => {
      for (const chunks of [100, 1]) {
        const plants = Array.from({ length: chunks === 1 ? 20 : 1 }, () => PLANT)
        const list = (): PlantList => listOf(Array.from({ length: chunks }, () => plants))
        const bare = await start(t, { store: { list }, timeouts: { inactiveMs: SHORT_MS } })
        const wire = await Wire.to(bare.port)
        wire.socket.pause()
        wire.write(LIST)
        await logged(bare, ['GET 200 aborted'])
        wire.destroy()
      }
    })

    test('a list that fails in the middle', async (t) => {
      let chunks = 0
      const next = async (): Promise<Plant[]> => {
        await sleep(1)
        if (chunks++ === 3) throw new Error('the disk is gone')
        return [{ name: 'x' }]
      }
      const list = (): PlantList => listFrom(next)
      const bare = await start(t, { store: { list } })
      await leave(bare.port, LIST, ({ ended }) => ended)
      await logged(bare, ['GET 200 aborted'])
    })

    test('a stop that cuts off a list at its deadline', async (t) => {
      const bare = await start(t, { store: ENDLESS })
      const wire = await Wire.to(bare.port)
      wire.socket.pause()
      wire.write(LIST)
      await until('it is under way', () => serverOf(bare).active === 1)
      await serverOf(bare).drain(50)
      await logged(bare, ['GET 200 aborted'])
      wire.destroy()
    })

    test('responses that arrive whole are not aborted', async (t) => {
      const chunks = Array.from({ length: 3 }, () => [PLANT])
      for (const list of [() => listOf(chunks), () => listOf([chunks.flat()])]) {
        const bare = await start(t, { store: { list } })
        const wire = await Wire.to(bare.port)
        const bytes = FERN + LIST + head('HEAD', '/plants') + LIST
        assert.equal((await wire.write(bytes).answers(4, [2])).length, 4)
        wire.destroy()
        await logged(bare, ['POST 200', 'GET 200', 'HEAD 200', 'GET 200'])
      }
    })
  })
}

test('aborted: a response that an application sends first', async (t) => {
  const { store, release } = slowStore()
  const bare = await startBare(t, { store })
  const outer = createServer((req, res) => {
    bare.adapter.handler(req, res)
    setTimeout(() => res.writeHead(504, { 'content-length': 0 }).end(), 50)
  }).listen(0, '127.0.0.1')
  await once(outer, 'listening')
  t.after(() => outer.close())
  // It listens on TCP.
  const wire = await Wire.to((outer.address() as AddressInfo).port)
  assert.equal((await wire.write(FERN).answers(1))[0]?.status, 504)
  release()
  await until('it is logged', () => bare.answered.length > 0)
  assert.deepEqual(bare.answered, ['POST 200 aborted'])
  wire.destroy()
})

for (const [logRequests, lines] of [
  ['all', ['GET 200', 'PUT 405', 'POST 200 aborted']],
  ['errors', ['PUT 405', 'POST 200 aborted']],
  ['off', []],
] as const)
  test(`aborted: with PLANTS_LOG_REQUESTS=${logRequests} it has its line, or none`, async (t) => {
    const { store, release } = slowStore()
    const bare = await startBare(t, { store, logRequests })
    const wire = await Wire.to(bare.port)
    await wire.write(LIST + head('PUT', '/plants')).answers(2)
    wire.write(FERN)
    await until('it is under way', () => bare.connections.active === 1)
    wire.socket.resetAndDestroy()
    await until('it has left', () => bare.connections.active === 0)
    release()
    await sleep(20)
    assert.deepEqual(bare.answered, lines)
  })

test('aborted: every stored plant has its line and its count', async (t) => {
  const { port, adminPort, logLines } = await startService(t)
  const bearer = token('alice')
  const count = 100
  for (let id = 0; id < count; id++) {
    const wire = await Wire.to(port)
    wire.write(postBytes({ id, name: 'left' }, { token: bearer }))
    // Some leave before the service reads the request, and most while it is stored.
    if (id % 4 > 0) await sleep(id % 4 === 1 ? 0 : 1)
    wire.socket.resetAndDestroy()
  }
  const value = async (name: string): Promise<number> => (await scrape(adminPort)).value(name)
  await until('all have left', async () => (await value('plant_store_connections')) === 0)
  await until('all are done', async () => (await value('http_server_active_requests')) === 0)
  // Creates are stored in their order: this one after all others.
  assert.equal((await post(port, { id: count, name: 'last' }, { token: bearer })).status, 200)
  const stored = (await call(port, { token: bearer })).json()
  assert.ok(Array.isArray(stored) && stored.length > 0)
  const isPost = /"method":"POST","route":"\/plants","status":200,/
  const series = 'http_request_method="POST",http_route="/plants",http_response_status_code="200"'
  const counted = `http_server_request_duration_seconds_count{${series}}`
  assert.equal(logLines.filter((line) => isPost.test(line)).length, stored.length)
  assert.equal(await value(counted), stored.length)
  assert.ok(logLines.some((line) => line.endsWith('"aborted":true}')))
})

test('aborted: a response that the application breaks', async (t) => {
  const bare = await startBare(t)
  const outer = createServer((req, res) => {
    const { writeHead } = res
    Object.assign(res, {
      writeHead(...values: Parameters<typeof writeHead>) {
        writeHead.apply(res, values).flushHeaders()
        throw new Error('broken')
      },
    })
    bare.adapter.handler(req, res)
  }).listen(0, '127.0.0.1')
  await once(outer, 'listening')
  t.after(() => outer.close())
  // It listens on TCP.
  const wire = await Wire.to((outer.address() as AddressInfo).port)
  await wire.write(LIST).end()
  assert.deepEqual(bare.answered, ['GET 200 aborted'])
  wire.destroy()
})

test('aborted: a request that took too long has one line, whatever comes after it', async (t) => {
  const { store, release } = slowStore()
  const timeouts = { requestMs: SHORT_MS, inactiveMs: 2 * SHORT_MS }
  const bare = await startBare(t, { store, timeouts })
  for (const bytes of [FERN.slice(0, -1), FERN]) {
    const wire = await Wire.to(bare.port)
    await wire.write(bytes).end()
    wire.destroy()
  }
  release()
  await sleep(20)
  assert.deepEqual(bare.answered, ['POST 408', 'POST 503'])
})
