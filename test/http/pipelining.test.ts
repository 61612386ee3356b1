import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { describe, test } from 'node:test'
import { setImmediate as yieldTick, setTimeout as sleep } from 'node:timers/promises'
import { Connection } from '../../dist/http/connection.js'
import type { Created } from '../../dist/plants/store.js'
import { listOf, slowStore, startBare, startOnPath } from '../support/bare.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { lengthenTimers, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { assertLast, headerLines, verdict } from '../support/verdict.ts'
import { answersTo, answersUntilEnd, CHUNKED, chunks, head } from '../support/wire.ts'
import { postBytes, posting, Wire } from '../support/wire.ts'

/** After its last response a client is closed after this time, whatever it still sends. */
const LINGER_MS = 1000
/** Of requests of every kind, on one connection. */
const ROUNDS = THOROUGH ? 8 : 3
/** As many requests as one write may bring: one is served, and 7 wait. */
const AT_ONCE = 8
const GET = head('GET', '/plants')
const FIRST = postBytes({ id: 1, name: 'first' })
const ABC = 'Content-Length: 3'
const STRANGER = { token: undefined }

// They mostly wait, so they run side by side.
describe('pipelining', { concurrency: true }, () => {
  test('a GET after a POST sees its plant, again and again', async (t) => {
    const { port } = await startService(t)
    const wire = await Wire.to(port)
    for (let id = 0; id < 24; ) {
      let bytes = ''
      const expected: string[] = []
      for (const end = id + AT_ONCE / 2; id < end; id++) {
        bytes += postBytes({ id, name: String(id) }) + GET
        const list = Array.from({ length: id + 1 }, (_, at) => ({ name: String(at) }))
        expected.push(`{"name":"${id}"}`, JSON.stringify(list))
      }
      const answers = (await wire.write(bytes).answers(2 * id)).slice(-AT_ONCE)
      const bodies = answers.map(({ body }) => body)
      assert.deepEqual(bodies, expected)
    }
  })

  test('a POST without a body that waits is refused for its JSON', async (t) => {
    const { port } = await startService(t)
    const empty = posting([], { token: token('never seen before') })
    const answers = await answersTo(port, GET + empty + empty, 3)
    assert.deepEqual(answers.map(verdict), [200, 'bodyNotJson', 'bodyNotJson'])
  })

  test('responses come in the order of their requests', async (t) => {
    const { port } = await startService(t)
    const requests: readonly (readonly [string, ReturnType<typeof verdict>])[] = [
      [posting([CHUNKED], STRANGER) + chunks('abc'), 'tokenMissing'],
      [FIRST, 200],
      [head('GET', '/trees'), 'pathUnknown'],
      [head('HEAD', '/plants'), 200],
      [postBytes({ id: 1, name: 'b' }), 'idTaken'],
      [head('OPTIONS', '/plants'), 204],
      [postBytes('{'), 'bodyNotJson'],
      [head('GET', '/plants', STRANGER), 'tokenMissing'],
      [head('GET', '/plants', { token: token(`new ${Math.random()}`) }), 200],
      [`${posting([ABC], STRANGER)}abc`, 'tokenMissing'],
      [`${head('POST', '/plants', { lines: [ABC] })}abc`, 'mediaTypeUnsupported'],
      [`${head('GET', '/plants', { lines: [ABC] })}abc`, 200],
      [head('TRACE', '/plants'), 'methodUnknown'],
    ]
    for (const pieceBytes of [Infinity, 1000, 7]) {
      const wire = await Wire.to(port)
      const heads = Array.from({ length: ROUNDS }, (_, round) => round * requests.length + 3)
      for (let sent = 0; sent < ROUNDS * requests.length; ) {
        const begin = sent % requests.length
        const some = requests.slice(begin, begin + AT_ONCE)
        const bytes = some.map(([text]) => text).join('')
        sent += some.length
        for (let at = 0; at < bytes.length; at += pieceBytes) {
          wire.write(bytes.slice(at, at + pieceBytes))
          if (at % 700 === 0) await yieldTick()
        }
        const found = (await wire.answers(sent, heads)).slice(-some.length).map(verdict)
        const expected = some.map(([, condition]) => condition)
        assert.deepEqual(found, expected, String(pieceBytes))
      }
    }
  })

  test('one request of a connection is handled at a time, others go on', async (t) => {
    let [running, most] = [0, 0]
    // How many creates each create waits for.
    let together = 1
    const create = async (): Promise<Created> => {
      most = Math.max(most, ++running)
      await sleep(2)
      await until('others are handled at the same time', () => most >= together)
      running--
      return 'stored'
    }
    const { port } = await startBare(t, { store: { create } })
    await answersTo(port, FIRST.repeat(AT_ONCE), AT_ONCE)
    assert.equal(most, 1)
    together = 5
    await Promise.all(Array.from({ length: together }, () => answersTo(port, FIRST, 1)))
    assert.equal(most, together)
  })

  test('while one request waits no more is read, whatever comes', async (t) => {
    const { store, release } = slowStore()
    const { port, server } = await startBare(t, { store })
    const accepted = once(server, 'connection')
    const wire = await Wire.to(port)
    // The listener's own value.
    const [side] = (await accepted) as [Socket]
    wire.write(FIRST)
    await until('the first is read', () => side.bytesRead > 0)
    wire.write(GET)
    await until('the socket is paused', () => side.isPaused())
    const { bytesRead } = side
    wire.write(postBytes({ id: 1, name: 'x'.repeat(100_000) }).repeat(10))
    await sleep(100)
    assert.equal(side.bytesRead, bytesRead)
    release()
    assert.deepEqual(new Set((await wire.answers(12)).map(verdict)), new Set([200]))
  })

  const withHeaders = (count: number): string =>
    head('GET', '/plants', { lines: Array<string>(count - 2).fill('a: b') })

  for (const [what, fitting, count, tooMany] of [
    ['8 wait', withHeaders(2).repeat(8), 9, withHeaders(2).repeat(9)],
    [
      '100 headers of 5 after the first',
      withHeaders(99) + withHeaders(20).repeat(5),
      7,
      withHeaders(99) + withHeaders(20).repeat(4) + withHeaders(21),
    ],
    [
      '100 headers of 2 after the first',
      withHeaders(99) + withHeaders(98) + withHeaders(2),
      4,
      withHeaders(99) + withHeaders(98) + withHeaders(3),
    ],
  ] as const)
    test(`${what}: all are answered; one more is a reset`, async (t) => {
      const { store, release } = slowStore()
      const { port, connections, answered } = await startBare(t, { store })
      const kept = (await Wire.to(port)).write(FIRST + fitting)
      const reset = await Wire.to(port)
      await reset.write(FIRST + tooMany).end()
      assert.deepEqual([reset.text, String(reset.error)], ['', 'Error: read ECONNRESET'])
      await until('the others wait', () => connections.active === count)
      release()
      assert.deepEqual((await kept.answers(count)).map(verdict), Array(count).fill(200))
      await until('all are done', () => answered.length === count + 1)
      assert.equal(answered.filter((line) => line.endsWith(' aborted')).length, 1)
    })

  test('too many headers after a good request are 431, however many these are', async (t) => {
    const { store, release } = slowStore()
    const { port, connections } = await startBare(t, { store })
    const wire = (await Wire.to(port)).write(FIRST + withHeaders(101))
    // Node 24 tells of the second one only at its end.
    await until('the first one waits', () => connections.active > 0)
    release()
    assert.deepEqual((await wire.allAnswers()).map(verdict), [200, 'headersTooLarge'])
  })

  test('one with a chunked body that waits is not served: the one before it is last', async (t) => {
    const { store, release } = slowStore()
    const bare = await startBare(t, { store })
    const wire = await Wire.to(bare.port)
    wire.write(FIRST + GET + posting([CHUNKED]) + chunks('{"id":66,"name":"late"}') + FIRST)
    await until('they wait', () => bare.connections.active === 2)
    release()
    const answers = await wire.allAnswers()
    assertLast(answers, [200, 200])
    assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'connection'), ['keep-alive'])
    assert.equal(wire.error, undefined)
    assert.deepEqual(bare.answered, ['POST 200', 'GET 200'])
  })

  test('CONNECT after a list is answered after the whole list', async (t) => {
    // More than the buffers of a unix socket hold.
    const list = Array.from({ length: 3 }, () => [{ name: 'x'.repeat(900_000) }])
    const { path } = await startOnPath(t, { store: { list: () => listOf(list) } })
    const bytes = GET + head('CONNECT', 'a:1') + 'x'.repeat(500_000)
    const answers = await answersUntilEnd(path, bytes)
    assert.deepEqual(answers.map(verdict), [200, 'methodUnknown'])
    assert.ok(answers[0]?.body === JSON.stringify(list.flat()), answers[0]?.body.slice(-99))
  })
})

