import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { AddressInfo, Socket } from 'node:net'
import { test, type TestContext } from 'node:test'
import { setImmediate as yieldTick } from 'node:timers/promises'
import { HttpError } from '../../dist/errors.js'
import type { Responder } from '../../dist/http/responder.js'
import { errorResponse } from '../../dist/http/response.js'
import { HttpServer } from '../../dist/http/server.js'
import { TickEnd } from '../../dist/http/tick.js'
import { FairQueue } from '../../dist/limits/fair-queue.js'
import { listOf, startBare, timeoutsOf } from '../support/bare.ts'
import { startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

const GET = head('GET', '/plants')
const ARRIVAL_MS = 20

/** The service reads all that is sent in one tick: the event loop is blocked until it is there. */
function inOneTick(send: () => void): void {
  send()
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ARRIVAL_MS)
}

/** Requests that `prime` makes. */
const PRIMING = 4

/**
 * Makes the service read two requests in one tick. All responses of the next tick then wait for its
 * end, the first one too.
 */
async function prime({
  port,
  connections,
}: {
  readonly port: number
  readonly connections: HttpServer
}): Promise<void> {
  const wires = [await Wire.to(port), await Wire.to(port)]
  for (const wire of wires) await wire.write(GET).answers(1)
  inOneTick(() => wires.forEach((wire) => wire.write(GET)))
  for (const wire of wires) await wire.answers(2)
  for (const wire of wires) wire.destroy()
  await until('they are gone', () => connections.size === 0)
}

/** Connections alone, with the test's own responder. */
async function startCore(
  t: TestContext,
  responder: Partial<Responder> & Pick<Responder, 'serve'>,
): Promise<{ readonly port: number; readonly connections: HttpServer }> {
  const whole = {
    timeoutError: () => new HttpError('internal'),
    responseFailed: () => {},
    explain: () => errorResponse(new HttpError('internal')),
    answered: () => {},
    accepted: () => {},
    draining: false,
  }
  // Not spread: `draining` may be a getter.
  const connections = new HttpServer(
    Object.defineProperties(whole, Object.getOwnPropertyDescriptors(responder)) as typeof whole &
      typeof responder,
    timeoutsOf({}),
  )
  const { server } = connections
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(async () => {
    server.close()
    await connections.drain(0)
  })
  // It listens on TCP.
  return { port: (server.address() as AddressInfo).port, connections }
}

function recording(): { readonly sent: number[]; readonly add: (count: number) => void } {
  const tickEnd = new TickEnd()
  const sent: number[] = []
  let next = 0
  return {
    sent,
    add(count) {
      for (let i = 0; i < count; i++) {
        const id = next++
        tickEnd.add(() => sent.push(id))
      }
    },
  }
}

test('tick: a response that is alone in its tick is sent at once', async () => {
  const { sent, add } = recording()
  for (const expected of [[0], [0, 1], [0, 1, 2]]) {
    add(1)
    assert.deepEqual(sent, expected)
    await yieldTick()
  }
})

test('tick: of several responses after a quiet tick the first is sent at once', async () => {
  const { sent, add } = recording()
  add(3)
  assert.deepEqual(sent, [0])
  await yieldTick()
  assert.deepEqual(sent, [0, 1, 2])
})

test('tick: after a busy tick all wait for the end; after a quiet one none does', async () => {
  const { sent, add } = recording()
  add(2)
  await yieldTick()
  add(1)
  assert.deepEqual(sent, [0, 1])
  await yieldTick()
  assert.deepEqual(sent, [0, 1, 2])
  add(1)
  assert.deepEqual(sent, [0, 1, 2, 3])
})

test('tick: at most 32 responses wait, and each is sent once, in order', async () => {
  const { sent, add } = recording()
  const all = Array.from({ length: 1000 }, (_, i) => i)
  for (let i = 0; i < 1000; i++) {
    add(1)
    assert.ok(i - sent.length < 32, `${sent.length} of ${i + 1} sent`)
  }
  await yieldTick()
  assert.deepEqual(sent, all)
})

