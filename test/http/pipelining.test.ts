import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Created } from '../../dist/plants/store.js'
import { ALICE, listOf, startBare } from '../support/bare.ts'
import { temporaryDirectory } from '../support/directories.ts'
import { call } from '../support/http.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { lengthenTimers, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

/** After its last response a client is closed after this time, whatever it still sends. */
const LINGER_MS = 1000
const CHUNKED = 'Transfer-Encoding: chunked'

// They mostly wait, so they run side by side.
describe('pipelining', { concurrency: true }, () => {
  test('a GET after a POST sees its plant, again and again', async (t) => {
    const { port } = await startService(t)
    const wire = await Wire.to(port)
    let bytes = ''
    const expected: string[] = []
    for (let id = 0; id < 100; id++) {
      bytes += postBytes({ id, name: String(id) }) + head('GET', '/plants')
      expected.push(
        `{"name":"${id}"}`,
        JSON.stringify(Array.from({ length: id + 1 }, (_, at) => ({ name: String(at) }))),
      )
    }
    const answers = await wire.write(bytes).answers(200)
    assert.deepEqual(
      answers.map(({ body }) => body),
      expected,
    )
    wire.destroy()
  })

  test('responses come in the order of their requests', async (t) => {
    const { port } = await startService(t)
    const requests: readonly (readonly [string, ReturnType<typeof verdict>, boolean?])[] = [
      [postBytes({ id: 1, name: 'a' }), 200],
      [head('GET', '/trees'), 'pathUnknown'],
      [head('HEAD', '/plants'), 200, true],
      [postBytes({ id: 1, name: 'b' }), 'idTaken'],
      [head('OPTIONS', '/plants'), 204],
      [postBytes('{'), 'bodyNotJson'],
      [head('GET', '/plants', { token: undefined }), 'tokenMissing'],
      [head('GET', '/plants', { token: token(`new ${Math.random()}`) }), 200],
      [
        head('POST', '/plants', { token: undefined, lines: [CHUNKED] }) + '3\r\nabc\r\n0\r\n\r\n',
        'tokenMissing',
      ],
      [
        head('POST', '/plants', { lines: ['Content-Type: text/plain', 'Content-Length: 3'] }) +
          'abc',
        'mediaTypeUnsupported',
      ],
      [`${head('GET', '/plants', { lines: ['Content-Length: 3'] })}abc`, 200],
      [head('TRACE', '/plants'), 'methodUnknown'],
    ]
    const rounds = 8
    const all = Array.from({ length: rounds }, () => requests).flat()
    const heads = all.flatMap(([, , isHead], at) => (isHead ? [at] : []))
    for (const pieceBytes of [Infinity, 1000, 7]) {
      const wire = await Wire.to(port)
      const bytes = all.map(([text]) => text).join('')
      for (let at = 0; at < bytes.length; at += pieceBytes) {
        wire.write(bytes.slice(at, at + pieceBytes))
        if (at % 700 === 0) await new Promise((resolve) => setImmediate(resolve))
      }
      const answers = await wire.answers(all.length, heads)
      assert.deepEqual(
        answers.map((answer, at) => (heads.includes(at) ? answer.status : verdict(answer))),
        all.map(([, expected]) => expected),
        String(pieceBytes),
      )
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
      .write(Array.from({ length: 50 }, (_, id) => postBytes({ id, name: 'a' })).join(''))
      .answers(50)
    assert.equal(most, 1)
    together = 5
    const wires = await Promise.all(Array.from({ length: together }, () => Wire.to(port)))
    await Promise.all(
      wires.map((other, id) => other.write(postBytes({ id, name: 'a' })).answers(1)),
    )
    assert.equal(most, together)
    for (const other of [wire, ...wires]) other.destroy()
  })

  test('at 16 waiting requests no more is read until there is room', async (t) => {
    let release = (): void => {}
    const held = new Promise<void>((resolve) => (release = resolve))
    let served = 0
    const { port, server } = await startBare(t, {
      authenticate: async () => {
        served++
        await held
        return ALICE
      },
    })
    const socket = new Promise<import('node:net').Socket>((resolve) =>
      server.once('connection', resolve),
    )
    const wire = await Wire.to(port)
    const side = await socket
    // One at a time, so that each is read by itself.
    for (let sent = 1; sent <= 16; sent++) {
      const before = side.bytesRead
      wire.write(head('GET', '/plants'))
      while (side.bytesRead === before) await sleep(1)
    }
    assert.equal(side.isPaused(), false, 'one is handled, 15 wait')
    const before = side.bytesRead
    wire.write(head('GET', '/plants'))
    while (side.bytesRead === before) await sleep(1)
    await until('one is handled, 16 wait', () => side.isPaused())
    const full = side.bytesRead
    wire.write(head('GET', '/plants').repeat(100))
    await sleep(50)
    assert.equal(side.bytesRead, full)
    assert.equal(served, 1)
    release()
    assert.deepEqual(
      (await wire.answers(117)).map(({ status }) => status),
      Array.from({ length: 117 }, () => 200),
    )
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
      postBytes({ id: 1, name: 'a' }) +
      head('GET', '/plants') +
      head('POST', '/plants', { token: undefined, lines: [CHUNKED] }) +
      '1\r\na\r\n0\r\n\r\n' +
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
      200,
      200,
      'tokenMissing',
      200,
    ])
    wire.destroy()
  })
})

