import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { connect, type Socket } from 'node:net'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { PlantList } from '../../dist/plants/store.js'
import { listFrom, listOf, startBare, startOnPath } from '../support/bare.ts'
import { call } from '../support/http.ts'
import { underWay } from '../support/metrics.ts'
import { startService } from '../support/service.ts'
import { listening } from '../support/serving.ts'
import { holdPause, PATIENCE_MS, until } from '../support/time.ts'
import { assertLast, headerLines, verdict } from '../support/verdict.ts'
import { CHUNKED, chunk, firstAnswer, head, postBytes, posting, Wire } from '../support/wire.ts'

const GET = head('GET', '/plants')
/** A request whose last bytes come during the stop. */
const HALF = postBytes({ id: 1, name: 'in flight' })
/** More than the buffers of a unix socket take. */
const LONG = [{ name: 'x'.repeat(1_000_000) }]

// They mostly wait, so they run side by side.
describe('stop', { concurrency: true }, () => {
  test('requests under way are answered, then closed, and their plants are kept', async (t) => {
    const { port, adminPort, close, dataDirectory } = await startService(t)
    const [waiting, pipelined] = await Promise.all([Wire.to(port), Wire.to(port)])
    waiting.write(HALF.slice(0, -3))
    const plants = [2, 3].map((id) => postBytes({ id, name: `before ${id}` })).join('')
    await pipelined.write(plants + GET + HALF.slice(0, -3)).answers(3)
    await underWay(adminPort, 2)
    const stopped = close()
    await sleep(120)
    for (const [wire, count] of [
      [waiting, 1],
      [pipelined, 4],
    ] as const) {
      assertLast(await wire.write(HALF.slice(-3)).allAnswers(), Array(count).fill(200))
    }
    await stopped
    const again = await startService(t, { data: dataDirectory })
    const kept = ['in flight', 'before 2', 'before 3'].map((name) => ({ name }))
    assert.deepEqual((await call(again.port)).json(), kept)
  })

  test('idle connections do not delay it', async (t) => {
    // Longer than the test's own patience.
    const { port, close } = await startService(t, { shutdownTimeout: 3600 })
    const wires = await Promise.all(Array.from({ length: 6 }, () => Wire.to(port)))
    const [, used, odd, posted, long, refused] = wires
    await used?.write(GET).answers(1)
    // Bare line ends after a request are no beginning of another one.
    await odd?.write(`${GET}\r\n`).answers(1)
    await posted?.write(HALF).answers(1)
    await long?.write(GET.repeat(8)).answers(8)
    // Its body does not come.
    const begun = `${posting(['Content-Length: 100'], { token: undefined })}{`
    await refused?.write(begun).answers(1)
    const start = performance.now()
    await close()
    // Less than the limit of headers, 10 s, which ends them without this rule.
    assert.ok(performance.now() - start < 9500)
    await assert.rejects(Wire.to(port))
  })

  test('a request whose headers are half sent is answered, then closed', async (t) => {
    const { port, close } = await startService(t)
    const halves: (readonly [Wire, string])[] = []
    for (const end of [1, 20, GET.length - 1])
      for (const before of [0, 1, 3]) {
        const wire = await Wire.to(port)
        await wire.write(GET.repeat(before) + GET.slice(0, end)).answers(before)
        halves.push([wire, GET.slice(end)])
      }
    const unused = await Wire.to(port)
    // The service reads all of them before it stops.
    await call(port)
    const stopped = close()
    await until('the unused connection is ended', () => unused.ended)
    await sleep(300)
    for (const [wire, rest] of halves) {
      assertLast((await wire.write(rest).allAnswers()).slice(-1), [200])
    }
    await stopped
  })

  test('headers that stay half sent get 408 at their limit', async (t) => {
    const { port, connections, server } = await startBare(t, { timeouts: { headersMs: 300 } })
    let side: Socket | undefined
    server.on('connection', (socket) => (side = socket))
    for (const before of ['', GET]) {
      const wire = await Wire.to(port)
      const bytes = `${before}GET /plants HT`
      await wire.write(bytes).answers(before === '' ? 0 : 1)
      await until('it has come', () => connections.sockets.length === 1)
      await until('it is read', () => side?.bytesRead === bytes.length)
      const drained = connections.drain(PATIENCE_MS)
      assert.equal(verdict((await wire.allAnswers()).at(-1) ?? assert.fail()), 'requestTimeout')
      wire.destroy()
      assert.equal(await drained, 0)
    }
  })

  for (const [what, target] of Object.entries({ list: '/plants', page: '/plants?limit=9' }))
    test(`a ${what} that is still on its way arrives whole`, async (t) => {
      const store = { list: () => listOf([LONG, LONG]) }
      const { path, connections } = await startOnPath(t, { store })
      const wire = await Wire.to(path)
      wire.write(head('GET', target))
      await until('the response has begun', () => wire.text !== '')
      wire.socket.pause()
      const drained = connections.drain(PATIENCE_MS)
      await sleep(300)
      wire.socket.resume()
      const [answer] = await wire.allAnswers()
      assert.ok(answer?.body === JSON.stringify([LONG, LONG].flat()))
      assert.equal(await drained, 0)
    })

  test('during the drain delay readiness is red, and requests are served and closed', async (t) => {
    const drainDelay = 3600
    const endDelay = holdPause(t, drainDelay * 1000)
    const { port, adminPort, close } = await startService(t, { drainDelay })
    const used = await Wire.to(port)
    await used.write(GET).answers(1)
    const stopped = close()
    assert.equal((await call(adminPort, { path: '/readyz' })).status, 503)
    assert.equal((await call(adminPort, { path: '/livez' })).status, 200)
    for (const answer of [
      await firstAnswer(port, HALF),
      await firstAnswer(port, GET),
      await firstAnswer(port, head('GET', '/trees')),
      (await used.write(head('OPTIONS', '/plants')).allAnswers())[1],
    ]) {
      assert.ok(answer)
      assert.deepEqual(headerLines(answer, 'connection'), ['close'])
    }
    // Pipelined requests after the response that closes have no effect: the client repeats them.
    const wire = await Wire.to(port)
    const names = ['piped 0', 'piped 1', 'piped 2']
    const posts = names.map((name, at) => postBytes({ id: 10 + at, name }))
    const answers = await wire.write(posts.join('')).allAnswers()
    const bodies = answers.map(({ body }) => (JSON.parse(body) as { readonly name: string }).name)
    assert.deepEqual(bodies, names.slice(0, answers.length))
    const closing = answers.map((answer) => headerLines(answer, 'connection')[0] === 'close')
    assert.equal(closing.indexOf(true), answers.length - 1)
    const list = await firstAnswer(port, GET)
    assert.equal(list.body.split('piped').length - 1, answers.length)
    endDelay()
    await stopped
  })

  test('requests under way at the deadline are given up, and logged', async (t) => {
    const { port, adminPort, close, logLines } = await startService(t, { shutdownTimeout: 1 })
    const wire = (await Wire.to(port)).write(HALF.slice(0, -3))
    await underWay(adminPort, 1)
    const start = performance.now()
    await close()
    assert.ok(performance.now() - start >= 900)
    assert.ok(
      logLines.some((line) => /given up.*"connections":1/.test(line)),
      logLines.join(),
    )
    assert.deepEqual(await wire.allAnswers(), [])
  })

  test('the deadline ends stalled readers and slow senders', async (t) => {
    const store = { list: () => listOf(Array(9).fill(LONG)) }
    const { path, connections } = await startOnPath(t, { store })
    const [reader, headers, body] = await Promise.all([Wire.to(path), Wire.to(path), Wire.to(path)])
    reader.socket.pause()
    reader.write(GET)
    headers.write('GET /plants HTTP/1.1\r\nSlow: ')
    body.write(posting([CHUNKED]))
    const sending = setInterval(() => {
      headers.write('x')
      body.write(chunk(' '))
    }, 5)
    t.after(() => clearInterval(sending))
    await until('two are under way', () => connections.active === 2)
    await until('the third is open', () => connections.sockets.length === 3)
    assert.equal(await connections.drain(500), 3)
    assert.deepEqual([await headers.allAnswers(), await body.allAnswers()], [[], []])
  })

  test('a client that always has requests waiting is closed too, and knows where', async (t) => {
    const { port, close, logLines, dataDirectory } = await startService(t, { drainDelay: 0.3 })
    const wire = await Wire.to(port)
    let sent = 0
    const send = (): void => void wire.write(postBytes({ id: sent, name: `piped ${sent++}` }))
    for (let i = 0; i < 8; i++) send()
    // Each response is followed by the next request.
    wire.socket.on('data', (text: string) => {
      for (const _ of text.matchAll(/HTTP\/1\.1 200/g)) send()
    })
    await wire.answers(20)
    await close()
    const answers = await wire.allAnswers()
    const said = answers.map((answer) => headerLines(answer, 'connection').join())
    assert.deepEqual(said, [...Array<string>(answers.length - 1).fill('keep-alive'), 'close'])
    assert.ok(!logLines.some((line) => line.includes('given up')))
    const again = await startService(t, { data: dataDirectory })
    const kept = answers.map((_, at) => ({ name: `piped ${at}` }))
    assert.deepEqual((await call(again.port)).json(), kept)
  })

  test('until its end the admin listener answers: live, and draining', async (t) => {
    const { port, adminPort, close } = await startService(t)
    const wire = (await Wire.to(port)).write(HALF.slice(0, -3))
    await underWay(adminPort, 1)
    const stopped = close()
    for (let refused = false; !refused; ) {
      refused = await Wire.to(port).then(
        (other) => !other.socket.destroy(),
        () => true,
      )
      await sleep(5)
    }
    const ready = await call(adminPort, { path: '/readyz', token: undefined })
    const checks = { service: 'draining', keys: 'ok', storage: 'ok' }
    assert.deepEqual([ready.status, ready.json()], [503, { status: 'unavailable', checks }])
    assert.equal((await call(adminPort, { path: '/livez', token: undefined })).status, 200)
    assert.deepEqual((await wire.write(HALF.slice(-3)).allAnswers()).map(verdict), [200])
    await stopped
    await assert.rejects(Wire.to(adminPort))
  })

  test('a second close is the first one', async (t) => {
    const { service } = await startService(t)
    assert.equal(service.close(), service.close())
  })

  test('embedded in a server, close answers what is under way, then refuses', async (t) => {
    const { service, adminPort, close } = await startService(t)
    const port = await listening(t, createServer(service.handler))
    const wire = (await Wire.to(port)).write(HALF.slice(0, -3))
    await underWay(adminPort, 1)
    const stopped = close()
    await sleep(100)
    assert.deepEqual((await wire.write(HALF.slice(-3)).answers(1)).map(verdict), [200])
    await stopped
    for (const bytes of [GET, HALF])
      assert.equal(verdict(await firstAnswer(port, bytes)), 'storageUnavailable')
  })
})

