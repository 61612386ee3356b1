import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Created } from '../../dist/plants/store.js'
import { ALICE, startBare } from '../support/bare.ts'
import { call } from '../support/http.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { lengthenTimers, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

/**
 * A client that has been answered is let go of behind so many milliseconds, whatever it still
 * sends.
 */
const LINGER_MS = 1000

// Mostly waiting: side by side.
describe('pipelining', { concurrency: true }, () => {
  test('a GET behind a POST sees its plant, again and again', async (t) => {
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

  test('answers come in order, whatever each of them needs', async (t) => {
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
        `${head('POST', '/plants', { token: undefined, lines: ['Transfer-Encoding: chunked'] })}3\r\nabc\r\n0\r\n\r\n`,
        'tokenMissing',
      ],
      [
        `${head('POST', '/plants', { lines: ['Content-Type: text/plain', 'Content-Length: 3'] })}abc`,
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

  test('one request of a connection is handled at a time, other connections go on', async (t) => {
    let running = 0
    let most = 0
    // How many creates each of them waits for.
    let together = 1
    const { port } = await startBare(t, {
      store: {
        create: async (): Promise<Created> => {
          most = Math.max(most, ++running)
          await sleep(2)
          await until('others are handled beside it', () => most >= together)
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

  test('behind one request 16 may wait, then nothing more is read until there is room', async (t) => {
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

  test('behind a last answer the service half-closes: a client that goes on sending is not reset', async (t) => {
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
      // The first of these would bring about a reset, and the next one meet it.
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

  test('a last answer that is still on its way is not lost to what the client sends behind its request', async (t) => {
    lengthenTimers(t, LINGER_MS)
    const { port, server } = await startBare(t)
    const name = 'x'.repeat(100_000)
    const other = await Wire.to(port)
    await other.write(postBytes({ id: 1, name }) + postBytes({ id: 2, name })).answers(2)
    other.destroy()
    // More than the client's kernel takes while the client does not read: the rest waits in the
    // service's.
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

  test('large bodies behind one another, and a list in front of them, all arrive', async (t) => {
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

  test('CONNECT behind a list comes behind the whole list', async (t) => {
    const { port } = await startService(t)
    const wire = await Wire.to(port)
    const posts = Array.from({ length: 16 }, (_, id) =>
      postBytes({ id, name: 'x'.repeat(900_000) }),
    )
    await wire.write(posts.join('')).answers(16)
    const other = await Wire.to(port)
    const answers = await other
      .write(head('GET', '/plants') + head('CONNECT', 'a:1') + 'x'.repeat(500_000))
      .allAnswers()
    assert.deepEqual(answers.map(verdict), [200, 'methodUnknown'])
    assert.equal((JSON.parse(answers[0]?.body ?? '') as unknown[]).length, 16)
    for (const each of [wire, other]) each.destroy()
  })

  test('clients that leave at any moment leave the service well', async (t) => {
    const { port } = await startService(t)
    const all =
      postBytes({ id: 1, name: 'a' }) +
      head('GET', '/plants') +
      head('POST', '/plants', { token: undefined, lines: ['Transfer-Encoding: chunked'] }) +
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

test('a client that sends requests by the thousand without reading is let go of, and others are served meanwhile', async (t) => {
  const { port } = await startService(t)
  const flood = Array.from({ length: THOROUGH ? 20 : 5 }, () => connect(port, '127.0.0.1').pause())
  // A reset is as good an end as any.
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
    lines: ['Content-Type: application/json', 'Transfer-Encoding: chunked'],
  })
  const body = `{"id": 1, "name": "${'x'.repeat(16_000)}"}`
  const chunks = [...body].map((unit) => `1\r\n${unit}\r\n`).join('')
  const requests = 20
  wire.write(postBytes({ id: 0, name: 'first' }) + `${small}${chunks}0\r\n\r\n`.repeat(requests))
  await until('it is not read', () => side.isPaused())
  // What one read holds: in chunks of one byte the rest would take 40 MB.
  assert.ok(side.bytesRead <= 2 * 64 * 1024, String(side.bytesRead))
  release()
  assert.deepEqual(
    (await wire.answers(requests + 1)).map(verdict),
    Array.from({ length: requests + 1 }, () => 200),
  )
  wire.destroy()
})