test('pipelining: the last response to a HEAD has no body', async (t) => {
  const { port } = await startBare(t)
  const wire = (await Wire.to(port)).write(
    head('HEAD', '/plants', { lines: ['Connection: close'] }),
  )
  const answers = await wire.allAnswers([0])
  assert.deepEqual(answers.map(verdict), [200])
})

// One after the other: they lengthen timers of the whole process.
for (const [last, options] of [
  ['a close', { lines: ['Connection: close'] }],
  ['a refusal and a close', { token: undefined, lines: ['Connection: close'] }],
  ['HTTP/1.0', { version: '1.0' }],
  ['an upgrade', { lines: ['Connection: Upgrade', 'Upgrade: a'] }],
] as const)
  test(`pipelining: after ${last}, a client that still sends is not reset`, async (t) => {
    lengthenTimers(t, LINGER_MS)
    const { port } = await startBare(t)
    const wire = await Wire.to(port)
    assert.equal((await wire.write(GET + head('GET', '/plants', options)).allAnswers()).length, 2)
    // Without the half-close the first of these causes a reset, and the next one meets it.
    for (let i = 0; i < 3; i++)
      await new Promise<void>((resolve) =>
        wire.socket.write('GET / HTTP/1.1\r\n\r\n', () => resolve()),
      )
    const closed = once(wire.socket, 'close')
    wire.halfClose()
    await closed
    assert.equal(wire.error, undefined)
  })

