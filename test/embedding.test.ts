import assert from 'node:assert/strict'
import type { ServerResponse } from 'node:http'
import { type TestContext, test } from 'node:test'
import { ConfigError, type LogLine, type OnLog, type PlantServiceConfig } from '../dist/index.js'
import { ListenFailed } from '../dist/http/listen.js'
import { StoreUnavailable } from '../dist/plants/store.js'
import { StoreCorrupt } from '../dist/store/sqljs/disk/journal-format.js'
import { DirectoryLocked } from '../dist/store/sqljs/disk/lock.js'
import { call, post } from './support/http.ts'
import { readMetrics } from './support/metrics.ts'
import { portOf } from './support/ports.ts'
import { embed } from './support/service.ts'
import { onRequestStart, serving } from './support/serving.ts'
import { until } from './support/time.ts'
import { token } from './support/tokens.ts'
import { head, postBytes, Wire } from './support/wire.ts'

/** The port of a server of the test's own that has the service's handler. */
async function mount(t: TestContext, options: Partial<PlantServiceConfig>): Promise<number> {
  const service = await embed(t, options)
  await service.open()
  return portOf(await serving(t, service.handler))
}

test("embedding: observers of Node's servers see responses as Node's own", async (t) => {
  const service = await embed(t, { adminListen: 'off' })
  const port = portOf((await service.listen()).plants)
  const seen: unknown[] = []
  onRequestStart(t, (_, response) => {
    response.setHeader('Server-Timing', 'total')
    response.once('close', () => {
      const { headersSent, writableEnded, writableFinished, statusCode } = response
      seen.push([headersSent, writableEnded, writableFinished, statusCode])
    })
  })
  const wire = await Wire.to(port)
  const statuses = { '/plants': 200, '/trees': 404 }
  for (const [at, [path, status]] of Object.entries(statuses).entries()) {
    const answers = await wire.write(head('GET', path)).answers(at + 1)
    assert.deepEqual(answers[at]?.headers.get('server-timing'), ['total'])
    await until('the response is seen', () => seen.length === at + 1)
    assert.deepEqual(seen[at], [true, true, true, status])
  }
})

test("embedding: observers of Node's servers may read bodies, and respond", async (t) => {
  const service = await embed(t, { adminListen: 'off' })
  const port = portOf((await service.listen()).plants)
  // From here on this token is cached, and bodies are read as soon as they come.
  const cached = { token: token('alice') }
  assert.equal((await post(port, { id: 1, name: 'Fern' }, cached)).status, 200)
  const bodies: string[] = []
  onRequestStart(t, (request, response) => {
    if (request.headers['x-refuse'] === undefined)
      request.on('data', (chunk: Buffer) => bodies.push(String(chunk)))
    else setTimeout(() => response.writeHead(403, { 'content-length': 0 }).end(), 20)
  })

  const wire = await Wire.to(port)
  const moss = postBytes({ id: 2, name: 'Moss' }, cached)
  assert.equal((await wire.write(moss).answers(1))[0]?.status, 200)
  assert.deepEqual(bodies, [moss.slice(moss.indexOf('{'))])
  // The first part of this body alone would be a plant.
  const lines = ['X-Refuse: 1', 'Content-Type: application/json', 'Content-Length: 30']
  wire.write(`${head('POST', '/plants', { lines, ...cached })}{"id":3,"name":"Ivy"}`)
  assert.equal((await wire.answers(2))[1]?.status, 403)
  wire.write('garbage..').halfClose()
  await wire.allAnswers()
  assert.deepEqual((await call(port)).json(), [{ name: 'Fern' }, { name: 'Moss' }])
})

test('embedding: close leaves a request to the application on a shared connection', async (t) => {
  const service = await embed(t)
  await service.open()
  const slow: ServerResponse[] = []
  const url = await serving(t, (req, res) => {
    if (req.url === '/slow') slow.push(res)
    else service.handler(req, res)
  })
  const wire = await Wire.to(portOf(url))
  assert.equal((await wire.write(head('GET', '/plants')).answers(1))[0]?.body, '[]')
  wire.write(head('GET', '/slow', { token: undefined }))
  await until('the application has it', () => slow.length === 1)
  await service.close()
  slow[0]?.end('slow')
  assert.equal((await wire.answers(2))[1]?.body, 'slow')
})

test('embedding: onLog gets each line of the log as an object, and stdout gets none', async (t) => {
  const lines: LogLine[] = []
  const written = t.mock.method(process.stdout, 'write')
  const port = await mount(t, { logLevel: 'info', onLog: (line) => void lines.push(line) })
  const { headers } = await call(port, { headers: { 'request-id': 'a "quoted" id' } })
  await call(port, { token: undefined })
  await until('both are logged', () => lines.length === 2)
  // The test runner writes to it too.
  assert.doesNotMatch(written.mock.calls.map(({ arguments: [text] }) => text).join(), /"request"/)
  const [{ time, ms, requestId, owner, ...rest } = assert.fail(), refused] = lines
  assert.equal(new Date(time).toISOString(), time)
  assert.ok(typeof ms === 'number' && ms > 0)
  assert.equal(requestId, headers['request-id'])
  assert.match(String(owner), /^[0-9a-f]{12}$/)
  const message = 'request'
  assert.deepEqual(rest, { level: 'info', message, method: 'GET', route: '/plants', status: 200 })
  assert.equal(refused?.['status'], 401)
})

