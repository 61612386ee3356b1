import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import { nodeFiles } from '../../dist/store/sqljs/disk/files.js'
import { batchLine, journalName } from '../../dist/store/sqljs/disk/journal-format.js'
import { SqljsStore } from '../../dist/store/sqljs/sqljs-store.js'
import { call, post, type Reply } from '../support/http.ts'
import { healthOf } from '../../dist/api/admin.js'
import { HOSTILE, HOSTILE_ESCAPED } from '../support/hostile.ts'
import { scrape } from '../support/metrics.ts'
import { LONG } from '../support/scale.ts'
import { embed, startService, temporaryDirectory } from '../support/service.ts'
import { oldHead } from '../support/store-files.ts'
import { until } from '../support/time.ts'
import { assertCommon, headerLines, verdict } from '../support/verdict.ts'
import { answersToHalf, firstAnswer, Wire } from '../support/wire.ts'

/** A request without a token to an admin listener. */
function get(target: number | string, path: string, method = 'GET'): Promise<Reply> {
  return call(target, { path, method, token: undefined })
}

const READY = { status: 'ok', checks: { service: 'ok', keys: 'ok', storage: 'ok' } }
const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

test('admin: four paths need no token, and have GET and HEAD alone', async (t) => {
  const { adminPort } = await startService(t)
  const paths = ['/livez', '/livez?verbose', '/readyz', '/readyz?x=1', '/metrics', '/openapi.json']
  for (const path of paths) {
    const type = path === '/metrics' ? METRICS_TYPE : 'application/json'
    const [reply, only] = [await get(adminPort, path), await get(adminPort, path, 'HEAD')]
    for (const each of [reply, only]) {
      assertCommon(each)
      assert.deepEqual([each.status, headerLines(each, 'content-type')], [200, [type]], path)
    }
    assert.equal(only.text, '')
    const lengths = [reply, only].map((each) => Number(each.headers['content-length']))
    assert.equal(lengths[0], Buffer.byteLength(reply.text))
    // Metrics change between two requests.
    if (path === '/metrics') assert.ok(Number(lengths[1]) > 1000)
    else assert.equal(lengths[1], lengths[0])
    for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS']) {
      const refused = await get(adminPort, path, method)
      const found = [verdict(refused), headerLines(refused, 'allow')]
      assert.deepEqual(found, ['methodNotAllowed', ['GET, HEAD']])
    }
  }
  const message = 'Nothing is at this path: see /livez, /readyz, /metrics, /openapi.json.'
  for (const path of ['/plants', '/', '/livez/', '/readyz/x', '//livez']) {
    const reply = await get(adminPort, path)
    assertCommon(reply)
    assert.deepEqual(state(reply), [404, { error: 40401, message }], path)
  }
})

test('admin: livez is always green, and readyz names what is unavailable', async (t) => {
  const { adminPort } = await startService(t)
  assert.deepEqual(state(await get(adminPort, '/livez')), [200, { status: 'ok' }])
  assert.deepEqual(state(await get(adminPort, '/readyz')), [200, READY])

  const reason = `the disk is full: ${HOSTILE}`
  const storage = `the disk is full: ${HOSTILE_ESCAPED}`
  const mocked = t.mock.method(SqljsStore.prototype, 'unavailableReason', () => reason)
  const red = { status: 'unavailable', checks: { ...READY.checks, storage } }
  assert.deepEqual(state(await get(adminPort, '/readyz')), [503, red])
  assert.equal((await get(adminPort, '/livez')).status, 200)
  mocked.mock.restore()
  assert.deepEqual(state(await get(adminPort, '/readyz')), [200, READY])
  assert.equal(healthOf({ ...READY.checks, keys: HOSTILE }).checks.keys, HOSTILE_ESCAPED)

  // Nothing listens on port 1.
  const jwksUrl = 'http://127.0.0.1:1/keys'
  const keyless = await get((await startService(t, { jwksUrl })).adminPort, '/readyz')
  assert.equal(keyless.status, 503)
  assert.match(keyless.text, /"keys":"[^"]*no usable key set[^"]*","storage":"ok"/)
})