test('pipelining: a thousand small creates in one write are all answered', async (t) => {
  const { port } = await startService(t, { logLevel: 'silent' })
  const wires = await Promise.all(Array.from({ length: 15 }, () => Wire.to(port)))
  for (const [at, wire] of wires.entries()) {
    const creates = Array.from({ length: 1000 }, (_, id) => {
      return postBytes({ id: at * 1000 + id, name: 'small' })
    })
    wire.write(creates.join(''))
  }
  for (const wire of wires) {
    const answers = await wire.answers(1000)
    assert.deepEqual(new Set(answers.map(verdict)), new Set([200]))
    wire.destroy()
  }
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

test('pipelining: while a request with a body waits, no more is read', async (t) => {
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  const { port, server } = await startBare(t, {
    store: { create: async (): Promise<Created> => (await held, 'stored') },
  })
  const accepted = once(server, 'connection')
  const wire = await Wire.to(port)
  // The listener's own value.
  const [side] = (await accepted) as [Socket]
  const small = head('POST', '/plants', {
    lines: ['Content-Type: application/json', CHUNKED],
  })
  const body = `{"id": 1, "name": "${'x'.repeat(16_000)}"}`
  const chunks = [...body].map((unit) => `1\r\n${unit}\r\n`).join('')
  const requests = 6
  wire.write(postBytes({ id: 0, name: 'first' }) + `${small}${chunks}0\r\n\r\n`.repeat(requests))
  await until('the socket is paused', () => side.isPaused())
  // What one read holds. All of it would take 12 MB in chunks of one byte.
  assert.ok(side.bytesRead <= 2 * 64 * 1024, String(side.bytesRead))
  release()
  assert.deepEqual(
    (await wire.answers(requests + 1)).map(verdict),
    Array.from({ length: requests + 1 }, () => 200),
  )
  wire.destroy()
})

test('pipelining: an embedding server may hand requests over in any order', async (t) => {
  const { adapter } = await startBare(t)
  const requests = [
    postBytes({ id: 1, name: 'a' }),
    head('GET', '/plants'),
    postBytes({ id: 2, name: 'b' }),
    head('GET', '/plants?limit=9'),
  ]
  const pending: (() => void)[] = []
  const server = createServer((req, res) => {
    pending.unshift(() => adapter.handler(req, res))
    if (pending.length === requests.length) for (const handOver of pending) handOver()
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => server.close())
  // It listens on TCP.
  const { port } = server.address() as AddressInfo
  const wire = await Wire.to(port)
  const answers = await wire.write(requests.join('')).answers(requests.length)
  // Each sees what the one before it did.
  assert.deepEqual(
    answers.map(({ body }) => body),
    ['{"name":"a"}', '[{"name":"a"}]', '{"name":"b"}', '[{"name":"a"},{"name":"b"}]'],
  )
  wire.destroy()
})