test('embedding: onLog gets an error as an object, at level error and above', async (t) => {
  const lines: LogLine[] = []
  const service = await embed(t, { logLevel: 'error', onLog: (line) => void lines.push(line) })
  await service.open()
  const url = await serving(t, (req, res) => {
    req.on('data', () => {}).once('end', () => service.handler(req, res))
  })
  assert.equal((await post(portOf(url), { id: 1, name: 'Fern' })).status, 500)
  await until('it is logged', () => lines.length > 0)
  const [{ level, message, error } = assert.fail(), ...more] = lines
  assert.deepEqual([level, message, more], ['error', 'a request failed', []])
  const said = 'the body was read before the handler: mount it before body parsers'
  const { stack, ...rest } = Object(error) as Readonly<Record<string, unknown>>
  assert.deepEqual(rest, { name: 'Error', message: said })
  assert.match(String(stack), new RegExp(`^Error: ${said}\n +at `))
})

for (const [how, fail] of Object.entries<OnLog>({
  throws() {
    throw new Error('gone')
  },
  async rejects() {
    throw new Error('gone')
  },
  'throws a circle'() {
    const error = new Error('gone')
    throw Object.assign(error, { cause: error })
  },
}))
  test(`embedding: an onLog that ${how} causes one warning, and nothing else`, async (t) => {
    let calls = 0
    const onLog: OnLog = (line) => (calls++, fail(line))
    const port = await mount(t, { logLevel: 'info', onLog })
    const warnings = t.mock.method(process, 'emitWarning', () => {})
    for (const id of [1, 2, 3]) assert.equal((await post(port, { id, name: 'Fern' })).status, 200)
    await until('each line is passed on', () => calls === 3)
    await until('it warns', () => warnings.mock.callCount() > 0)
    const told = warnings.mock.calls.map(({ arguments: [warning] }) => warning)
    assert.deepEqual(told, ['plant-store: onLog failed: gone'])
  })

test('embedding: a program gets what is documented, and may destructure it', async (t) => {
  const { health, ...others } = await embed(t, {})
  assert.equal(health().status, 'unavailable')
  assert.deepEqual(Object.keys(others).sort(), ['close', 'handler', 'listen', 'metrics', 'open'])
})

test('embedding: an open service listens for no signal', async (t) => {
  await (await embed(t)).listen()
  for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGUSR1'] as const)
    assert.deepEqual(process.listeners(name), [])
})

test('embedding: health is that of /readyz, also without listeners', async (t) => {
  const ok = { status: 'ok', checks: { service: 'ok', keys: 'ok', storage: 'ok' } }
  const service = await embed(t)
  const { health } = service
  const { status, checks } = health()
  assert.equal(status, 'unavailable')
  assert.deepEqual(checks, { service: 'starting', keys: 'ok', storage: 'not recovered yet' })
  await service.open()
  assert.deepEqual(health(), ok)
  const { admin } = await service.listen()
  const ready = await call(portOf(admin ?? assert.fail()), { path: '/readyz' })
  assert.deepEqual([ready.status, ready.json()], [200, health()])
  await service.close()
  assert.equal(health().status, 'unavailable')
  assert.equal(health().checks.service, 'draining')
})

test('embedding: metrics are those of /metrics without those of the process', async (t) => {
  const service = await embed(t)
  const { metrics } = service
  assert.match(metrics(), /^plant_store_ready{check="service"} 0$/m)
  const { plants, admin } = await service.listen()
  assert.equal((await post(portOf(plants), { id: 1, name: 'Fern' })).status, 200)
  const served = (await call(portOf(admin ?? assert.fail()), { path: '/metrics' })).text
  const [own, all] = [metrics(), served].map((text) => [...readMetrics(text).types.keys()])
  const ofProcess = (name: string): boolean => /^(process|nodejs)_/.test(name)
  assert.ok(all?.some(ofProcess))
  const others = all?.filter((name) => !ofProcess(name))
  assert.deepEqual(own, others)
  assert.match(metrics(), /^plant_store_ready{check="service"} 1$/m)
  await service.close()
  assert.match(metrics(), /^plant_store_ready{check="service"} 0$/m)
})

test('embedding: an error that a start throws has the name of its class, in its stack too', () => {
  const all = { ConfigError, DirectoryLocked, ListenFailed, StoreCorrupt, StoreUnavailable }
  for (const [name, each] of Object.entries(all)) assert.equal(each.prototype.name, name)
  assert.match(new ConfigError(['x']).stack ?? '', /^ConfigError: x\n/)
})
