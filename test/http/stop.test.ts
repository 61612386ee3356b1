import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { DEFAULTS } from '../../dist/config.js'
import { ListenFailed } from '../../dist/http/listen.js'
import { createPlantService } from '../../dist/index.js'
import { call, post } from '../support/http.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { AUDIENCE, ISSUER, SECRET } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { firstAnswer, head, postBytes, Wire } from '../support/wire.ts'

// Mostly waiting: side by side.
describe('stop', { concurrency: true }, () => {
  test('what is in flight is answered, the connection then closes, and what was acknowledged is there afterwards', async (t) => {
    const { port, close, dataDirectory } = await startService(t)
    const half = postBytes({ id: 1, name: 'in flight' })
    const [waiting, pipelined] = await Promise.all([Wire.to(port), Wire.to(port)])
    waiting.write(half.slice(0, -3))
    pipelined.write(postBytes({ id: 2, name: 'before' }) + postBytes({ id: 3, name: 'behind' }) + head('GET', '/plants?limit=1') + half.slice(0, -3))
    await pipelined.answers(3)
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
    const again = await startService(t, { dataDirectory })
    assert.deepEqual((await call(again.port)).json(), [{ name: 'in flight' }, { name: 'before' }, { name: 'behind' }])
  })

  test('idle connections, used and never used, and half a request that does not move, do not hold it up', async (t) => {
    const { port, close } = await startService(t)
    const [unused, used, half, keptHalf] = await Promise.all([Wire.to(port), Wire.to(port), Wire.to(port), Wire.to(port)])
    await used.write(head('GET', '/plants')).answers(1)
    half.write('GET /plants HT')
    await keptHalf.write(`${head('GET', '/plants')}GET /pl`).answers(1)
    const start = performance.now()
    await close()
    assert.ok(performance.now() - start < 6000, 'far from the timeout of 10 s')
    for (const wire of [unused, used, half, keptHalf]) wire.destroy()
    await assert.rejects(Wire.to(port))
  })

  test('an answer that is still on its way arrives whole', async (t) => {
    const { port, close } = await startService(t, { maxBodyBytes: 16 * 2 ** 20 })
    for (let id = 0; id < 2; id++) await post(port, { id, name: 'x'.repeat(8 * 2 ** 20) })
    const [single, list] = await Promise.all([Wire.to(port), Wire.to(port)])
    for (const wire of [single, list]) wire.socket.pause()
    single.write(head('GET', '/plants?limit=1'))
    list.write(head('GET', '/plants'))
    await sleep(300)
    const stopped = close()
    await sleep(200)
    for (const wire of [single, list]) wire.socket.resume()
    assert.deepEqual((await single.allAnswers()).map(({ status, body }) => [status, (JSON.parse(body) as unknown[]).length]), [[200, 1]])
    assert.deepEqual((await list.allAnswers()).map(({ status, body }) => [status, (JSON.parse(body) as unknown[]).length]), [[200, 2]])
    await stopped
  })

  test('readiness goes red first, and through the drain delay everything is served on with Connection: close', async (t) => {
    const { port, adminPort, close } = await startService(t, { drainDelaySeconds: 3 })
    const used = await Wire.to(port)
    await used.write(head('GET', '/plants')).answers(1)
    const stopped = close()
    assert.equal((await call(adminPort, { path: '/readyz' })).status, 503)
    assert.equal((await call(adminPort, { path: '/livez' })).status, 200)
    for (const answer of [await firstAnswer(port, postBytes({ id: 1, name: 'late' })), await firstAnswer(port, head('GET', '/plants')), await firstAnswer(port, head('GET', '/trees')), (await used.write(head('OPTIONS', '/plants')).allAnswers())[1]]) {
      assert.ok(answer)
      assert.deepEqual(headerLines(answer, 'connection'), ['close'])
    }
    // Of what is pipelined, what comes behind the answer that closes is not carried out: the client knows, and repeats it.
    const wire = await Wire.to(port)
    const answers = await wire.write([10, 11, 12].map((id) => postBytes({ id, name: `piped ${id}` })).join('')).allAnswers()
    assert.deepEqual(answers.map((answer) => headerLines(answer, 'connection')[0]).indexOf('close'), answers.length - 1)
    assert.deepEqual(answers.map(({ body }) => body), [10, 11, 12].slice(0, answers.length).map((id) => `{"name":"piped ${id}"}`))
    const list = await firstAnswer(port, head('GET', '/plants'))
    assert.equal(list.body.split('piped').length - 1, answers.length)
    await stopped
  })

  test('what is still under way at the deadline is given up, and the log says so', async (t) => {
    const { port, close, logLines } = await startService(t, { shutdownTimeoutSeconds: 1 })
    const half = postBytes({ id: 1, name: 'half' })
    const wire = await Wire.to(port)
    wire.write(half.slice(0, -3))
    await sleep(50)
    const start = performance.now()
    await close()
    assert.ok(performance.now() - start >= 900)
    assert.ok(logLines.some((line) => line.includes('given up')))
    assert.deepEqual(await wire.allAnswers(), [])
  })

  test('a second close is the first one, and nothing listens after it', async (t) => {
    const { service, port } = await startService(t)
    assert.equal(service.close(), service.close())
    await service.close()
    await assert.rejects(service.listen(), ListenFailed)
    await assert.rejects(Wire.to(port))
  })

  test('while the service is starting, the start ends first, and nothing stays open', async (t) => {
    for (const turns of [0, 5]) {
      const dataDirectory = join(await temporaryDirectory(), 'data')
      const config = { ...DEFAULTS, listen: { host: '127.0.0.1', port: 0 }, adminListen: { host: '127.0.0.1', port: 0 }, issuer: ISSUER, audience: AUDIENCE, keys: { kind: 'secret', secret: Buffer.from(SECRET) }, logLevel: 'silent', dataDirectory } as const
      const service = createPlantService(config)
      const started = service.listen().catch(() => undefined)
      for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve))
      await service.close()
      const listening = await started
      for (const url of [listening?.plants, listening?.admin]) if (url !== undefined) await assert.rejects(Wire.to(Number(new URL(url).port)))
      await startService(t, { dataDirectory })
    }
  })

  test('mounted in a server of somebody else\'s, close answers what is in flight, and later requests are refused', async (t) => {
    const { service, close } = await startService(t)
    const outer = createServer(service.handler).listen(0, '127.0.0.1')
    await once(outer, 'listening')
    t.after(() => outer.close())
    // It listens on TCP.
    const { port } = outer.address() as AddressInfo
    const half = postBytes({ id: 1, name: 'a' })
    const wire = await Wire.to(port)
    wire.write(half.slice(0, -3))
    await sleep(50)
    const stopped = close()
    await sleep(100)
    assert.deepEqual((await wire.write(half.slice(-3)).allAnswers()).map(verdict), [200])
    await stopped
    for (const bytes of [head('GET', '/plants'), postBytes({ id: 2, name: 'b' })]) assert.equal(verdict(await firstAnswer(port, bytes)), 'storageUnavailable')
  })

  test('connections beyond the maximum are turned away, and those within go on', async (t) => {
    const { port } = await startService(t, { maxConnections: 3 })
    const wires = await Promise.all(Array.from({ length: 3 }, () => Wire.to(port)))
    await Promise.all(wires.map((wire) => wire.write(head('GET', '/plants')).answers(1)))
    const turnedAway = connect(port, '127.0.0.1')
    turnedAway.on('error', () => {})
    await once(turnedAway, 'close')
    assert.equal(turnedAway.bytesRead, 0)
    for (const wire of wires) {
      assert.equal((await wire.write(head('GET', '/plants')).answers(2)).length, 2)
      wire.destroy()
    }
  })
})
