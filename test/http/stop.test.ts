import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { join } from 'node:path'
import { describe, test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { ListenFailed } from '../../dist/http/listen.js'
import { createPlantService } from '../../dist/index.js'
import type { PlantList } from '../../dist/plants/store.js'
import { startBare, listFrom } from '../support/bare.ts'
import { EMBEDDED } from '../support/embedded.ts'
import { call, post } from '../support/http.ts'
import { scrape, underWay } from '../support/metrics.ts'
import { freePort } from '../support/ports.ts'
import { type RunningService, startService, temporaryDirectory } from '../support/service.ts'
import { holdPause, PATIENCE_MS, until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { firstAnswer, head, postBytes, Wire } from '../support/wire.ts'

/** On a unix socket, whose buffers hold no part worth mentioning of these two plants. */
async function startWithLongPlants(
  t: TestContext,
  overrides: Parameters<typeof startService>[1] = {},
): Promise<RunningService & { readonly path: string }> {
  const path = join(await temporaryDirectory(), 'http.sock')
  const running = await startService(t, { ...overrides, listen: { path } })
  for (let id = 0; id < 2; id++)
    assert.equal((await post(path, { id, name: 'x'.repeat(1_000_000) })).status, 200)
  return { ...running, path }
}

// They mostly wait, so they run side by side.
describe('stop', { concurrency: true }, () => {
  test('requests under way are answered, then closed, and their plants are kept', async (t) => {
    const { port, adminPort, close, dataDirectory } = await startService(t)
    const half = postBytes({ id: 1, name: 'in flight' })
    const [waiting, pipelined] = await Promise.all([Wire.to(port), Wire.to(port)])
    waiting.write(half.slice(0, -3))
    pipelined.write(
      postBytes({ id: 2, name: 'before' }) +
        postBytes({ id: 3, name: 'after' }) +
        head('GET', '/plants?limit=1') +
        half.slice(0, -3),
    )
    await pipelined.answers(3)
    await underWay(adminPort, 2)
    const stopped = close()
    await sleep(120)
    waiting.write(half.slice(-3))
    pipelined.write(half.slice(-3))
    const [first] = await waiting.allAnswers()
    const answers = await pipelined.allAnswers()
    for (const answer of [first, answers[3]]) {
      assert.equal(verdict(answer ?? assert.fail()), 200)
      assert.deepEqual(headerLines(answer ?? assert.fail(), 'connection'), ['close'])
    }
    await stopped
    const again = await startService(t, { data: dataDirectory })
    assert.deepEqual((await call(again.port)).json(), [
      { name: 'in flight' },
      { name: 'before' },
      { name: 'after' },
    ])
  })

  test('idle connections do not delay it', async (t) => {
    // Longer than the test's own patience.
    const { port, close } = await startService(t, { shutdownTimeout: 3600 })
    const wires = await Promise.all(Array.from({ length: 6 }, () => Wire.to(port)))
    const [, used, odd, posted, long, refused] = wires
    await used?.write(head('GET', '/plants')).answers(1)
    // Bare line ends after a request are no beginning of another one.
    await odd?.write(`${head('GET', '/plants')}\r\n`).answers(1)
    await posted?.write(postBytes({ id: 1, name: 'a' })).answers(1)
    await long?.write(head('GET', '/plants').repeat(16)).answers(16)
    // Its body does not come.
    const lines = ['Content-Type: application/json', 'Content-Length: 100']
    await refused?.write(`${head('POST', '/plants', { token: undefined, lines })}{`).answers(1)
    const start = performance.now()
    await close()
    // Less than the limit of headers, 10 s, which ends them without this rule.
    assert.ok(performance.now() - start < 9500)
    for (const wire of wires) wire.destroy()
    await assert.rejects(Wire.to(port))
  })

  test('a request whose headers are half sent is answered, then closed', async (t) => {
    const { port, close } = await startService(t)
    const whole = head('GET', '/plants')
    const ends = [1, 20, whole.length - 1]
    const halves = await Promise.all(
      ends.flatMap((end) =>
        ['', whole, whole.repeat(3)].map(async (before) => {
          const wire = await Wire.to(port)
          await wire.write(before + whole.slice(0, end)).answers(before.length / whole.length)
          return { wire, rest: whole.slice(end) }
        }),
      ),
    )
    const unused = await Wire.to(port)
    // The service reads all of them before it stops.
    await call(port)
    const stopped = close()
    await until('the unused connection is ended', () => unused.ended)
    await sleep(300)
    for (const { wire, rest } of halves) {
      const answers = await wire.write(rest).allAnswers()
      const last = answers.at(-1) ?? assert.fail()
      assert.equal(verdict(last), 200)
      assert.deepEqual(headerLines(last, 'connection'), ['close'])
    }
    await stopped
  })

  test('headers that stay half sent get 408 at their limit', async (t) => {
    const { port, connections } = await startBare(t, { timeouts: { headersMs: 300 } })
    for (const before of ['', head('GET', '/plants')]) {
      const wire = await Wire.to(port)
      await wire.write(`${before}GET /plants HT`).answers(before === '' ? 0 : 1)
      await until('some of it is read', () => connections.size === 1)
      await sleep(50)
      assert.equal(await connections.drain(PATIENCE_MS), 0)
      assert.equal(verdict((await wire.allAnswers()).at(-1) ?? assert.fail()), 'requestTimeout')
    }
  })

  test('a response that is still on its way arrives whole', async (t) => {
    const { path, close } = await startWithLongPlants(t)
    const [single, list] = await Promise.all([Wire.to(path), Wire.to(path)])
    single.write(head('GET', '/plants?limit=1'))
    list.write(head('GET', '/plants'))
    for (const wire of [single, list]) {
      await until('the response has begun', () => wire.text !== '')
      wire.socket.pause()
    }
    const stopped = close()
    await sleep(200)
    for (const wire of [single, list]) wire.socket.resume()
    assert.deepEqual(
      (await single.allAnswers()).map(({ status, body }) => [
        status,
        (JSON.parse(body) as unknown[]).length,
      ]),
      [[200, 1]],
    )
    assert.deepEqual(
      (await list.allAnswers()).map(({ status, body }) => [
        status,
        (JSON.parse(body) as unknown[]).length,
      ]),
      [[200, 2]],
    )
    await stopped
  })

  test('during the drain delay readiness is red, and requests are served and closed', async (t) => {
    const drainDelay = 3600
    const endDelay = holdPause(t, drainDelay * 1000)
    const { port, adminPort, close } = await startService(t, { drainDelay })
    const used = await Wire.to(port)
    await used.write(head('GET', '/plants')).answers(1)
    const stopped = close()
    assert.equal((await call(adminPort, { path: '/readyz' })).status, 503)
    assert.equal((await call(adminPort, { path: '/livez' })).status, 200)
    for (const answer of [
      await firstAnswer(port, postBytes({ id: 1, name: 'late' })),
      await firstAnswer(port, head('GET', '/plants')),
      await firstAnswer(port, head('GET', '/trees')),
      (await used.write(head('OPTIONS', '/plants')).allAnswers())[1],
    ]) {
      assert.ok(answer)
      assert.deepEqual(headerLines(answer, 'connection'), ['close'])
    }
    // Pipelined requests after the response that closes have no effect: the client repeats them.
    const wire = await Wire.to(port)
    const answers = await wire
      .write([10, 11, 12].map((id) => postBytes({ id, name: `piped ${id}` })).join(''))
      .allAnswers()
    assert.deepEqual(
      answers.map((answer) => headerLines(answer, 'connection')[0]).indexOf('close'),
      answers.length - 1,
    )
    assert.deepEqual(
      answers.map(({ body }) => body),
      [10, 11, 12].slice(0, answers.length).map((id) => `{"name":"piped ${id}"}`),
    )
    const list = await firstAnswer(port, head('GET', '/plants'))
    assert.equal(list.body.split('piped').length - 1, answers.length)
    endDelay()
    await stopped
  })

  test('requests under way at the deadline are given up, and logged', async (t) => {
    const { port, adminPort, close, logLines } = await startService(t, {
      shutdownTimeout: 1,
    })
    const half = postBytes({ id: 1, name: 'half' })
    const wire = await Wire.to(port)
    wire.write(half.slice(0, -3))
    await underWay(adminPort, 1)
    const start = performance.now()
    await close()
    assert.ok(performance.now() - start >= 900)
    assert.ok(logLines.some((line) => line.includes('given up')))
    assert.deepEqual(await wire.allAnswers(), [])
  })

  test('the deadline ends stalled readers and slow senders', async (t) => {
    const { path, adminPort, close, logLines } = await startWithLongPlants(t, {
      shutdownTimeout: 1,
    })
    const [reader, headers, body] = await Promise.all([Wire.to(path), Wire.to(path), Wire.to(path)])
    reader.socket.pause()
    reader.write(head('GET', '/plants'))
    headers.write('GET /plants HTTP/1.1\r\nSlow: ')
    body.write(
      postBytes({ id: 9, name: 'never whole' }, { lines: ['Transfer-Encoding: chunked'] })
        .replace(/Content-Length.*\r\n/, '')
        .split('\r\n\r\n')[0] + '\r\n\r\n',
    )
    const sending = setInterval(() => {
      headers.write('x')
      body.write('1\r\n \r\n')
    }, 5)
    t.after(() => clearInterval(sending))
    await underWay(adminPort, 2)
    // The third connection is accepted; after another scrape some of its bytes are read.
    assert.equal((await scrape(adminPort)).value('plant_store_connections'), 3)
    await scrape(adminPort)
    await close()
    assert.ok(
      logLines.some((line) => line.includes('given up') && line.includes('"connections":3')),
      logLines.join('\n'),
    )
    assert.deepEqual([await headers.allAnswers(), await body.allAnswers()], [[], []])
    reader.destroy()
  })

  test('a client that always has requests waiting is closed too, and knows where', async (t) => {
    const { port, close, logLines, dataDirectory } = await startService(t, {
      drainDelay: 0.3,
    })
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
    assert.deepEqual(
      answers.map((answer) => headerLines(answer, 'connection')[0]),
      answers.map((_, at) => (at < answers.length - 1 ? 'keep-alive' : 'close')),
    )
    assert.ok(!logLines.some((line) => line.includes('given up')))
    const again = await startService(t, { data: dataDirectory })
    assert.deepEqual(
      (await call(again.port)).json(),
      answers.map((_, at) => ({ name: `piped ${at}` })),
    )
  })

  test('until its end the admin listener answers: live, and draining', async (t) => {
    const { port, adminPort, close } = await startService(t)
    const half = postBytes({ id: 1, name: 'half' })
    const wire = await Wire.to(port)
    wire.write(half.slice(0, -3))
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
    assert.deepEqual(
      [ready.status, ready.json()],
      [503, { status: 'unavailable', checks: { service: 'draining', keys: 'ok', storage: 'ok' } }],
    )
    assert.equal((await call(adminPort, { path: '/livez', token: undefined })).status, 200)
    wire.write(half.slice(-3))
    assert.deepEqual((await wire.allAnswers()).map(verdict), [200])
    await stopped
    await assert.rejects(Wire.to(adminPort))
  })

  test('a second close is the first one, and nothing listens after it', async (t) => {
    // Another test could get a port that the system picked, as soon as this service has closed it.
    const port = await freePort()
    const { service } = await startService(t, { listen: { host: '127.0.0.1', port } })
    assert.equal(service.close(), service.close())
    await service.close()
    await assert.rejects(service.listen(), ListenFailed)
    await assert.rejects(Wire.to(port))
  })

  test('during a start the start ends first, and nothing stays open', async (t) => {
    for (const ticks of [0, 5]) {
      const dataDirectory = join(await temporaryDirectory(), 'data')
      const service = createPlantService({ ...EMBEDDED, data: dataDirectory })
      const started = service.listen().catch(() => undefined)
      for (let tick = 0; tick < ticks; tick++) await new Promise((resolve) => setImmediate(resolve))
      await service.close()
      const listening = await started
      for (const url of [listening?.plants, listening?.admin])
        if (url !== undefined) await assert.rejects(Wire.to(Number(new URL(url).port)))
      await startService(t, { data: dataDirectory })
    }
  })

  test('embedded in a server, close answers what is under way, then refuses', async (t) => {
    const { service, adminPort, close } = await startService(t)
    const outer = createServer(service.handler).listen(0, '127.0.0.1')
    await once(outer, 'listening')
    t.after(() => outer.close())
    // It listens on TCP.
    const { port } = outer.address() as AddressInfo
    const half = postBytes({ id: 1, name: 'a' })
    const wire = await Wire.to(port)
    wire.write(half.slice(0, -3))
    await underWay(adminPort, 1)
    const stopped = close()
    await sleep(100)
    assert.deepEqual((await wire.write(half.slice(-3)).allAnswers()).map(verdict), [200])
    await stopped
    for (const bytes of [head('GET', '/plants'), postBytes({ id: 2, name: 'b' })])
      assert.equal(verdict(await firstAnswer(port, bytes)), 'storageUnavailable')
  })

  test('connections above the maximum are refused, and the others go on', async (t) => {
    const { port } = await startService(t, { maxConnections: 3 })
    const wires = await Promise.all(Array.from({ length: 3 }, () => Wire.to(port)))
    await Promise.all(wires.map((wire) => wire.write(head('GET', '/plants')).answers(1)))
    const refused = connect(port, '127.0.0.1')
    refused.on('error', () => {})
    await once(refused, 'close')
    assert.equal(refused.bytesRead, 0)
    for (const wire of wires) {
      assert.equal((await wire.write(head('GET', '/plants')).answers(2)).length, 2)
      wire.destroy()
    }
    // After they have left there is room again.
    await until('a new connection is accepted', async () => {
      const wire = await Wire.to(port)
      const answer = await wire
        .write(head('GET', '/plants'))
        .answers(1)
        .catch(() => undefined)
      wire.destroy()
      return answer !== undefined
    })
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
  const { port, connections } = await startBare(t, { store: { list } })
  const wires = await Promise.all([Wire.to(port), Wire.to(port)])
  for (const [at, wire] of wires.entries())
    wire.write(head('GET', '/plants', { version: `1.${at}` }))
  for (const wire of wires) await until('the list has begun', () => wire.text.includes('another'))
  assert.equal(await connections.drain(100), 2)
  for (const wire of wires) {
    await wire.end()
    assert.match(String(wire.error), /ECONNRESET/)
  }
})

test('stop: a client that is still sending has its second after the last response', async (t) => {
  const { port, connections } = await startBare(t)
  const wire = await Wire.to(port)
  t.after(() => wire.destroy())
  const lines = ['Content-Type: application/json', 'Content-Length: 20000000']
  wire.write(head('POST', '/plants', { lines }))
  assert.deepEqual((await wire.answers(1)).map(verdict), ['bodyTooLarge'])
  const answeredAtMs = performance.now()
  const drained = connections.drain(PATIENCE_MS)
  const sending = setInterval(() => wire.write('x'.repeat(1000)), 20)
  t.after(() => clearInterval(sending))
  await drained
  // Timers may be early by a millisecond or two.
  assert.ok(performance.now() - answeredAtMs > 950, `${performance.now() - answeredAtMs} ms`)
})
