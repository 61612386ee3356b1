import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { describe, test, type TestContext } from 'node:test'
import type { PlantService } from '../../dist/index.js'
import { type Files, nodeFiles } from '../../dist/store/sqljs/files.js'
import { batchLine, headerLine, journalName } from '../../dist/store/sqljs/journal-format.js'
import { SqljsStore } from '../../dist/store/sqljs/store.js'
import { embed } from '../support/embedded.ts'
import { call, post, type Reply } from '../support/http.ts'
import { healthOf } from '../../dist/api/admin.js'
import { HOSTILE, HOSTILE_ESCAPED } from '../support/hostile.ts'
import { scrape } from '../support/metrics.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'
import { assertCommon, headerLines, verdict } from '../support/verdict.ts'
import { answersToHalf, converse, firstAnswer, postBytes, Wire } from '../support/wire.ts'

type Get = (path: string, method?: string) => Promise<Reply>

/** Requests without a token to an admin listener. */
function getter(target: number | string): Get {
  return (path, method = 'GET') => call(target, { path, method, token: undefined })
}

test('admin: livez and readyz need no token, and name what is unavailable', async (t) => {
  const { adminPort, port } = await startService(t)
  const get = getter(adminPort)
  for (const path of ['/livez', '/livez?verbose', '/readyz', '/readyz?x=1']) {
    const reply = await get(path)
    assertCommon(reply)
    assert.equal(reply.status, 200)
    const only = await get(path, 'HEAD')
    assert.deepEqual(
      [only.status, only.text, headerLines(only, 'content-length')],
      [200, '', headerLines(reply, 'content-length')],
    )
  }
  assert.deepEqual((await get('/livez')).json(), { status: 'ok' })
  assert.deepEqual((await get('/readyz')).json(), {
    status: 'ok',
    checks: { service: 'ok', keys: 'ok', storage: 'ok' },
  })

  const reason = `the disk is full: ${HOSTILE}`
  const storage = `the disk is full: ${HOSTILE_ESCAPED}`
  const mocked = t.mock.method(SqljsStore.prototype, 'unavailableReason', () => reason)
  const red = await get('/readyz')
  assert.deepEqual(
    [red.status, red.json()],
    [503, { status: 'unavailable', checks: { service: 'ok', keys: 'ok', storage } }],
  )
  assert.equal((await get('/livez')).status, 200)
  mocked.mock.restore()
  assert.equal((await get('/readyz')).status, 200)

  const message = 'There is nothing at this path: see /livez, /readyz, /metrics, /openapi.json.'
  for (const path of ['/plants', '/', '/livez/', '/readyz/x', '//livez']) {
    const reply = await get(path)
    assertCommon(reply)
    assert.deepEqual([reply.status, reply.json()], [404, { error: 40401, message }], path)
  }
  for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS']) {
    const reply = await get('/livez', method)
    assert.deepEqual(
      [verdict(reply), headerLines(reply, 'allow')],
      ['methodNotAllowed', ['GET, HEAD']],
    )
  }
  assert.equal(
    verdict(await call(port, { path: '/livez' })),
    'pathUnknown',
    'the public listener has only /plants',
  )
})

test('admin: without keys, is not ready', async (t) => {
  // Nothing listens on port 1.
  const { adminPort } = await startService(t, {
    keys: { kind: 'url', url: 'http://127.0.0.1:1/keys' },
  })
  const reply = await getter(adminPort)('/readyz')
  assert.equal(reply.status, 503)
  assert.match(reply.text, /"keys":"[^"]*no usable key set/)
  assert.match(reply.text, /"storage":"ok"/)
})

test('admin: can be off', async (t) => {
  const { port, adminPort } = await startService(t, { adminListen: 'off' })
  assert.equal(adminPort, 0)
  assert.equal((await call(port)).status, 200)
})

test('admin: metrics allow GET and HEAD alone, and HEAD has the length', async (t) => {
  const { adminPort, port } = await startService(t)
  const only = await getter(adminPort)('/metrics', 'HEAD')
  assertCommon(only)
  assert.deepEqual(
    [only.status, only.text, headerLines(only, 'content-type')],
    [200, '', ['text/plain; version=0.0.4; charset=utf-8']],
  )
  assert.ok(Number(headerLines(only, 'content-length')[0]) > 1000)
  const posted = await call(adminPort, {
    path: '/metrics',
    method: 'POST',
    token: undefined,
    body: 'x',
  })
  assert.deepEqual(
    [verdict(posted), headerLines(posted, 'allow')],
    ['methodNotAllowed', ['GET, HEAD']],
  )
  assert.equal(
    verdict(await call(port, { path: '/metrics' })),
    'pathUnknown',
    'the public listener has only /plants',
  )
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
  const reply = await getter(adminPort)('/metrics')
  assert.equal(verdict(reply), 'internal')
  broken.mock.restore()
  const [requestId] = headerLines(reply, 'request-id')
  const line = logLines.find((each) => each.includes('"an admin request failed"')) ?? ''
  assert.match(line, new RegExp(`"requestId":"${requestId}","error":.*no CPU`))
  await scrape(adminPort)
})