test('stop: connections that are not accepted yet are accepted and answered', async (t) => {
  const { port, close } = await startService(t)
  const clients = Array.from({ length: 100 }, () => connect(port, '127.0.0.1'))
  // The kernel makes them. The service has not run since.
  const answers = clients.map(async (client, id) => {
    client.write(postBytes({ id, name: 'made before the stop' }))
    const text: Buffer[] = []
    // Without an encoding, chunks are buffers.
    for await (const chunk of client) text.push(chunk as Buffer)
    return Buffer.concat(text).toString()
  })
  await Promise.all(clients.map((client) => once(client, 'connect')))
  const stopped = close()
  for (const answer of await Promise.all(answers)) assert.match(answer, /^HTTP\/1\.1 200 /)
  await stopped
})

test('stop: a list that is cut off at the deadline ends with a reset', async (t) => {
  // The reset comes after a quiet time: libuv reports it as a normal end if bytes come with it.
  const list = (): PlantList => {
    let calls = 0
    return listFrom(async () =>
      calls++ === 0 ? [{ name: 'and another' }] : new Promise<never>(() => {}),
    )
  }
  const { port, connections, answered } = await startBare(t, { store: { list } })
  const wires = await Promise.all([Wire.to(port), Wire.to(port)])
  for (const [at, wire] of wires.entries())
    wire.write(head('GET', '/plants', { version: `1.${at}` }))
  for (const wire of wires) await until('the list has begun', () => wire.text.includes('another'))
  assert.equal(await connections.drain(100), 2)
  for (const wire of wires) {
    await wire.end()
    assert.match(String(wire.error), /ECONNRESET/)
  }
  assert.deepEqual(answered, Array(2).fill('GET 200 aborted'))
})

