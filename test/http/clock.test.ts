import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { Socket } from 'node:net'
import { join } from 'node:path'
import { describe, test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Created, PlantStore } from '../../dist/plants/store.js'
import { type Bare, type BareOptions, listOf, startBare } from '../support/bare.ts'
import { temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { answersToHalf, head, postBytes, Wire } from '../support/wire.ts'

/*
 * Each state of a connection has one limit, and a test that shows how the connection ends then.
 * Stalled readers use a unix socket, whose buffers are small.
 */

const SHORT_MS = 300
/** Longer: the slow reader runs in this process, which other processes may hold up. */
const SLOW_READER_MS = 900
const LONGER_THAN_A_CHECK_MS = 1200
const SMALL = 60_000
const LARGE = 3_000_000
/** How much a slow reader takes at a time. */
const PART = 300_000

interface OnPath extends Bare {
  readonly path: string
}

async function startOnPath(t: TestContext, options: BareOptions = {}): Promise<OnPath> {
  const path = join(await temporaryDirectory(), 'plants.sock')
  return { ...(await startBare(t, { ...options, path })), path }
}

/** A store whose list is one response of about this many bytes. */
function listing(bytes: number): Pick<PlantStore, 'list'> {
  return { list: () => listOf([[{ name: 'x'.repeat(bytes) }]]) }
}

interface Stalled {
  readonly wire: Wire
  readonly side: Socket
}

/** A client that sends these bytes and reads nothing, and the service's side of its connection. */
async function stall({ server, path }: OnPath, bytes: string): Promise<Stalled> {
  const connected = once(server, 'connection')
  const wire = await Wire.to(path)
  wire.socket.pause()
  wire.write(bytes)
  // The first of its arguments is the socket.
  const [side] = (await connected) as [Socket]
  return { wire, side }
}

/** Takes parts with pauses between, until this many bytes have come or the service ends. */
async function readSlowly(wire: Wire, bytes: number, pauseMs: number): Promise<void> {
  const { socket } = wire
  while (wire.text.length < bytes && !wire.ended) {
    const part = Math.min(bytes, wire.text.length + PART)
    socket.resume()
    // A part comes for sure: on a loaded machine a fixed time might bring nothing.
    while (wire.text.length < part && !wire.ended)
      await Promise.race([once(socket, 'data'), once(socket, 'close')])
    socket.pause()
    await sleep(pauseMs)
  }
  socket.resume()
}

async function closed(side: Socket): Promise<void> {
  await until('the service closes it', () => side.destroyed)
}

// They mostly wait, so they run side by side.
describe('clock', { concurrency: true }, () => {
  test('sending: clients without a token that pipeline and read nothing are closed', async (t) => {
    const bare = await startOnPath(t, { timeouts: { stalledMs: SHORT_MS } })
    const stranger = head('GET', '/trees', { token: undefined, lines: [`X: ${'x'.repeat(300)}`] })
    const clients: Stalled[] = []
    for (let at = 0; at < 10; at++) clients.push(await stall(bare, stranger.repeat(4000)))
    for (const { side } of clients) await closed(side)
    for (const { wire } of clients) wire.destroy()
    await until('none is left', () => bare.connections.size === 0)
  })

  test('sending: a reader that takes nothing is closed after one limit, not two', async (t) => {
    // The clock checks as often as the shortest limit.
    const timeouts = { stalledMs: LONGER_THAN_A_CHECK_MS, requestMs: 50 }
    const bare = await startOnPath(t, { timeouts, store: listing(LARGE) })
    const took: number[] = []
    // A slow machine may be late sometimes.
    while (took.length < 5 && !took.some((ms) => ms < 2 * LONGER_THAN_A_CHECK_MS)) {
      const start = performance.now()
      const { wire, side } = await stall(bare, head('GET', '/plants'))
      await closed(side)
      took.push(performance.now() - start)
      wire.destroy()
    }
    assert.ok(
      took.every((ms) => ms >= LONGER_THAN_A_CHECK_MS),
      String(took),
    )
    assert.ok(
      took.some((ms) => ms < 2 * LONGER_THAN_A_CHECK_MS),
      String(took),
    )
  })

  test('sending: a reader that takes a piece now and then gets all of it', async (t) => {
    const bare = await startOnPath(t, {
      timeouts: { stalledMs: SLOW_READER_MS },
      store: listing(LARGE),
    })
    const { wire } = await stall(bare, head('GET', '/plants'))
    const start = performance.now()
    await readSlowly(wire, LARGE, SLOW_READER_MS / 3)
    const [answer] = await wire.answers(1)
    assert.ok(performance.now() - start > 2 * SLOW_READER_MS, 'it took longer than one limit')
    assert.deepEqual(headerLines(answer ?? assert.fail(), 'content-length'), [
      String(answer?.body.length),
    ])
    assert.equal(answer?.body, JSON.stringify([{ name: 'x'.repeat(LARGE) }]))
    wire.destroy()
  })

  test('sending: a slow reader of many responses gets all of them', async (t) => {
    const timeouts = {
      stalledMs: SLOW_READER_MS,
      requestMs: SLOW_READER_MS,
      headersMs: SLOW_READER_MS,
    }
    const bare = await startOnPath(t, { timeouts, store: listing(SMALL) })
    const count = 120
    const { wire } = await stall(bare, head('GET', '/plants').repeat(count))
    const start = performance.now()
    await readSlowly(wire, count * SMALL, SLOW_READER_MS / 10)
    assert.deepEqual(
      (await wire.answers(count)).map(verdict),
      Array.from({ length: count }, () => 200),
    )
    assert.ok(performance.now() - start > 2 * SLOW_READER_MS, 'it took longer than one limit')
    wire.destroy()
  })

  test('receiving: a body that is late while an earlier response is read is 408', async (t) => {
    const timeouts = { headersMs: SHORT_MS, requestMs: SHORT_MS }
    const bare = await startOnPath(t, { timeouts, store: listing(LARGE) })
    const half = postBytes({ id: 1, name: 'half' }).slice(0, -3)
    const { wire, side } = await stall(bare, head('GET', '/plants') + half)
    await sleep(4 * SHORT_MS)
    assert.equal(side.destroyed, false)
    wire.socket.resume()
    const answers = await wire.allAnswers()
    assert.deepEqual(answers.map(verdict), [200, 'requestTimeout'])
    assert.deepEqual(headerLines(answers[1] ?? assert.fail(), 'connection'), ['close'])
    assert.equal(bare.plants.size, 0)
    wire.destroy()
  })

  test('idle: headers that are late while an earlier request is served are 408', async (t) => {
    const create = async (): Promise<Created> => (await sleep(4 * SHORT_MS), 'stored')
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS }, store: { create } })
    const answers = await answersToHalf(port, async (wire) => {
      wire.write(`${postBytes({ id: 1, name: 'slow' })}GET /plants HTTP/1.1\r\nX: `)
      while (!wire.ended) {
        wire.write('x')
        await sleep(10)
      }
    })
    assert.deepEqual(answers.map(verdict), [200, 'requestTimeout'])
    assert.deepEqual(headerLines(answers[1] ?? assert.fail(), 'connection'), ['close'])
  })

  test('idle: a connection without another request is closed', async (t) => {
    const { port } = await startBare(t, { timeouts: { keepAliveMs: SHORT_MS } })
    const wire = await Wire.to(port)
    await wire.write(head('GET', '/plants')).answers(1)
    assert.deepEqual((await wire.allAnswers()).map(verdict), [200])
    wire.destroy()
  })

  test('serving: a request that the store never answers is 503, and closes', async (t) => {
    let finish = (_created: Created): void => {}
    const create = (): Promise<Created> => new Promise((resolve) => (finish = resolve))
    const { port, connections, answered } = await startBare(t, {
      timeouts: { servingMs: SHORT_MS },
      store: { create },
    })
    const wire = await Wire.to(port)
    wire.write(postBytes({ id: 1, name: 'never' }) + head('GET', '/plants'))
    const answers = await wire.allAnswers()
    assert.deepEqual(answers.map(verdict), ['storageUnavailable'])
    const [answer] = answers
    assert.deepEqual(headerLines(answer ?? assert.fail(), 'connection'), ['close'])
    assert.deepEqual(headerLines(answer ?? assert.fail(), 'retry-after'), ['1'])
    finish('stored')
    await until('the connection is gone', () => connections.size === 0)
    assert.deepEqual(answered, ['POST 503'])
    assert.equal(connections.active, 0)
    wire.destroy()
  })

  test('discarding: a body that never ends after its response is closed', async (t) => {
    const { port, connections } = await startBare(t, { timeouts: { requestMs: SHORT_MS } })
    const wire = await Wire.to(port)
    wire.write(`${head('GET', '/plants', { lines: ['Content-Length: 50'] })}ab`)
    await wire.answers(1)
    while (!wire.ended) {
      wire.write('')
      await sleep(10)
    }
    assert.deepEqual((await wire.allAnswers()).map(verdict), [200])
    wire.destroy()
    await until('the connection is gone', () => connections.size === 0)
  })

  test('discarding: a body that never ends before its response is 408', async (t) => {
    const { port } = await startBare(t, { timeouts: { requestMs: SHORT_MS } })
    const lines = ['Transfer-Encoding: chunked']
    const bytes = `${head('POST', '/plants', { token: undefined, lines })}5\r\n{"id"\r\n`
    const answers = await answersToHalf(port, (wire) => void wire.write(bytes))
    assert.deepEqual(answers.map(verdict), ['requestTimeout'])
  })
})