test('tick: a response that is added while others are sent is sent too', async () => {
  const tickEnd = new TickEnd()
  const sent: string[] = []
  const chain = (name: string, left: number): void => {
    sent.push(`${name}${left}`)
    if (left > 0) tickEnd.add(() => chain(name, left - 1))
  }
  for (const name of ['a', 'b', 'c']) tickEnd.add(() => chain(name, 50))
  for (let ticks = 0; ticks < 100 && sent.length < 153; ticks++) await yieldTick()
  assert.equal(sent.length, 153)
  for (const name of ['a', 'b', 'c']) {
    assert.deepEqual(
      sent.filter((each) => each.startsWith(name)),
      Array.from({ length: 51 }, (_, i) => `${name}${50 - i}`),
    )
  }
})

test('tick: each of many clients gets its own responses in order', async (t) => {
  const { port } = await startService(t)
  const wires = await Promise.all(Array.from({ length: 60 }, () => Wire.to(port)))
  const stays = (at: number): boolean => at % 7 !== 3
  for (let round = 0; round < 3; round++) {
    // Written in one tick of this process. The service runs in it too, and reads them in one.
    for (const [at, wire] of wires.entries()) {
      const own = { token: token(`owner ${at}`) }
      wire.write(
        head('GET', '/plants', own) +
          postBytes({ id: round, name: `${at}-${round}` }, own) +
          head('GET', '/plants', own) +
          head('HEAD', '/plants?limit=0', own),
      )
      if (round === 2 && !stays(at)) wire.socket.resetAndDestroy()
    }
    for (const [at, wire] of wires.entries()) {
      if (round === 2 && !stays(at)) continue
      const count = 4 * (round + 1)
      const answers = await wire.answers(
        count,
        Array.from({ length: round + 1 }, (_, i) => 4 * i + 3),
      )
      const plants = Array.from({ length: round + 1 }, (_, i) => ({ name: `${at}-${i}` }))
      const [before, created, after, none] = answers.slice(-4)
      assert.deepEqual(JSON.parse(before?.body ?? ''), plants.slice(0, -1))
      assert.deepEqual(JSON.parse(created?.body ?? ''), plants.at(-1))
      assert.deepEqual(JSON.parse(after?.body ?? ''), plants)
      assert.deepEqual(
        [none?.status, none?.body, none?.headers.get('content-length')],
        [200, '', ['2']],
      )
    }
  }
  for (const wire of wires) wire.destroy()
})

test('tick: a response that cannot be sent is cut off, and the others are sent', async (t) => {
  const { port, connections } = await startCore(t, {
    // Node throws at such a header: an example of a response that cannot be sent.
    serve: ({ req }) => ({
      status: 200,
      headers: req.url === '/bad' ? ['X', 'a\nb'] : [],
      body: Buffer.from(`"${req.url}"`),
    }),
  })
  for (const count of [40, 6]) {
    await prime({ port, connections })
    const wires = await Promise.all(Array.from({ length: count }, () => Wire.to(port)))
    await until('all are accepted', () => connections.size === count)
    inOneTick(() =>
      wires.forEach((wire, at) => wire.write(head('GET', at === 5 ? '/bad' : `/${at}`))),
    )
    const [bad] = wires.splice(5, 1)
    assert.deepEqual(await bad?.allAnswers(), [])
    const seen = await Promise.all(wires.map(async (wire) => (await wire.answers(1))[0]))
    assert.deepEqual(
      seen.map((answer) => `${answer?.status} ${answer?.body}`),
      wires.map((_, at) => `200 "/${at < 5 ? at : at + 1}"`),
    )
    assert.equal(connections.active, 0)
    for (const wire of wires) wire.destroy()
  }
})