test('pipelining: a last response on its way survives what the client still sends', async (t) => {
  lengthenTimers(t, LINGER_MS)
  const plants = Array(2).fill({ name: 'x'.repeat(100_000) })
  const { port, server } = await startBare(t, { store: { list: () => listOf([plants]) } })
  // More than the client's kernel takes: the rest waits in the service's.
  const flushed = new Promise<void>((resolve) =>
    server.once('connection', (side) => side.once('finish', resolve)),
  )
  const wire = await Wire.to(port)
  wire.socket.pause()
  wire.write(head('GET', '/plants', { lines: ['Connection: close'] }))
  await flushed
  await new Promise<void>((resolve) => wire.socket.write('x', () => resolve()))
  wire.socket.resume()
  const [answer = assert.fail(), ...others] = await wire.allAnswers()
  assert.deepEqual([JSON.parse(answer.body), others], [plants, []])
})

for (const count of [1, 2, 3])
  test(`pipelining: garbage after ${count} is 400, also to a half-closed client`, async (t) => {
    const { store, release } = slowStore()
    const { port, connections } = await startBare(t, { store })
    const wire = await Wire.to(port)
    wire.write(`${FIRST.repeat(count)}garbage`).halfClose()
    await until('they wait', () => connections.active === count)
    await sleep(20)
    release()
    const expected = [...Array<number>(count).fill(200), 'malformedRequest']
    assert.deepEqual((await wire.allAnswers()).map(verdict), expected)
  })

for (const [lines, expected] of [
  [[], [200, 'malformedRequest']],
  [['Connection: close'], [200]],
] as const)
  test(`pipelining: garbage after ${lines.join() || 'a request'} adds no listeners`, async (t) => {
    const warnings: Error[] = []
    const warned = (warning: Error): void => void warnings.push(warning)
    process.on('warning', warned)
    t.after(() => process.off('warning', warned))
    const { store, release } = slowStore()
    const { port, connections } = await startBare(t, { store })
    const wire = await Wire.to(port)
    wire.write(postBytes({ id: 1, name: 'last' }, { lines }))
    await until('it is under way', () => connections.active > 0)
    for (let at = 0; at < 20; at++) {
      wire.write('garbage')
      await sleep(5)
    }
    release()
    assert.deepEqual((await wire.allAnswers()).map(verdict), expected)
    wire.destroy()
    assert.deepEqual(warnings, [])
  })

test('pipelining: after a cut nothing is made of the requests that came with it', async (t) => {
  const entered = t.mock.method(Connection.prototype, 'enter')
  const { port } = await startBare(t, { store: slowStore().store })
  const wire = await Wire.to(port)
  await wire.write(postBytes({ id: 1, name: 'x' }) + 'GET / HTTP/1.1\r\n\r\n'.repeat(3000)).end()
  assert.equal(wire.text, '')
  assert.equal(entered.mock.callCount(), 10)
})

// Their responses are the last ones, though Node's parser goes on.
for (const [what, last] of [
  ['too many headers', head('GET', '/plants', { lines: Array<string>(100).fill('X: x') })],
  ['two codings', `${posting([CHUNKED, CHUNKED])}0\r\n\r\n`],
  ['an Expect', `${posting([ABC, 'Expect: 100-continue'], STRANGER)}abc`],
] as const)
  test(`pipelining: after ${what} and too many requests nothing is left open`, async (t) => {
    const { port, connections } = await startBare(t)
    const wire = await Wire.to(port)
    await wire.write(last + GET.repeat(AT_ONCE + 1)).end()
    await until('the service has closed it', () => connections.sockets.length === 0)
    assert.equal(connections.active, 0)
  })

test('pipelining: requests after a page that is not taken keep no core busy', async (t) => {
  const plants = [{ name: 'x'.repeat(2 ** 20) }]
  const { path, server, connections } = await startOnPath(t, {
    store: { list: () => listOf([plants]) },
  })
  let resumed = 0
  server.on('connection', (side: Socket) => {
    // It would go on for ever, within one tick of the event loop.
    side.on('resume', () => ++resumed > 100 && side.removeAllListeners('resume'))
  })
  const wire = await Wire.to(path)
  wire.socket.pause()
  // The body lets Node run what waits for the end of the tick between two requests of one read.
  const options = head('OPTIONS', '/plants', STRANGER)
  wire.write(options + GET + posting([ABC], STRANGER) + 'abc' + options)
  await until('the page waits for its reader', () => connections.active === 3)
  await sleep(20)
  wire.socket.resume()
  assert.deepEqual((await wire.answers(4)).map(verdict), [204, 200, 'tokenMissing', 204])
  assert.ok(resumed < 100, String(resumed))
})