describe('clock in the server of another application', { concurrency: true }, () => {
  /** The handler in a server on a unix socket. */
  async function mountOnPath(t: TestContext, options: BareOptions): Promise<OnPath> {
    const bare = await startBare(t, options)
    const path = join(await temporaryDirectory(), 'mounted.sock')
    const server = createServer(bare.adapter.handler).listen(path)
    await once(server, 'listening')
    t.after(() => {
      server.close()
      server.closeAllConnections()
    })
    return { ...bare, server, path }
  }

  test('sending: a stalled reader is closed, and its responses are released', async (t) => {
    const timeouts = { stalledMs: SHORT_MS }
    for (const [bytes, count] of [
      [LARGE, 2],
      [SMALL, 100],
    ] as const) {
      const bare = await mountOnPath(t, { timeouts, store: listing(bytes) })
      const { wire, side } = await stall(bare, head('GET', '/plants').repeat(count))
      await until('one response is held', () => bare.answers.heldBytes > 0)
      await closed(side)
      await until('none is held', () => bare.answers.heldBytes === 0)
      wire.destroy()
    }
  })

  test('sending: a response that waits for one of the application is not cut off', async (t) => {
    const { adapter } = await startBare(t, { timeouts: { stalledMs: SHORT_MS } })
    const path = join(await temporaryDirectory(), 'slow.sock')
    const server = createServer((req, res) => {
      if (req.url === '/plants') adapter.handler(req, res)
      else setTimeout(() => res.end('slow'), 5 * SHORT_MS)
    }).listen(path)
    await once(server, 'listening')
    t.after(() => server.close())
    const wire = await Wire.to(path)
    const answers = await wire.write(head('GET', '/slow') + head('GET', '/plants')).answers(2)
    assert.deepEqual(
      answers.map(({ body }) => body),
      ['slow', '[]'],
    )
    wire.destroy()
  })

  test('receiving: a body that never ends is 408', async (t) => {
    const { path, adapter } = await mountOnPath(t, { timeouts: { requestMs: SHORT_MS } })
    const half = postBytes({ id: 1, name: 'half' }).slice(0, -3)
    const answers = await answersToHalf(path, (wire) => void wire.write(half))
    assert.deepEqual(answers.map(verdict), ['requestTimeout'])
    assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'connection'), ['close'])
    await until('it is done', () => adapter.active === 0)
  })

  test('serving: a request that the store never answers is 503', async (t) => {
    const create = (): Promise<Created> => new Promise(() => {})
    const { path } = await mountOnPath(t, { timeouts: { servingMs: SHORT_MS }, store: { create } })
    const wire = await Wire.to(path)
    wire.write(postBytes({ id: 1, name: 'never' }))
    assert.deepEqual((await wire.answers(1)).map(verdict), ['storageUnavailable'])
    wire.destroy()
  })

  test("idle: a connection is the application's to close", async (t) => {
    const timeouts = { keepAliveMs: SHORT_MS, headersMs: SHORT_MS, requestMs: SHORT_MS }
    const { path } = await mountOnPath(t, { timeouts })
    const wire = await Wire.to(path)
    await wire.write(head('GET', '/plants')).answers(1)
    await sleep(5 * SHORT_MS)
    assert.equal((await wire.write(head('GET', '/plants')).answers(2)).length, 2)
    wire.destroy()
  })
})