test('stop: a client that is still sending has its second after the last response', async (t) => {
  const { port, connections } = await startBare(t)
  const wire = await Wire.to(port)
  const [refused = assert.fail()] = await wire
    .write(posting(['Content-Length: 20000000']))
    .answers(1)
  assert.equal(verdict(refused), 'bodyTooLarge')
  const answeredAtMs = performance.now()
  const drained = connections.drain(PATIENCE_MS)
  const sending = setInterval(() => wire.write('x'.repeat(1000)), 20)
  t.after(() => clearInterval(sending))
  await drained
  // Timers may be early by a millisecond or two.
  assert.ok(performance.now() - answeredAtMs > 950, `${performance.now() - answeredAtMs} ms`)
})

test('stop: connections are accepted for a time, however slow a tick is', async (t) => {
  const { port, connections } = await startBare(t)
  let accepted = 0
  connections.server.prependListener('connection', () => {
    accepted++
    const end = performance.now() + 20
    while (performance.now() < end);
  })
  let isOver = false
  const again = (): void => {
    if (!isOver) connect(port).on('error', again).on('close', again).end()
  }
  for (let client = 0; client < 10; client++) again()
  await until('they come', () => accepted > 10)
  await connections.acceptAll(200)
  const byThen = accepted
  await until('they still come', () => accepted > byThen)
  isOver = true
})