const READY = { status: 'ok', checks: { service: 'ok', keys: 'ok', storage: 'ok' } }

function state({ status, json }: Reply): unknown {
  return [status, json()]
}

interface Starting {
  readonly service: PlantService
  readonly admin: string
  readonly plants: string
  readonly get: Get
}

/** A service on unix sockets, whose addresses are known before it listens. */
async function quietService(t: TestContext, dataDirectory?: string): Promise<Starting> {
  const directory = await temporaryDirectory()
  const [plants, admin] = [join(directory, 'plants.sock'), join(directory, 'admin.sock')]
  const service = await embed(t, {
    data: dataDirectory,
    listen: `unix:${plants}`,
    adminListen: `unix:${admin}`,
  })
  return { service, admin, plants, get: getter(admin) }
}

async function appears(path: string): Promise<void> {
  while (!existsSync(path)) await new Promise((resolve) => setTimeout(resolve, 1))
}

test('admin: during a recovery it is alive, not ready, and plants are not served', async (t) => {
  const original = SqljsStore.open.bind(SqljsStore)
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  t.mock.method(SqljsStore, 'open', (options: Parameters<typeof original>[0]) =>
    held.then(() => original(options)),
  )
  const { service, admin, plants, get } = await quietService(t)
  const listening = service.listen()
  await appears(admin)
  assert.deepEqual(state(await get('/livez')), [200, { status: 'ok' }])
  assert.deepEqual(state(await get('/readyz')), [
    503,
    {
      status: 'unavailable',
      checks: { service: 'starting', keys: 'ok', storage: 'not recovered yet' },
    },
  ])
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
  assert.deepEqual(state(await get('/readyz')), [200, READY])
  assert.equal((await call(plants)).status, 200)
  assert.equal((await scrape(admin)).value('plant_store_plants'), 0)
})

test('admin: probes are answered during a long recovery', async (t) => {
  const BATCHES = 600
  const dataDirectory = join(await temporaryDirectory(), 'data')
  await mkdir(dataDirectory)
  const lines = Array.from({ length: BATCHES }, (_, i) =>
    batchLine(i + 1, [['alice', String(i), 'Fern']]),
  )
  await writeFile(join(dataDirectory, journalName(1)), Buffer.concat([headerLine(1), ...lines]))
  const { service, admin, get } = await quietService(t, dataDirectory)
  // Each batch seems to take 30 ms, so all of them take 18 seconds.
  const now = performance.now.bind(performance)
  let skippedMs = 0
  performance.now = () => now() + (skippedMs += 30)
  t.after(() => (performance.now = now))
  const listening = service.listen()
  let listens = false
  void listening.finally(() => (listens = true))
  await appears(admin)
  let starting = 0
  while (!listens) {
    const [live, ready] = [await get('/livez'), await get('/readyz')]
    assert.equal(live.status, 200)
    if (ready.status === 503) starting++
  }
  // A replay yields every 50 ms, and a probe needs a few ticks. A kubelet waits 1 s for a probe.
  assert.ok(starting >= 18, `in that time only ${starting} pairs of probes were answered`)
  const { recovered } = await listening
  assert.deepEqual(
    { ...recovered, ms: 0 },
    { plants: BATCHES, groups: BATCHES, tornBytes: 0, ms: 0 },
  )
  const { value } = await scrape(admin)
  assert.equal(value('plant_store_plants'), BATCHES)
})

test('admin: while it drains, it is alive and not ready', async (t) => {
  const { port, adminPort, close } = await startService(t)
  const get = getter(adminPort)
  const half = postBytes({ id: 1, name: 'in flight' })
  const wire = await Wire.to(port)
  wire.write(half.slice(0, -3))
  while ((await scrape(adminPort)).value('http_server_active_requests') === 0);
  const stopped = close()
  assert.deepEqual(state(await get('/readyz')), [
    503,
    { status: 'unavailable', checks: { service: 'draining', keys: 'ok', storage: 'ok' } },
  ])
  assert.equal((await get('/livez')).status, 200)
  assert.equal((await scrape(adminPort)).value('plant_store_ready{check="service"}'), 0)
  assert.equal((await wire.write(half.slice(-3)).answers(1))[0]?.status, 200)
  await stopped
  wire.destroy()
})