// Alone: it blocks all others.
test('clock: a pause of the whole process ends no connection', async (t) => {
  const limitMs = 2000
  // The clock checks as often as the shortest limit.
  const timeouts = { requestMs: limitMs, keepAliveMs: limitMs / 20 }
  const { port, connections } = await startBare(t, { timeouts })
  const wire = await Wire.to(port)
  const whole = postBytes({ id: 1, name: 'whole' })
  wire.write(whole.slice(0, -3))
  await until('it is being received', () => connections.active === 1)
  // Until the clock has checked it.
  await sleep(3 * connections.watch.everyMs)
  wire.write(whole.slice(-3))
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1.5 * limitMs)
  assert.deepEqual((await wire.answers(1)).map(verdict), [200])
  wire.destroy()
})

describe('responses that wait in memory', { concurrency: true }, () => {
  for (const bytes of [SMALL, LARGE]) {
    // More than the socket takes.
    const count = Math.ceil(LARGE / bytes)
    const body = JSON.stringify([{ name: 'x'.repeat(bytes) }])

    test(`of ${bytes} bytes: are counted until the client has read them`, async (t) => {
      const bare = await startOnPath(t, { store: listing(bytes) })
      const { wire } = await stall(bare, head('GET', '/plants').repeat(count))
      await until('one response is held', () => bare.answers.heldBytes === body.length)
      wire.socket.resume()
      await wire.answers(count)
      await until('none is held', () => bare.answers.heldBytes === 0)
      wire.destroy()
    })

    test(`of ${bytes} bytes: are counted until the client has left`, async (t) => {
      const bare = await startOnPath(t, { store: listing(bytes) })
      const { wire } = await stall(bare, head('GET', '/plants').repeat(count))
      await until('one response is held', () => bare.answers.heldBytes === body.length)
      wire.destroy()
      await until('none is held', () => bare.answers.heldBytes === 0)
    })

    test(`of ${bytes} bytes: are counted until the clock closes the connection`, async (t) => {
      const timeouts = { stalledMs: SHORT_MS }
      const bare = await startOnPath(t, { timeouts, store: listing(bytes) })
      const { wire, side } = await stall(bare, head('GET', '/plants').repeat(count))
      await until('one response is held', () => bare.answers.heldBytes === body.length)
      await closed(side)
      await until('none is held', () => bare.answers.heldBytes === 0)
      wire.destroy()
    })
  }

  test('of many stalled readers are counted together, those to HEAD are not', async (t) => {
    const bare = await startOnPath(t, { store: listing(LARGE) })
    const held = JSON.stringify([{ name: 'x'.repeat(LARGE) }]).length
    const clients: Stalled[] = []
    for (let at = 0; at < 5; at++) clients.push(await stall(bare, head('GET', '/plants')))
    const only = await stall(bare, head('HEAD', '/plants').repeat(2))
    await until('five responses are held', () => bare.answers.heldBytes === 5 * held)
    for (const { wire } of [...clients, only]) wire.destroy()
    await until('none is held', () => bare.answers.heldBytes === 0)
  })
})
