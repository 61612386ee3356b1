import assert from 'node:assert/strict'
import { describe, test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Plant } from '../../dist/plants/plant.js'
import { ALICE, type Bare, type BareOptions, listFrom, listOf, slowStore } from '../support/bare.ts'
import { startBare, startMounted } from '../support/bare.ts'
import { call, post } from '../support/http.ts'
import { scrape } from '../support/metrics.ts'
import { startService } from '../support/service.ts'
import { gate, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { answersTo, firstAnswer, head, postBytes, Wire } from '../support/wire.ts'

/*
 * Every request that is served has one line in the log and counts once, also if its client leaves,
 * or is cut off.
 */

const SHORT_MS = 300
const LIST = head('GET', '/plants')
const FERN = postBytes({ id: 1, name: 'Fern' })
const PLANT = { name: 'x'.repeat(1_000_000) }

/** Lists of 100 MB. */
const ENDLESS: BareOptions['store'] = { list: () => listOf(Array(100).fill([PLANT])) }

for (const isEmbedded of [false, true]) {
  const where = isEmbedded ? 'embedded' : 'own server'

  const start = (t: TestContext, options: BareOptions = {}): Promise<Bare> =>
    !isEmbedded
      ? startBare(t, options)
      : startMounted(t, options, (handler) => (req, res) => {
          // Limits of time are the application's; from here on: a busy machine reads late.
          req.socket.setTimeout(options.timeouts?.inactiveMs ?? 0)
          handler(req, res)
        })

  const activeOf = ({ adapter, connections }: Bare): number =>
    (isEmbedded ? adapter : connections).active

  /** Sends the bytes, waits until `begun`, and resets the connection. */
  async function leave(bare: Bare, bytes: string, begun?: (wire: Wire) => boolean): Promise<void> {
    const wire = await Wire.to(bare.port)
    wire.write(bytes)
    await until('it is under way', () => (begun ? begun(wire) : activeOf(bare) === 1))
    wire.socket.resetAndDestroy()
  }

  /** Asserts the lines, and that no other one follows. */
  async function logged(bare: Bare, lines: readonly string[]): Promise<void> {
    const isDone = (): boolean => activeOf(bare) === 0
    await until('all are logged', () => bare.answered.length >= lines.length && isDone())
    await sleep(20)
    assert.deepEqual(bare.answered, lines)
  }

  describe(`aborted: ${where}`, { concurrency: true }, () => {
    const { opened, open } = gate()
    const { store, release } = slowStore()
    const slow = [
      ['its plant is stored', FERN, { store }, release, 'POST 200 aborted'],
      [
        'its token is verified',
        LIST,
        { authenticate: async () => (await opened, ALICE) },
        open,
        'GET 499 aborted',
      ],
    ] as const
    for (const [what, bytes, options, goOn, line] of slow)
      test(`a client that leaves while ${what}`, async (t) => {
        const bare = await start(t, options)
        await leave(bare, bytes)
        await until('it has left', () => activeOf(bare) === 0)
        goOn()
        await logged(bare, [line])
      })

    test('a client that leaves before its body is whole', async (t) => {
      const bare = await start(t)
      await leave(bare, FERN.slice(0, -1))
      await logged(bare, ['POST 499 aborted'])
      assert.equal(bare.plants.size, 0)
    })

    test('a client that leaves in the middle of a list', async (t) => {
      const bare = await start(t, { store: ENDLESS })
      await leave(bare, LIST, ({ text }) => text !== '')
      await logged(bare, ['GET 200 aborted'])
    })

    const page = { list: () => listOf([Array(20).fill(PLANT)]) }
    for (const [what, store] of Object.entries({ list: ENDLESS, page }))
      test(`a reader that stalls, of a ${what}`, async (t) => {
        const bare = await start(t, { store, timeouts: { inactiveMs: SHORT_MS } })
        const wire = await Wire.to(bare.port)
        wire.socket.pause()
        wire.write(LIST)
        await logged(bare, ['GET 200 aborted'])
      })

    test('a list that fails in the middle', async (t) => {
      let chunks = 0
      const next = async (): Promise<Plant[]> => {
        await sleep(1)
        if (chunks++ === 3) throw new Error('the disk is gone')
        return [{ name: 'x' }]
      }
      const bare = await start(t, { store: { list: () => listFrom(next) } })
      await leave(bare, LIST, ({ ended }) => ended)
      await logged(bare, ['GET 200 aborted'])
    })

    test('responses that arrive whole are not aborted', async (t) => {
      const chunks = Array.from({ length: 3 }, () => [PLANT])
      for (const list of [() => listOf(chunks), () => listOf([chunks.flat()])]) {
        const bare = await start(t, { store: { list } })
        await answersTo(bare.port, FERN + LIST + head('HEAD', '/plants') + LIST, 4, [2])
        await logged(bare, ['POST 200', 'GET 200', 'HEAD 200', 'GET 200'])
      }
    })
  })
}

test('aborted: a response that an application sends first', async (t) => {
  const { store, release } = slowStore()
  const bare = await startMounted(t, { store }, (handler) => (req, res) => {
    handler(req, res)
    setTimeout(() => res.writeHead(504, { 'content-length': 0 }).end(), 50)
  })
  assert.equal((await firstAnswer(bare.port, FERN)).status, 504)
  release()
  await until('it is logged', () => bare.answered.length > 0)
  assert.deepEqual(bare.answered, ['POST 200 aborted'])
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
    await until('it is logged', () => bare.answered.length >= lines.length)
    // No other line follows.
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
  const bare = await startMounted(t, {}, (handler) => (req, res) => {
    const { writeHead } = res
    const broken = (...values: Parameters<typeof writeHead>): never => {
      writeHead.apply(res, values).flushHeaders()
      throw new Error('broken')
    }
    handler(req, Object.assign(res, { writeHead: broken }))
  })
  const wire = await Wire.to(bare.port)
  await wire.write(LIST).end()
  assert.deepEqual(bare.answered, ['GET 200 aborted'])
})
