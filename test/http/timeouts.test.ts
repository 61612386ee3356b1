import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { join } from 'node:path'
import { describe, test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Created } from '../../dist/plants/store.js'
import { type Bare, type BareOptions, listOf, startBare } from '../support/bare.ts'
import { temporaryDirectory } from '../support/directories.ts'
import { changeTimers, until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { answersToHalf, head, postBytes, Wire } from '../support/wire.ts'

const SHORT_MS = 300
/** Longer: the slow reader runs in this process, which other processes may hold up. */
const SLOW_READER_MS = 900
/** How long a client has for a piece of more than 64 KiB. */
const LONG_PIECE_MS = 120_000
/** One chunk of a list. */
const MEGABYTE = [{ name: 'x'.repeat(1_000_000) }]
const CHUNKED_JSON = ['Content-Type: application/json', 'Transfer-Encoding: chunked']
const HALF_POST = postBytes({ id: 1, name: 'half' }).slice(0, -3)

interface OnPath extends Bare {
  readonly path: string
}

/** On a unix socket, whose buffers are small. */
async function startOnPath(t: TestContext, options: BareOptions): Promise<OnPath> {
  const path = join(await temporaryDirectory(), 'plants.sock')
  return { ...(await startBare(t, { ...options, path })), path }
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

// They mostly wait, so they run side by side.
describe('timeouts', { concurrency: true }, () => {
  test('late headers are 408, after the responses to earlier requests', async (t) => {
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS } })
    for (const before of ['', head('GET', '/plants')]) {
      const answers = await answersToHalf(
        port,
        (wire) => void wire.write(`${before}GET /plants HTTP/1.1\r\nHost:`),
      )
      assert.deepEqual(
        answers.map(verdict),
        before === '' ? ['requestTimeout'] : [200, 'requestTimeout'],
      )
      assert.deepEqual(headerLines(answers.at(-1) ?? assert.fail(), 'connection'), ['close'])
    }
  })

  test('headers that come byte by byte are 408 too', async (t) => {
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS } })
    const answers = await answersToHalf(port, async (wire) => {
      wire.write('GET /plants HTTP/1.1\r\nHost: ')
      while (!wire.ended) {
        wire.write('a')
        await sleep(10)
      }
    })
    assert.deepEqual(answers.map(verdict), ['requestTimeout'])
  })

  test('a connection that is never used is closed without a response', async (t) => {
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS } })
    const wire = await Wire.to(port)
    assert.deepEqual(await wire.allAnswers(), [])
    wire.destroy()
  })

  test('a late body is 408, slow or stalled, and its plant is not created', async (t) => {
    // As in the service, where it is twice as long.
    const { port, plants, answered, bodies } = await startBare(t, {
      timeouts: { headersMs: SHORT_MS, requestMs: 2 * SHORT_MS, inactiveMs: 4 * SHORT_MS },
    })
    for (const trickling of [false, true]) {
      for (const bytes of [
        HALF_POST,
        head('POST', '/plants', { lines: CHUNKED_JSON }) + '5\r\n{"id"\r\n',
      ]) {
        const answers = await answersToHalf(port, async (wire) => {
          wire.write(bytes)
          while (trickling && !wire.ended) {
            wire.write(bytes === HALF_POST ? '' : '1\r\n \r\n')
            await sleep(10)
          }
          while (!wire.ended) await sleep(10)
          // The rest comes too late.
          wire.write(bytes === HALF_POST ? '"}\n' : '0\r\n\r\n')
          await sleep(10)
        })
        assert.deepEqual(answers.map(verdict), ['requestTimeout'])
      }
    }
    assert.equal(plants.size, 0)
    assert.deepEqual(new Set(answered), new Set(['POST 408']))
    await until('no body is held', () => bodies.held === 0)
  })

  test('a body that is complete after its 408 creates no plant', async (t) => {
    const { port, plants, bodies } = await startBare(t, {
      timeouts: { headersMs: SHORT_MS, requestMs: SHORT_MS },
    })
    const answers = await answersToHalf(port, async (wire) => {
      wire.write(HALF_POST)
      while (!wire.ended) await sleep(10)
      wire.write(postBytes({ id: 1, name: 'half' }).slice(-3))
      await sleep(50)
    })
    assert.deepEqual(answers.map(verdict), ['requestTimeout'])
    assert.equal(plants.size, 0)
    await until('no body is held', () => bodies.held === 0)
  })

  test('an unread body that never ends brings no second response', async (t) => {
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS, requestMs: SHORT_MS } })
    for (const bytes of [
      `${head('GET', '/plants', { lines: ['Content-Length: 5'] })}ab`,
      `${head('DELETE', '/plants', { lines: ['Content-Length: 5'] })}ab`,
    ]) {
      assert.equal((await answersToHalf(port, (wire) => void wire.write(bytes))).length, 1)
    }
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
      (wire) =>
        void wire.write(postBytes({ id: 1, name: 'a' }) + head('GET', '/plants')).halfClose(),
    )
    assert.deepEqual(answers.map(verdict), [200, 200])
  })

  test('a token or a store that takes too long is 503, each with its own value', async (t) => {
    const never = (): Promise<never> => new Promise(() => {})
    const timeouts = { inactiveMs: SHORT_MS }
    for (const [options, condition] of [
      [{ timeouts, authenticate: never }, 'overloaded'],
      [{ timeouts, store: { create: never } }, 'storageUnavailable'],
    ] as const) {
      const { port } = await startBare(t, options)
      const wire = await Wire.to(port)
      const [answer] = await wire.write(postBytes({ id: 1, name: 'a' })).answers(1)
      assert.equal(verdict(answer ?? assert.fail()), condition)
      assert.deepEqual(headerLines(answer ?? assert.fail(), 'retry-after'), ['1'])
      wire.destroy()
    }
  })

  test('a stalled reader is cut off, of a list and of a page', async (t) => {
    for (const chunks of [Array.from({ length: 100 }, () => MEGABYTE), [MEGABYTE, MEGABYTE]]) {
      const list = () => listOf(chunks.length > 2 ? chunks : [chunks.flat()])
      const bare = await startOnPath(t, { timeouts: { inactiveMs: SHORT_MS }, store: { list } })
      const { wire, side } = await stall(bare, head('GET', '/plants').repeat(2))
      await until('the service closes it', () => side.destroyed)
      await until('it is logged', () => bare.answered.length > 0)
      assert.deepEqual(bare.answered, ['GET 200 aborted'])
      wire.destroy()
    }
  })

  test('a reader that takes a part now and then gets all of it', async (t) => {
    const three = [MEGABYTE, MEGABYTE, MEGABYTE]
    for (const chunks of [three, [three.flat()]]) {
      const timeouts = { inactiveMs: SLOW_READER_MS, requestMs: SHORT_MS }
      const store = { list: () => listOf(chunks) }
      const bare = await startOnPath(t, { timeouts, store })
      const start = performance.now()
      const { wire } = await stall(bare, head('GET', '/plants'))
      const body = JSON.stringify(chunks.flat())
      await readSlowly(wire, body.length, SLOW_READER_MS / 3)
      const [answer] = await wire.answers(1)
      assert.ok(answer?.body === body, String(answer?.body.length))
      assert.ok(performance.now() - start > 2 * SLOW_READER_MS, 'it took longer than one limit')
      wire.destroy()
    }
  })

  test('a body that is late while an earlier response is read is 408 after it', async (t) => {
    const timeouts = { requestMs: SHORT_MS }
    const bare = await startOnPath(t, { timeouts, store: { list: () => listOf([MEGABYTE]) } })
    const { wire, side } = await stall(bare, head('GET', '/plants') + HALF_POST)
    await sleep(4 * SHORT_MS)
    assert.equal(side.destroyed, false)
    wire.socket.resume()
    const answers = await wire.allAnswers()
    assert.deepEqual(answers.map(verdict), [200, 'requestTimeout'])
    assert.deepEqual(headerLines(answers[1] ?? assert.fail(), 'connection'), ['close'])
    assert.equal(bare.plants.size, 0)
    wire.destroy()
  })

  test('headers that are late while an earlier request is served are 408 after it', async (t) => {
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

  test('a connection without another request is closed', async (t) => {
    const { port } = await startBare(t, { timeouts: { keepAliveMs: SHORT_MS } })
    const wire = await Wire.to(port)
    const [answer = assert.fail()] = await wire.write(head('GET', '/plants')).answers(1)
    assert.match(headerLines(answer, 'keep-alive').join(), /^timeout=\d+$/)
    assert.deepEqual((await wire.allAnswers()).map(verdict), [200])
    assert.equal(wire.error, undefined)
    wire.destroy()
  })

  test('a request that the store never answers is 503, and the last one', async (t) => {
    let finish = (_created: Created): void => {}
    const create = (): Promise<Created> => new Promise((resolve) => (finish = resolve))
    const { port, connections, answered } = await startBare(t, {
      timeouts: { inactiveMs: SHORT_MS },
      store: { create },
    })
    const wire = await Wire.to(port)
    wire.write(postBytes({ id: 1, name: 'never' }) + head('GET', '/plants'))
    const answers = await wire.allAnswers()
    assert.deepEqual(answers.map(verdict), ['storageUnavailable'])
    const [answer = assert.fail()] = answers
    assert.deepEqual(headerLines(answer, 'connection'), ['close'])
    assert.deepEqual(headerLines(answer, 'retry-after'), ['1'])
    finish('stored')
    await until('the connection is gone', () => connections.size === 0)
    assert.deepEqual(answered, ['POST 503'])
    assert.equal(connections.active, 0)
    wire.destroy()
  })

  test('a body that never ends after its response ends the connection', async (t) => {
    const { port, connections } = await startBare(t, { timeouts: { requestMs: SHORT_MS } })
    for (const [bytes, expected] of [
      [`${head('GET', '/plants', { lines: ['Content-Length: 50'] })}ab`, 200],
      [`${head('PUT', '/plants', { lines: CHUNKED_JSON })}1\r\na\r\n`, 'methodNotAllowed'],
    ] as const) {
      const wire = await Wire.to(port)
      assert.deepEqual((await wire.write(bytes).allAnswers()).map(verdict), [expected])
      wire.destroy()
    }
    await until('the connections are gone', () => connections.size === 0)
  })
})

// Alone: it shortens timers of the whole process.
test('timeouts: a piece above 64 KiB must be taken within two minutes, others not', async (t) => {
  changeTimers(t, LONG_PIECE_MS, SHORT_MS)
  const short = [{ name: 'x'.repeat(60_000) }]
  for (const [chunks, answered] of [
    [[MEGABYTE], 'GET 200 aborted'],
    [[short, MEGABYTE, short], 'GET 200 aborted'],
    [Array.from({ length: 16 }, () => short), 'GET 200'],
  ] as const) {
    const bare = await startOnPath(t, { store: { list: () => listOf(chunks) } })
    const { wire } = await stall(bare, head('GET', '/plants'))
    // It takes a little all the time, so the limit of inactivity never ends it.
    const size = JSON.stringify(chunks.flat()).length
    await readSlowly(wire, size, SHORT_MS / 2, size / 16)
    await until('it is logged', () => bare.answered.length > 0)
    assert.deepEqual(bare.answered, [answered])
    wire.destroy()
  }
})
