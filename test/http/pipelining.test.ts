import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Created } from '../../dist/plants/store.js'
import { listOf, startBare } from '../support/bare.ts'
import { temporaryDirectory } from '../support/directories.ts'
import { call } from '../support/http.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { lengthenTimers, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

/** After its last response a client is closed after this time, whatever it still sends. */
const LINGER_MS = 1000
const CHUNKED = 'Transfer-Encoding: chunked'
/** As many requests as one write may bring: one is served, and 15 wait. */
const AT_ONCE = 16

/** Creates that wait for `release`. */
function slowCreate(): { create(): Promise<Created>; release(): void } {
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  return { create: () => held.then(() => 'stored'), release: () => release() }
}

// They mostly wait, so they run side by side.
describe('pipelining', { concurrency: true }, () => {
  test('a GET after a POST sees its plant, again and again', async (t) => {
    const { port } = await startService(t)
    const wire = await Wire.to(port)
    for (let id = 0; id < 96; ) {
      let bytes = ''
      const expected: string[] = []
      for (const end = id + AT_ONCE / 2; id < end; id++) {
        bytes += postBytes({ id, name: String(id) }) + head('GET', '/plants')
        expected.push(
          `{"name":"${id}"}`,
          JSON.stringify(Array.from({ length: id + 1 }, (_, at) => ({ name: String(at) }))),
        )
      }
      const answers = await wire.write(bytes).answers(2 * id)
      assert.deepEqual(
        answers.slice(-AT_ONCE).map(({ body }) => body),
        expected,
      )
    }
    wire.destroy()
  })

  test('a POST without a body that waits is refused for its JSON', async (t) => {
    const { port } = await startService(t)
    const wire = await Wire.to(port)
    const empty = head('POST', '/plants', {
      token: token('never seen before'),
      lines: ['Content-Type: application/json'],
    })
    const answers = await wire.write(head('GET', '/plants') + empty + empty).answers(3)
    assert.deepEqual(
      answers.slice(1).map(({ status, body }) => [status, /"error":(\d+)/.exec(body)?.[1]]),
      [
        [400, '40006'],
        [400, '40006'],
      ],
    )
    wire.destroy()
  })

  test('responses come in the order of their requests', async (t) => {
    const { port } = await startService(t)
    const type = 'Content-Type: application/json'
    const requests: readonly (readonly [string, ReturnType<typeof verdict>, boolean?])[] = [
      [
        `${head('POST', '/plants', { token: undefined, lines: [CHUNKED] })}3\r\nabc\r\n0\r\n\r\n`,
        'tokenMissing',
      ],
      [postBytes({ id: 1, name: 'a' }), 200],
      [head('GET', '/trees'), 'pathUnknown'],
      [head('HEAD', '/plants'), 200, true],
      [postBytes({ id: 1, name: 'b' }), 'idTaken'],
      [head('OPTIONS', '/plants'), 204],
      [postBytes('{'), 'bodyNotJson'],
      [head('GET', '/plants', { token: undefined }), 'tokenMissing'],
      [head('GET', '/plants', { token: token(`new ${Math.random()}`) }), 200],
      [
        `${head('POST', '/plants', { token: undefined, lines: [type, 'Content-Length: 3'] })}abc`,
        'tokenMissing',
      ],
      [
        `${head('POST', '/plants', { lines: ['Content-Type: a/b', 'Content-Length: 3'] })}abc`,
        'mediaTypeUnsupported',
      ],
      [`${head('GET', '/plants', { lines: ['Content-Length: 3'] })}abc`, 200],
      [head('TRACE', '/plants'), 'methodUnknown'],
    ]
    const bytes = requests.map(([text]) => text).join('')
    for (const pieceBytes of [Infinity, 1000, 7]) {
      const wire = await Wire.to(port)
      for (let rounds = 1; rounds <= 8; rounds++) {
        for (let at = 0; at < bytes.length; at += pieceBytes) {
          wire.write(bytes.slice(at, at + pieceBytes))
          if (at % 700 === 0) await new Promise((resolve) => setImmediate(resolve))
        }
        const heads = Array.from({ length: rounds }, (_, round) => round * requests.length + 3)
        const answers = await wire.answers(rounds * requests.length, heads)
        assert.deepEqual(
          answers.slice(-requests.length).map((it, at) => (at === 3 ? it.status : verdict(it))),
          requests.map(([, expected]) => expected),
          String(pieceBytes),
        )
      }
      wire.destroy()
    }
  })

  test('one request of a connection is handled at a time, others go on', async (t) => {
    let running = 0
    let most = 0
    // How many creates each create waits for.
    let together = 1
    const { port } = await startBare(t, {
      store: {
        create: async (): Promise<Created> => {
          most = Math.max(most, ++running)
          await sleep(2)
          await until('others are handled at the same time', () => most >= together)
          running--
          return 'stored'
        },
      },
    })
    const wire = await Wire.to(port)
    await wire
      .write(Array.from({ length: AT_ONCE }, (_, id) => postBytes({ id, name: 'a' })).join(''))
      .answers(AT_ONCE)
    assert.equal(most, 1)
    together = 5
    const wires = await Promise.all(Array.from({ length: together }, () => Wire.to(port)))
    await Promise.all(
      wires.map((other, id) => other.write(postBytes({ id, name: 'a' })).answers(1)),
    )
    assert.equal(most, together)
    for (const other of [wire, ...wires]) other.destroy()
  })

  test('while one request waits no more is read, whatever comes', async (t) => {
    const { create, release } = slowCreate()
    const { port, server } = await startBare(t, { store: { create } })
    const accepted = once(server, 'connection')
    const wire = await Wire.to(port)
    // The listener's own value.
    const [side] = (await accepted) as [Socket]
    const post = postBytes({ id: 1, name: 'x'.repeat(100_000) })
    wire.write(postBytes({ id: 0, name: 'first' }))
    await until('the first is read', () => side.bytesRead > 0)
    wire.write(head('GET', '/plants'))
    await until('the socket is paused', () => side.isPaused())
    const { bytesRead } = side
    wire.write(post.repeat(10))
    await sleep(100)
    assert.equal(side.bytesRead, bytesRead)
    release()
    const answers = await wire.answers(12)
    assert.deepEqual(new Set(answers.map(verdict)), new Set([200]))
    wire.destroy()
  })

  test('16 wait, with 400 headers: all are answered; one more is a reset', async (t) => {
    const { create, release } = slowCreate()
    const bare = await startBare(t, { store: { create } })
    const withHeaders = (count: number): string =>
      head('GET', '/plants', { lines: Array.from({ length: count - 2 }, () => 'a: b') })
    const first = postBytes({ id: 1, name: 'first' })
    const fitting = [
      withHeaders(2).repeat(16),
      withHeaders(25).repeat(16),
      withHeaders(99).repeat(4) + withHeaders(4),
    ]
    const tooMany = [
      withHeaders(2).repeat(17),
      withHeaders(25).repeat(15) + withHeaders(26),
      withHeaders(99).repeat(4) + withHeaders(5),
    ]
    const kept: Wire[] = []
    for (const bytes of fitting) kept.push((await Wire.to(bare.port)).write(first + bytes))
    for (const bytes of tooMany) {
      const wire = await Wire.to(bare.port)
      await wire.write(first + bytes).end()
      assert.deepEqual([wire.text, String(wire.error)], ['', 'Error: read ECONNRESET'])
    }
    await until('the others wait', () => bare.connections.active === 17 + 17 + 6)
    release()
    for (const [at, count] of [17, 17, 6].entries()) {
      const answers = await kept[at]?.answers(count)
      assert.deepEqual(new Set(answers?.map(verdict)), new Set([200]))
      kept[at]?.destroy()
    }
    // The creates were under way: a client that repeats them gets the same response.
    await until('all are done', () => bare.answered.length === 40 + tooMany.length)
    const aborted = bare.answered.filter((line) => line.includes('aborted'))
    assert.deepEqual(aborted, tooMany.map(() => 'POST 200 aborted'))
  })

  test('one with a chunked body that waits is not served: the one before it is last', async (t) => {
    const { create, release } = slowCreate()
    const bare = await startBare(t, { store: { create } })
    const lines = ['Content-Type: application/json', CHUNKED]
    const plant = '{"id":66,"name":"late"}'
    const size = plant.length.toString(16)
    const chunked = `${head('POST', '/plants', { lines })}${size}\r\n${plant}\r\n0\r\n\r\n`
    const wire = await Wire.to(bare.port)
    wire.write(postBytes({ id: 1, name: 'a' }) + head('GET', '/plants') + chunked)
    wire.write(postBytes({ id: 67, name: 'later' }))
    await until('they wait', () => bare.connections.active === 2)
    release()
    const answers = await wire.allAnswers()
    assert.deepEqual(answers.map(verdict), [200, 200])
    assert.deepEqual(
      answers.map((answer) => headerLines(answer, 'connection')[0]),
      ['keep-alive', 'close'],
    )
    assert.equal(wire.error, undefined)
    assert.deepEqual(bare.answered, ['POST 200', 'GET 200'])
    wire.destroy()
  })

  test('after its last response a client that goes on sending is not reset', async (t) => {
    lengthenTimers(t, LINGER_MS)
    const { port } = await startService(t)
    for (const last of [
      head('GET', '/plants', { lines: ['Connection: close'] }),
      head('GET', '/plants', { token: undefined, lines: ['Connection: close'] }),
      head('GET', '/plants', { version: '1.0' }),
      head('GET', '/plants', { lines: ['Connection: Upgrade', 'Upgrade: a'] }),
    ]) {
      const wire = await Wire.to(port)
      assert.equal((await wire.write(head('GET', '/plants') + last).allAnswers()).length, 2)
      // Without the half-close the first of these causes a reset, and the next one meets it.
      for (let i = 0; i < 3; i++)
        await new Promise<void>((resolve) =>
          wire.socket.write('GET / HTTP/1.1\r\n\r\n', () => resolve()),
        )
      const closed = new Promise((resolve) => wire.socket.once('close', resolve))
      wire.halfClose()
      await closed
      assert.equal(wire.error, undefined, last)
    }
  })

  test('a last response on its way survives what the client still sends', async (t) => {
    lengthenTimers(t, LINGER_MS)
    const { port, server } = await startBare(t)
    const name = 'x'.repeat(100_000)
    const other = await Wire.to(port)
    await other.write(postBytes({ id: 1, name }) + postBytes({ id: 2, name })).answers(2)
    other.destroy()
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
    assert.deepEqual(
      (await wire.allAnswers()).map(({ body }) => JSON.parse(body) as unknown),
      [[{ name }, { name }]],
    )
    wire.destroy()
  })

  test('large bodies one after another, and lists between them, all arrive', async (t) => {
    const { port } = await startService(t)
    const wire = await Wire.to(port)
    const name = 'x'.repeat(300_000)
    const posts = Array.from({ length: 6 }, (_, id) => postBytes({ id, name: name + id }))
    const answers = await wire
      .write(
        posts.join('') +
          head('GET', '/plants') +
          postBytes({ id: 7, name }) +
          head('GET', '/plants?limit=1'),
      )
      .answers(9)
    assert.deepEqual(
      answers.map(verdict),
      Array.from({ length: 9 }, () => 200),
    )
    assert.equal((JSON.parse(answers[6]?.body ?? '') as unknown[]).length, 6)
    wire.destroy()
  })

  test('CONNECT after a list is answered after the whole list', async (t) => {
    const path = join(await temporaryDirectory(), 'http.sock')
    // More than the buffers of a unix socket hold.
    const list = Array.from({ length: 3 }, () => [{ name: 'x'.repeat(900_000) }])
    await startBare(t, { path, store: { list: () => listOf(list) } })
    const wire = await Wire.to(path)
    const answers = await wire
      .write(head('GET', '/plants') + head('CONNECT', 'a:1') + 'x'.repeat(500_000))
      .allAnswers()
    assert.deepEqual(answers.map(verdict), [200, 'methodUnknown'])
    assert.ok(answers[0]?.body === JSON.stringify(list.flat()), answers[0]?.body.slice(-99))
    wire.destroy()
  })

  test('clients that leave at any moment do no harm', async (t) => {
    const { port } = await startService(t)
    const all =
      head('POST', '/plants', { token: undefined, lines: [CHUNKED] }) +
      '1\r\na\r\n0\r\n\r\n' +
      postBytes({ id: 1, name: 'a' }) +
      head('GET', '/plants') +
      postBytes({ id: 2, name: 'a' })
    for (let cut = 1; cut < all.length; cut += 23) {
      const wire = await Wire.to(port)
      wire.write(all.slice(0, cut))
      if (cut % 3 === 0) await new Promise((resolve) => setImmediate(resolve))
      if (cut % 2 === 0) wire.socket.resetAndDestroy()
      else wire.destroy()
    }
    const wire = await Wire.to(port)
    assert.deepEqual((await wire.write(all).answers(4)).map(verdict), [
      'tokenMissing',
      200,
      200,
      200,
    ])
    wire.destroy()
  })
})

