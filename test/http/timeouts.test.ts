import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Created } from '../../dist/plants/store.js'
import { type Bare, type BareOptions, listOf, startBare, startOnPath } from '../support/bare.ts'
import { changeTimers, gate, until } from '../support/time.ts'
import { assertLast, headerLines, verdict } from '../support/verdict.ts'
import { answersToHalf, answersUntilEnd, CHUNKED, chunk, head } from '../support/wire.ts'
import { postBytes, posting, Wire } from '../support/wire.ts'

const GET = head('GET', '/plants')
const SHORT_MS = 300
/** Longer: the slow reader runs in this process, which other processes may hold up. */
const SLOW_READER_MS = 900
/** How long a client has for a piece of more than 64 KiB. */
const LONG_PIECE_MS = 120_000
/** One chunk of a list. */
const MEGABYTE = [{ name: 'x'.repeat(1_000_000) }]
const THREE = [MEGABYTE, MEGABYTE, MEGABYTE]
const HALF_POST = postBytes({ id: 1, name: 'half' }).slice(0, -3)

/** A client that sends these bytes and reads nothing, and the service's side of its connection. */
async function stall({ server, path }: Bare & { readonly path: string }, bytes: string) {
  const connected = once(server, 'connection')
  const wire = await Wire.to(path)
  wire.socket.pause()
  wire.write(bytes)
  // The first of its arguments is the socket.
  const [side] = (await connected) as [Socket]
  return { wire, side }
}

/** Takes parts with pauses between, until this many bytes have come or the service ends. */
async function readSlowly(
  wire: Wire,
  bytes: number,
  pauseMs: number,
  partBytes = 300_000,
): Promise<void> {
  const { socket } = wire
  const ended = Promise.race([once(socket, 'end'), once(socket, 'close')])
  while (wire.text.length < bytes && !wire.ended) {
    const part = Math.min(bytes, wire.text.length + partBytes)
    socket.resume()
    // A part comes for sure: on a loaded machine a fixed time might bring nothing.
    while (wire.text.length < part && !wire.ended) await Promise.race([once(socket, 'data'), ended])
    socket.pause()
    await sleep(pauseMs)
  }
  socket.resume()
}

/** Sends this every 10 ms until the service ends the connection. */
async function trickle(wire: Wire, bytes: string): Promise<void> {
  while (!wire.ended) {
    wire.write(bytes)
    await sleep(10)
  }
}