test('admin: bad requests get an Error; Host and Expect are not checked', async (t) => {
  const { adminPort } = await startService(t)
  for (const [bytes, expected] of [
    ['GARBAGE\r\n\r\n', 'malformedRequest'],
    [`GET /livez HTTP/1.1\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`, 'headersTooLarge'],
    ['CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n', 'methodUnknown'],
    ['GET /livez HTTP/1.1\r\n\r\n', 200],
    ['GET /livez HTTP/1.0\r\n\r\n', 200],
    ['GET /livez HTTP/1.1\r\nHost: a\r\nExpect: much\r\n\r\n', 200],
  ] as const) {
    assert.equal(verdict(await firstAnswer(adminPort, bytes)), expected, bytes.slice(0, 50))
  }
})

test('admin: a metric that cannot be read causes a 500 and a log line', async (t) => {
  const { adminPort, logLines } = await startService(t)
  const broken = t.mock.method(process, 'cpuUsage', () => {
    throw new Error('no CPU')
  })
  const reply = await get(adminPort, '/metrics')
  assert.equal(verdict(reply), 'internal')
  broken.mock.restore()
  const [requestId] = headerLines(reply, 'request-id')
  const line = logLines.find((each) => each.includes('"an admin request failed"')) ?? ''
  assert.match(line, new RegExp(`"requestId":"${requestId}","error":.*no CPU`))
  await scrape(adminPort)
})

function state({ status, json }: Reply): unknown {
  return [status, json()]
}

/** A service on unix sockets, whose addresses are known before it listens. */
async function quietService(t: TestContext, data?: string) {
  const directory = await temporaryDirectory()
  const [plants, admin] = [join(directory, 'plants.sock'), join(directory, 'admin.sock')]
  const addresses = { listen: `unix:${plants}`, adminListen: `unix:${admin}` }
  return { service: await embed(t, { data, ...addresses }), admin, plants }
}

function appears(path: string): Promise<void> {
  return until('it listens', () => existsSync(path))
}

test('admin: during a recovery it is alive, not ready, and plants are not served', async (t) => {
  const original = SqljsStore.open.bind(SqljsStore)
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  t.mock.method(SqljsStore, 'open', (options: Parameters<typeof original>[0]) =>
    held.then(() => original(options)),
  )
  const { service, admin, plants } = await quietService(t)
  const listening = service.listen()
  await appears(admin)
  assert.deepEqual(state(await get(admin, '/livez')), [200, { status: 'ok' }])
  const checks = { service: 'starting', keys: 'ok', storage: 'not recovered yet' }
  assert.deepEqual(state(await get(admin, '/readyz')), [503, { status: 'unavailable', checks }])
  const found = await scrape(admin)
  assert.deepEqual(found.all('plant_store_ready'), [
    ['plant_store_ready{check="service"}', 0],
    ['plant_store_ready{check="keys"}', 1],
    ['plant_store_ready{check="storage"}', 0],
  ])
  assert.deepEqual(found.all('plant_store_plants'), [], 'a store that is not open has no metrics')
  assert.equal(existsSync(plants), false)
  release()
  await listening
  assert.deepEqual(state(await get(admin, '/readyz')), [200, READY])
  assert.equal((await call(plants)).status, 200)
  assert.equal((await scrape(admin)).value('plant_store_plants'), 0)
})

test('admin: probes are answered during a long recovery', async (t) => {
  const BATCHES = 600
  const data = join(await temporaryDirectory(), 'data')
  await mkdir(data)
  const lines = Array.from({ length: BATCHES }, (_, i) =>
    batchLine(i + 1, [['alice', String(i), 'Fern']]),
  )
  await writeFile(join(data, journalName(1)), Buffer.concat([oldHead(1), ...lines]))
  const { service, admin } = await quietService(t, data)
  // Each batch seems to take 30 ms, so all of them take 18 seconds.
  const now = performance.now.bind(performance)
  let skippedMs = 0
  performance.now = () => now() + (skippedMs += 30)
  t.after(() => (performance.now = now))
  const listening = service.listen()
  let listens = false
  void listening.finally(() => (listens = true))
  while (!existsSync(admin)) await nextTick()
  let starting = 0
  while (!listens) {
    const [live, ready] = [await get(admin, '/livez'), await get(admin, '/readyz')]
    assert.equal(live.status, 200)
    if (ready.status === 503) starting++
  }
  // A replay yields every 50 ms, and a probe needs a few ticks. A kubelet waits 1 s for a probe.
  assert.ok(starting >= 18, `in that time only ${starting} pairs of probes were answered`)
  const recovered = { plants: BATCHES, batches: BATCHES, tornBytes: 0, ms: 0 }
  assert.deepEqual({ ...(await listening).recovered, ms: 0 }, recovered)
  assert.equal((await scrape(admin)).value('plant_store_plants'), BATCHES)
})