test('admin: a full disk makes it not ready until there is room again', async (t) => {
  let full = false
  const refuse = (): void => {
    if (full) throw Object.assign(new Error('ENOSPC: no space left on device'), { code: 'ENOSPC' })
  }
  const files: Files = {
    ...nodeFiles,
    async open(path, mode) {
      const file = await nodeFiles.open(path, mode)
      return {
        ...file,
        async write(bytes, at) {
          refuse()
          return file.write(bytes, at)
        },
      }
    },
  }
  const original = SqljsStore.open.bind(SqljsStore)
  t.mock.method(SqljsStore, 'open', (options: Parameters<typeof original>[0]) =>
    original({ ...options, files }),
  )
  const { port, adminPort } = await startService(t)
  const get = getter(adminPort)
  full = true
  assert.equal((await post(port, { id: 1, name: 'Fern' })).status, 503)
  const red = await get('/readyz')
  assert.equal(red.status, 503)
  // The documented form of this response.
  const { checks } = red.json() as { checks: Record<string, string> }
  assert.deepEqual([checks['service'], checks['keys']], ['ok', 'ok'])
  assert.match(checks['storage'] ?? '', /ENOSPC/)
  assert.equal((await get('/livez')).status, 200)
  const found = await scrape(adminPort)
  assert.deepEqual(
    [
      found.value('plant_store_ready{check="storage"}'),
      found.value('plant_store_errors_total{error="50302"}'),
      found.value('plant_store_sync_seconds_count'),
    ],
    [0, 1, 0],
  )
  assert.equal((await call(port)).status, 200, 'reading goes on')
  full = false
  while ((await get('/readyz')).status !== 200);
  assert.equal((await post(port, { id: 1, name: 'Fern' })).status, 200)
  assert.equal((await scrape(adminPort)).value('plant_store_sync_seconds_count'), 1)
})

test('admin: a taken address fails the start before the store is opened', async (t) => {
  const { service, admin, plants } = await quietService(t)
  const taken = createServer().listen(admin)
  t.after(() => taken.close())
  await appears(admin)
  const opened = t.mock.method(SqljsStore, 'open')
  await assert.rejects(service.listen(), /cannot listen on unix:.*something listens there already/)
  assert.equal(opened.mock.callCount(), 0)
  assert.equal(existsSync(plants), false)
})

const ADMIN_MAX = 32
const LIVEZ = 'GET /livez HTTP/1.1\r\nHost: a\r\n\r\n'

// Not with the others: on a busy machine its idle connections would reach their timeout.
test('admin: beyond the limit, a new connection closes the one idle for longest', async (t) => {
  const { adminPort } = await startService(t)
  const wires: Wire[] = []
  for (let at = 0; at < ADMIN_MAX; at++) wires.push(await Wire.to(adminPort))
  const [first, second, ...others] = wires
  assert.ok(first && second)
  // Now the second one is idle for longest.
  await first.write(LIVEZ).answers(1)
  const wire = await Wire.to(adminPort)
  await wire.write(LIVEZ).answers(1)
  assert.deepEqual(await second.allAnswers(), [])
  for (const kept of [first, ...others]) assert.equal(kept.ended, false)
  assert.equal((await first.write(LIVEZ).answers(2)).length, 2)
  for (const each of [wire, ...wires]) each.destroy()
})

// These tests mostly wait, so they run at the same time.
describe('admin connections', { concurrency: true }, () => {
  test('all allowed connections idle: a probe still gets in', async (t) => {
    const { adminPort } = await startService(t)
    const wires: Wire[] = []
    // Never used, with half a request, used before.
    for (const bytes of ['', 'GET /livez HTTP/1.1\r\nHost:', LIVEZ]) {
      for (let at = 0; at < ADMIN_MAX; at++) wires.push((await Wire.to(adminPort)).write(bytes))
      for (let round = 0; round < 3; round++) {
        const reply = await getter(adminPort)('/readyz')
        assert.deepEqual(state(reply), [200, READY])
      }
    }
    for (const wire of wires) wire.destroy()
  })

  test('all allowed connections with stalled readers: a probe still gets in', async (t) => {
    const directory = await temporaryDirectory()
    const path = join(directory, 'admin.sock')
    await startService(t, { adminListen: { path } })
    const wires: Wire[] = []
    for (let at = 0; at < ADMIN_MAX; at++) {
      const wire = await Wire.to(path)
      wire.socket.pause()
      wire.write('GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n'.repeat(50))
      wires.push(wire)
    }
    await until('a probe is answered', () =>
      getter(path)('/livez').then(
        ({ status }) => status === 200,
        () => false,
      ),
    )
    for (const wire of wires) wire.destroy()
  })

  test('idle connections close within seconds, and late headers get 408', async (t) => {
    const { adminPort } = await startService(t)
    const used = await Wire.to(adminPort)
    await used.write(LIVEZ).answers(1)
    const late = answersToHalf(adminPort, (wire) => void wire.write('GET /livez HTTP/1.1\r\nHost:'))
    assert.deepEqual((await used.allAnswers()).map(verdict), [200])
    assert.deepEqual((await late).map(verdict), ['requestTimeout'])
    used.destroy()
  })

  test('a client that half-closes after its requests is answered', async (t) => {
    const { adminPort } = await startService(t)
    const answers = await converse(adminPort, LIVEZ.repeat(16))
    assert.deepEqual(
      answers.map(verdict),
      Array.from({ length: 16 }, () => 200),
    )
  })
})

test('admin: the reasons of both checks are escaped', () => {
  const { checks } = healthOf({ service: 'ok', keys: HOSTILE, storage: HOSTILE })
  assert.deepEqual([checks.keys, checks.storage], [HOSTILE_ESCAPED, HOSTILE_ESCAPED])
})