// They mostly wait, so they run side by side.
describe('timeouts', { concurrency: true }, () => {
  const SLOW_POST = postBytes({ id: 1, name: 'slow' })
  const slow = { create: async (): Promise<Created> => (await sleep(4 * SHORT_MS), 'stored') }
  for (const [what, before, more, expected] of [
    ['late headers are 408', '', '', ['requestTimeout']],
    ['late headers of a second request are 408', GET, '', [200, 'requestTimeout']],
    ['headers that come byte by byte are 408', '', 'a', ['requestTimeout']],
    ['late headers after a slow create are 408', SLOW_POST, 'a', [200, 'requestTimeout']],
  ] as const)
    test(what, async (t) => {
      const bare = await startBare(t, { timeouts: { headersMs: SHORT_MS }, store: slow })
      const answers = await answersToHalf(bare.port, (wire) => {
        wire.write(`${before}GET /plants HTTP/1.1\r\nHost:`)
        return trickle(wire, more)
      })
      assertLast(answers, expected)
    })

  test('a connection that is never used is closed without a response', async (t) => {
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS } })
    const wire = await Wire.to(port)
    assert.deepEqual(await wire.allAnswers(), [])
  })

  const BEGUN = posting([CHUNKED]) + chunk('{"id"')
  for (const [what, bytes, more, rest] of [
    ['that stalls', HALF_POST, '', '"}\n'],
    ['in chunks that stalls', BEGUN, '', chunk(':1,"name":"a"}') + '0\r\n\r\n'],
    ['in chunks that trickles', BEGUN, chunk(' '), chunk(':1,"name":"a"}') + '0\r\n\r\n'],
  ] as const)
    test(`a body ${what} is 408, and its plant is not created`, async (t) => {
      // As in the service, where it is twice as long.
      const timeouts = { headersMs: SHORT_MS, requestMs: 2 * SHORT_MS, inactiveMs: 4 * SHORT_MS }
      const { port, plants, answered, bodies } = await startBare(t, { timeouts })
      const answers = await answersToHalf(port, async (wire) => {
        await trickle(wire.write(bytes), more)
        // The rest comes too late.
        wire.write(rest)
        await sleep(50)
      })
      assertLast(answers, ['requestTimeout'])
      assert.equal(plants.size, 0)
      assert.deepEqual(new Set(answered), new Set(['POST 408']))
      await until('no body is held', () => bodies.held === 0)
    })

  test('a timeout writes nothing into the middle of a list', async (t) => {
    const plants = Array.from({ length: 20 }, () => ({ name: 'a' }))
    const { port } = await startBare(t, {
      timeouts: { headersMs: SHORT_MS, requestMs: SHORT_MS },
      store: {
        list() {
          const chunks = listOf(plants.map((plant) => [plant]))
          let calls = 0
          return {
            async next() {
              // With the first two the response is under way.
              if (calls++ > 1) await sleep(40)
              return chunks.next()
            },
          }
        },
      },
    })
    const answers = await answersToHalf(
      port,
      (wire) => void wire.write(`${head('GET', '/plants', { lines: ['Content-Length: 5'] })}ab`),
    )
    assert.deepEqual(answers.map(verdict), [200])
    assert.deepEqual(JSON.parse(answers[0]?.body ?? ''), plants)
  })

  test('the time that the service takes is not counted against the client', async (t) => {
    const { port } = await startBare(t, {
      timeouts: { headersMs: SHORT_MS, requestMs: SHORT_MS },
      store: { create: async (): Promise<Created> => (await sleep(3 * SHORT_MS), 'stored') },
    })
    // The client's end closes it: an idle connection would stay open.
    const answers = await answersToHalf(
      port,
      (wire) => void wire.write(postBytes({ id: 1, name: 'a' }) + GET).halfClose(),
    )
    assert.deepEqual(answers.map(verdict), [200, 200])
  })

  for (const [what, chunks] of Object.entries({ list: THREE, page: [THREE.flat()] }))
    test(`a reader that takes a part of a ${what} now and then gets all of it`, async (t) => {
      const timeouts = { inactiveMs: SLOW_READER_MS, requestMs: SHORT_MS }
      const bare = await startOnPath(t, { timeouts, store: { list: () => listOf(chunks) } })
      const start = performance.now()
      const { wire } = await stall(bare, GET)
      const body = JSON.stringify(chunks.flat())
      await readSlowly(wire, body.length, SLOW_READER_MS / 3)
      const [answer] = await wire.answers(1)
      assert.ok(answer?.body === body, String(answer?.body.length))
      assert.ok(performance.now() - start > 2 * SLOW_READER_MS, 'it took longer than one limit')
    })

  test('a body that is late while an earlier response is read is 408 after it', async (t) => {
    const timeouts = { requestMs: SHORT_MS }
    const bare = await startOnPath(t, { timeouts, store: { list: () => listOf([MEGABYTE]) } })
    const { wire, side } = await stall(bare, GET + HALF_POST)
    await sleep(4 * SHORT_MS)
    assert.equal(side.destroyed, false)
    wire.socket.resume()
    assertLast(await wire.allAnswers(), [200, 'requestTimeout'])
    assert.equal(bare.plants.size, 0)
  })

  test('a connection without another request is closed', async (t) => {
    const { port } = await startBare(t, { timeouts: { keepAliveMs: SHORT_MS } })
    const wire = await Wire.to(port)
    const [answer = assert.fail()] = await wire.write(GET).answers(1)
    assert.match(headerLines(answer, 'keep-alive').join(), /^timeout=\d+$/)
    assert.deepEqual((await wire.allAnswers()).map(verdict), [200])
    assert.equal(wire.error, undefined)
  })

  for (const [when, rest] of [['comes late', 'x'.repeat(50)], ['never comes', '']] as const)
    test(`a connection whose body ${when} is closed without a reset`, async (t) => {
      const { port } = await startBare(t, { timeouts: { keepAliveMs: SHORT_MS } })
      const wire = await Wire.to(port)
      await wire.write(head('GET', '/plants', { lines: ['Content-Length: 50'] })).answers(1)
      wire.write(rest)
      assert.deepEqual((await wire.allAnswers()).map(verdict), [200])
      assert.equal(wire.error, undefined)
    })

  const never: readonly (readonly [string, (opened: Promise<never>) => BareOptions, string])[] = [
    ['token', (opened) => ({ authenticate: () => opened }), 'overloaded'],
    ['store', (opened) => ({ store: { create: () => opened } }), 'storageUnavailable'],
  ]
  for (const [what, optionsOf, condition] of never)
    test(`a ${what} that takes too long is 503, and the last response`, async (t) => {
      const { opened, open } = gate()
      const late = opened.then(() => assert.fail('too late'))
      const options = { ...optionsOf(late), timeouts: { inactiveMs: SHORT_MS } }
      const { port, connections, answered } = await startBare(t, options)
      const answers = await answersUntilEnd(port, postBytes({ id: 1, name: 'a' }) + GET)
      assertLast(answers, [condition])
      assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'retry-after'), ['1'])
      open()
      await until('the connection is gone', () => connections.sockets.length === 0)
      assert.deepEqual(answered, ['POST 503'])
      assert.equal(connections.active, 0)
    })

  for (const [bytes, expected] of [
    [`${head('GET', '/plants', { lines: ['Content-Length: 50'] })}ab`, 200],
    [head('PUT', '/plants', { lines: [CHUNKED] }) + chunk('a'), 'methodNotAllowed'],
  ] as const)
    test(`a body that never ends after its ${expected} ends the connection`, async (t) => {
      const { port, connections } = await startBare(t, { timeouts: { requestMs: SHORT_MS } })
      assert.deepEqual((await answersUntilEnd(port, bytes)).map(verdict), [expected])
      await until('the connection is gone', () => connections.sockets.length === 0)
    })
})

const SHORT = [{ name: 'x'.repeat(60_000) }]

// Alone: it shortens timers of the whole process.
test('timeouts: a piece above 64 KiB must be taken within two minutes', async (t) => {
  changeTimers(t, LONG_PIECE_MS, SHORT_MS)
  const rows = [
    ['a list of one', [MEGABYTE], 'GET 200 aborted'],
    ['one between short ones', [SHORT, MEGABYTE, SHORT], 'GET 200 aborted'],
    ['short ones may take longer', Array(16).fill(SHORT), 'GET 200'],
  ] as const
  await Promise.all(
    rows.map(async ([what, chunks, line]) => {
      const bare = await startOnPath(t, { store: { list: () => listOf(chunks) } })
      const { wire } = await stall(bare, GET)
      // It takes a little all the time, so the limit of inactivity never ends it.
      const size = JSON.stringify(chunks.flat()).length
      await readSlowly(wire, size, SHORT_MS / 2, size / 16)
      await until('it is logged', () => bare.answered.length > 0)
      assert.deepEqual(bare.answered, [line], what)
    }),
  )
})