test('admin: a full disk makes it not ready until there is room again', async (t) => {
  let full = false
  const { open } = nodeFiles
  t.mock.method(nodeFiles, 'open', async (...how: Parameters<typeof open>) => {
    const file = await open(...how)
    const write: typeof file.write = (bytes, at) => {
      const error = Object.assign(new Error('ENOSPC: no space left'), { code: 'ENOSPC' })
      return full ? Promise.reject(error) : file.write(bytes, at)
    }
    return { ...file, write }
  })
  const { port, adminPort } = await startService(t)
  full = true
  assert.equal((await post(port, { id: 1, name: 'Fern' })).status, 503)
  const red = await get(adminPort, '/readyz')
  assert.equal(red.status, 503)
  assert.match(red.text, /"service":"ok","keys":"ok","storage":"[^"]*ENOSPC/)
  assert.equal((await get(adminPort, '/livez')).status, 200)
  const { value } = await scrape(adminPort)
  assert.equal(value('plant_store_ready{check="storage"}'), 0)
  assert.equal(value('plant_store_errors_total{error="50302"}'), 1)
  assert.equal(value('plant_store_sync_seconds_count'), 0)
  assert.equal((await call(port)).status, 200, 'reading goes on')
  full = false
  await until('it is ready', async () => (await get(adminPort, '/readyz')).status === 200)
  assert.equal((await post(port, { id: 1, name: 'Fern' })).status, 200)
  assert.equal((await scrape(adminPort)).value('plant_store_sync_seconds_count'), 1)
})

const ADMIN_MAX = 32
const LIVEZ = 'GET /livez HTTP/1.1\r\nHost: a\r\n\r\n'

test('admin: beyond the limit, a new connection closes the oldest', async (t) => {
  const { adminPort } = await startService(t)
  const wires: Wire[] = []
  for (let at = 0; at < ADMIN_MAX; at++) wires.push(await Wire.to(adminPort))
  const [first, second, ...others] = wires
  assert.ok(first && second)
  const wire = await Wire.to(adminPort)
  await wire.write(LIVEZ).answers(1)
  assert.deepEqual(await first.allAnswers(), [])
  for (const kept of [second, ...others]) assert.equal(kept.ended, false)
  assert.equal((await second.write(LIVEZ).answers(1)).length, 1)
})

test('admin: all connections with stalled readers: a probe still gets in', async (t) => {
  const path = join(await temporaryDirectory(), 'admin.sock')
  await startService(t, { adminListen: { path } })
  const wires: Wire[] = []
  for (let at = 0; at < ADMIN_MAX; at++) {
    const wire = await Wire.to(path)
    wire.socket.pause()
    wires.push(wire.write('GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n'.repeat(50)))
  }
  const isAlive = async () => (await get(path, '/livez')).status === 200
  await until('a probe is answered', () => isAlive().catch(() => false))
})

test('admin: idle ones close in seconds, late headers get 408', { skip: LONG }, async (t) => {
  const { adminPort } = await startService(t)
  const used = await Wire.to(adminPort)
  await used.write(LIVEZ).answers(1)
  const late = answersToHalf(adminPort, (wire) => void wire.write('GET /livez HTTP/1.1\r\nHost:'))
  assert.deepEqual((await used.allAnswers()).map(verdict), [200])
  assert.deepEqual((await late).map(verdict), ['requestTimeout'])
})