test('tick: a list whose reader leaves before the end of the tick is not sent', async (t) => {
  const sides: Socket[] = []
  let opened = 0
  // Where the machine is busy, a piece may take so long that the next one would wait a tick.
  const queue = new FairQueue()
  queue.run = (_owner, work) => work()
  const { port, server, connections, answered } = await startBare(t, {
    queue,
    store: {
      list: () => {
        opened++
        // When the third is opened, the first two wait for the end of the tick.
        if (opened === PRIMING + 3) {
          sides[0]?.destroy()
          sides[1]?.resetAndDestroy()
        }
        return listOf([[{ name: 'a' }], [{ name: 'b' }], [{ name: 'c' }]])
      },
    },
  })
  await prime({ port, connections })
  await until('its connections are closed', () => connections.size === 0)
  server.on('connection', (side: Socket) => sides.push(side))
  const wires: Wire[] = []
  for (let at = 0; at < 4; at++) {
    wires.push(await Wire.to(port))
    await until('it is accepted', () => sides.length === at + 1)
  }
  inOneTick(() => wires.forEach((wire) => wire.write(GET)))
  for (const wire of wires.slice(2))
    assert.equal((await wire.answers(1))[0]?.body, '[{"name":"a"},{"name":"b"},{"name":"c"}]')
  for (const wire of wires.slice(0, 2)) {
    await wire.end()
    assert.equal(wire.text, '')
  }
  await until('all four are logged', () => answered.length >= PRIMING + 4)
  assert.equal(opened, PRIMING + 4)
  const aborted = answered.filter((line) => line === 'GET 200 aborted')
  assert.deepEqual([answered.length, aborted.length], [PRIMING + 4, 2])
  assert.equal(connections.active, 0)
  for (const wire of wires) wire.destroy()
})

test('tick: a stop that begins before the end of the tick answers, then closes', async (t) => {
  let draining = false
  let connections: HttpServer | undefined
  let drained: Promise<unknown> = Promise.resolve()
  const started = await startCore(t, {
    serve({ req }) {
      if (req.url === '/stop') {
        draining = true
        // Nothing comes in between their looks: the second closes what is idle.
        drained = Promise.all([connections?.drain(10_000), connections?.drain(10_000)])
      }
      return { status: 200, headers: [], body: Buffer.from(`"${req.url}"`) }
    },
    get draining() {
      return draining
    },
  })
  connections = started.connections
  await prime(started)
  const wires = await Promise.all(Array.from({ length: 3 }, () => Wire.to(started.port)))
  await until('all are accepted', () => started.connections.size === 3)
  inOneTick(() =>
    wires.forEach((wire, at) => wire.write(head('GET', at === 2 ? '/stop' : `/${at}`)).halfClose()),
  )
  const answers = (await Promise.all(wires.map((wire) => wire.allAnswers()))).flat()
  assert.deepEqual(
    answers.map(({ body }) => body),
    ['"/0"', '"/1"', '"/stop"'],
  )
  assert.deepEqual(
    answers.map(({ headers }) => headers.get('connection')),
    [['close'], ['close'], ['close']],
  )
  await drained
  assert.equal(started.connections.size, 0)
})

test('tick: a GET that follows an acknowledged create sees its plant', async (t) => {
  const { port } = await startService(t, { logLevel: 'silent' })
  const writer = await Wire.to(port)
  const readers = await Promise.all(Array.from({ length: 8 }, () => Wire.to(port)))
  await writer.write(GET).answers(1)
  for (let id = 1; id <= 30; id++) {
    // Lists and the create are under way together, so that ticks have several responses.
    inOneTick(() => {
      for (const reader of readers.slice(4)) reader.write(GET)
      writer.write(postBytes({ id, name: String(id) }))
      for (const reader of readers.slice(0, 4)) reader.write(GET)
    })
    await writer.answers(1 + id)
    for (const reader of readers) reader.write(GET)
    const seen = await Promise.all(
      readers.map(async (reader) =>
        (await reader.answers(2 * id))
          .slice(-2)
          .map(({ body }) => (JSON.parse(body) as unknown[]).length),
      ),
    )
    for (const [during, after] of seen) {
      assert.ok(during === id - 1 || during === id, `${during} plants, with ${id} on their way`)
      assert.equal(after, id)
    }
  }
  for (const wire of [writer, ...readers]) wire.destroy()
})