test('pipelining: garbage after some requests is 400, also to a half-closed client', async (t) => {
  for (const count of [1, 2, 3]) {
    const { create, release } = slowCreate()
    const { port, connections } = await startBare(t, { store: { create } })
    const wire = await Wire.to(port)
    wire.write(`${postBytes({ id: 1, name: 'a' }).repeat(count)}garbage`).halfClose()
    await until('they wait', () => connections.active === count)
    await sleep(20)
    release()
    const expected = [...Array.from({ length: count }, () => 200), 'malformedRequest']
    assert.deepEqual((await wire.allAnswers()).map(verdict), expected)
    wire.destroy()
  }
})

test('pipelining: what comes after the last request adds no listeners', async (t) => {
  const warnings: Error[] = []
  const warned = (warning: Error): void => void warnings.push(warning)
  process.on('warning', warned)
  t.after(() => process.off('warning', warned))
  for (const lines of [[], ['Connection: close']]) {
    const { create, release } = slowCreate()
    const { port, connections } = await startBare(t, { store: { create } })
    const wire = await Wire.to(port)
    wire.write(postBytes({ id: 1, name: 'last' }, { lines }))
    await until('it is under way', () => connections.active > 0)
    for (let at = 0; at < 20; at++) {
      wire.write('garbage')
      await sleep(5)
    }
    release()
    const expected = lines.length === 0 ? [200, 'malformedRequest'] : [200]
    assert.deepEqual((await wire.allAnswers()).map(verdict), expected)
    wire.destroy()
  }
  assert.deepEqual(warnings, [])
})

test('pipelining: clients that send thousands of requests unread are closed', async (t) => {
  const { port } = await startService(t)
  const flood = Array.from({ length: THOROUGH ? 20 : 2 }, () => connect(port, '127.0.0.1').pause())
  // A reset is an end too.
  const gone = flood.map(
    (socket) =>
      new Promise((resolve) =>
        socket
          .on('error', () => {})
          .once('close', resolve)
          .resume(),
      ),
  )
  for (const socket of flood) socket.write('GET / HTTP/1.1\r\n\r\n'.repeat(8000))
  for (let i = 0; i < 5; i++) assert.equal((await call(port)).status, 200)
  await Promise.all(gone)
})
