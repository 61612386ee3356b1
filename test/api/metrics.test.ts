import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { generateKeyPairSync } from 'node:crypto'
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { METHODS } from 'node:http'
import { join } from 'node:path'
import { test } from 'node:test'
import { conditions, HttpError } from '../../dist/errors.js'
import { startBare } from '../support/bare.ts'
import { failureCases } from '../support/conditions.ts'
import { call, post } from '../support/http.ts'
import { PEM, readPair } from '../support/keys.ts'
import { scrape, type Scrape } from '../support/metrics.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { stopClock, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { answersToHalf, converse, firstAnswer, head, postBytes, Wire } from '../support/wire.ts'

const DURATION = 'http_server_request_duration_seconds'
const SERIES = new RegExp(
  '{http_request_method="(\\w+)",http_route="([^"]*)",' + 'http_response_status_code="(\\d+)"}$',
)

/** "METHOD ROUTE STATUS" of every series, with its count. */
function requests({ all }: Scrape): Record<string, number> {
  return Object.fromEntries(
    all(`${DURATION}_count`).map(([sample, count]) => {
      const [, method, route, status] = SERIES.exec(sample) ?? assert.fail(sample)
      return [`${method} ${route} ${status}`, count]
    }),
  )
}

function sum(entries: readonly (readonly [string, number])[]): number {
  return entries.reduce((total, [, value]) => total + value, 0)
}

/** How often each error value was answered. */
function errors({ all }: Scrape): Record<string, number> {
  const found = all('plant_store_errors_total').map(
    ([sample, count]) => [/"(\d+)"/.exec(sample)?.[1] ?? '', count] as const,
  )
  assert.deepEqual(
    found.map(([error]) => Number(error)),
    [...conditions.values()].map(([error]) => error),
    'every value of the catalogue is there from the start',
  )
  return Object.fromEntries(found.filter(([, count]) => count > 0))
}

test('metrics: every answered request counts once and has one log line', async (t) => {
  const { port, adminPort, logLines } = await startService(t, { maxBodyBytes: 100 })
  assert.deepEqual(requests(await scrape(adminPort)), {})
  for (let i = 0; i < 3; i++) await call(port)
  for (const id of [1, 2]) await post(port, { id, name: 'Fern' })
  await post(port, { id: 2, name: 'Moss' })
  await post(port, { id: 3, name: 'x'.repeat(200) })
  await call(port, { token: undefined })
  await call(port, { method: 'HEAD' })
  await call(port, { method: 'OPTIONS' })
  await call(port, { method: 'PUT' })
  await call(port, { method: 'PROPFIND' })
  await call(port, { path: '/trees' })
  await call(port, { path: '/plants?limit=x' })
  await converse(port, 'GARBAGE\r\n\r\n')
  await converse(port, head('CONNECT', 'plants.test:443', { lines: ['Request-Id: connected'] }))
  await converse(port, head('GET', '/plants', { lines: [`X: ${'x'.repeat(20_000)}`] }))
  await converse(port, `${head('GET', '/plants')}${head('GET', '/plants')}GARBAGE\r\n\r\n`)
  // Pipelined: two requests wait for the first one, and the last of them is cut off in its body.
  await converse(
    port,
    postBytes({ id: 4, name: 'a' }) +
      head('GET', '/plants') +
      postBytes({ id: 5, name: 'a' }).slice(0, -1),
  )
  const expected = {
    'GET /plants 200': 6,
    'POST /plants 200': 3,
    'POST /plants 409': 1,
    'POST /plants 413': 1,
    'GET /plants 401': 1,
    'HEAD /plants 200': 1,
    'OPTIONS /plants 204': 1,
    'PUT /plants 405': 1,
    '_OTHER /plants 501': 1,
    'GET  404': 1,
    'GET /plants 400': 1,
    '_OTHER  400': 2,
    'CONNECT  501': 1,
    '_OTHER  431': 1,
    'POST /plants 400': 1,
  }
  const found = await scrape(adminPort)
  assert.deepEqual(requests(found), expected)
  assert.deepEqual(errors(found), {
    40001: 3,
    40011: 1,
    40101: 1,
    40401: 1,
    40501: 1,
    40901: 1,
    41301: 1,
    43101: 1,
    50101: 2,
  })

  // The service's own lines, whose fields are its documented ones.
  const lines = logLines
    .map((line) => JSON.parse(line) as Record<string, unknown>)
    .filter(({ message }) => message === 'request')
  const logged: Record<string, number> = {}
  for (const { method, route, status } of lines) {
    const label = method === undefined || method === 'PROPFIND' ? '_OTHER' : String(method)
    const key = `${label} ${String(route ?? '')} ${String(status)}`
    logged[key] = (logged[key] ?? 0) + 1
  }
  assert.deepEqual(logged, expected)
  assert.equal(lines.find(({ method }) => method === 'CONNECT')?.['requestId'], 'connected')
  assert.equal(sum(found.all(`${DURATION}_count`)), lines.length)
  const loggedSeconds = lines.reduce((total, { ms }) => total + Number(ms) / 1000, 0)
  // The log rounds to microseconds.
  assert.ok(Math.abs(sum(found.all(`${DURATION}_sum`)) - loggedSeconds) <= lines.length * 1e-6)
  for (const [sample, count] of found.all(`${DURATION}_count`)) {
    assert.equal(
      found.value(sample.replace('_count{', '_bucket{').replace('}', ',le="+Inf"}')),
      count,
    )
  }
})

test('metrics: each failure counts by its error value', async (t) => {
  const { adminPort, cases, own } = await failureCases(t)
  for (const condition of own) await cases[condition].ask(cases[condition].method ?? 'get')
  const expected = own.map((condition) => [new HttpError(condition).error, 1])
  assert.deepEqual(errors(await scrape(adminPort)), Object.fromEntries(expected))
})

test('metrics: durations have the buckets of OpenTelemetry, and finer ones', async (t) => {
  const { port, adminPort } = await startService(t)
  await call(port)
  const bounds = (await scrape(adminPort))
    .all(`${DURATION}_bucket`)
    .map(([sample]) => Number(/le="(.+)"/.exec(sample)?.[1]?.replace('+Inf', 'Infinity')))
  const fine = [0.00025, 0.0005, 0.001, 0.0025]
  const recommended = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
  assert.deepEqual(bounds, [...fine, ...recommended, Infinity])
})

test('metrics: an incomplete request counts as 408', async (t) => {
  const { port, answered } = await startBare(t, { timeouts: { headersMs: 100, requestMs: 100 } })
  const [answer] = await answersToHalf(
    port,
    (wire) => void wire.write('GET /plants HTTP/1.1\r\nHost: a\r\n'),
  )
  assert.equal(answer?.status, 408)
  assert.deepEqual(answered, ['undefined 408'])
})

test('metrics: clients cannot add series, and no label has text of theirs', async (t) => {
  const { port, adminPort } = await startService(t)
  for (const method of METHODS)
    await firstAnswer(port, head(method, '/plants'), method === 'HEAD' ? [0] : [])
  const usual = requests(await scrape(adminPort))
  assert.deepEqual(
    Object.keys(usual)
      .map((key) => key.split(' ')[0])
      .sort()
      .filter((method, at, all) => method !== all[at - 1]),
    ['CONNECT', 'DELETE', 'GET', 'HEAD', 'OPTIONS', 'PATCH', 'POST', 'PUT', 'TRACE', '_OTHER'],
  )
  for (let i = 0; i < 30; i++) {
    await converse(
      port,
      head('GET', `/odd"path\\${i}`, {
        token: token(`odd-owner-${i}`),
        lines: [`Request-Id: odd-id-${i}`, `User-Agent: odd-${i}`],
      }),
    )
    await converse(port, head('GET', '/plants', { token: token(`odd-owner-${i}`) }))
    await converse(port, `ODD${i} /odd HTTP/1.1\r\nHost: a\r\n\r\n`)
  }
  const found = await scrape(adminPort)
  assert.deepEqual(
    Object.keys(requests(found))
      .filter((key) => !(key in usual))
      .sort(),
    ['GET  404', '_OTHER  400'],
  )
  assert.doesNotMatch(found.text, /odd/i)
  assert.doesNotMatch(found.text, /alice/)
  const names = [...found.samples.keys()].flatMap((sample) =>
    [...sample.matchAll(/[{,](\w+)="/g)].map(([, name]) => name),
  )
  assert.deepEqual([...new Set(names)].sort(), [
    'check',
    'error',
    'http_request_method',
    'http_response_status_code',
    'http_route',
    'le',
    'node',
    'result',
    'version',
  ])
})

test('metrics: plants, bytes, batches and syncs match the store after a restart too', async (t) => {
  const first = await startService(t)
  for (let id = 0; id < 5; id++) await post(first.port, { id, name: 'Fern' })
  await post(first.port, { id: 0, name: 'Fern' })
  const wire = await Wire.to(first.port)
  await wire.write(postBytes({ id: 100, name: 'a' })).answers(1)
  wire.destroy()
  const found = await scrape(first.adminPort)
  assert.equal(found.value('plant_store_plants'), 6)
  assert.equal(found.value('plant_store_sync_seconds_count'), 6, 'a repeated create needs no sync')
  assert.equal(found.value('plant_store_group_plants_count'), 6)
  assert.equal(found.value('plant_store_group_plants_sum'), 6)
  assert.ok(found.value('plant_store_sync_seconds_sum') > 0)
  const journals = readdirSync(first.dataDirectory).filter((name) => name.startsWith('journal-'))
  const lines = journals.map((name) =>
    readFileSync(join(first.dataDirectory, name), 'utf8').replace(/\0+$/, ''),
  )
  assert.equal(
    found.value('plant_store_journal_bytes'),
    lines.join('').length,
    'padding is not counted',
  )
  assert.ok(
    found.value('plant_store_data_bytes') > 0 && found.value('plant_store_data_bytes') % 4096 === 0,
  )
  assert.deepEqual(found.all('plant_store_compactions_total'), [
    ['plant_store_compactions_total{result="success"}', 0],
    ['plant_store_compactions_total{result="failure"}', 0],
  ])
  await first.close()

  const second = await startService(t, { data: first.dataDirectory })
  await post(second.port, { id: 7, name: 'Fern' })
  const again = await scrape(second.adminPort)
  assert.equal(again.value('plant_store_plants'), 7)
})

test('metrics: verified, refused and cached tokens are counted separately', async (t) => {
  const { port, adminPort } = await startService(t)
  const alice = token('alice')
  for (let i = 0; i < 4; i++) await call(port, { token: alice })
  await call(port, { token: token('bob') })
  for (const bad of [`${alice}x`, token('alice', { exp: 1 }), 'abc'])
    await call(port, { token: bad })
  await call(port, { token: undefined })
  const { value } = await scrape(adminPort)
  assert.equal(value('plant_store_tokens_verified_total{result="accepted"}'), 2)
  assert.equal(value('plant_store_tokens_verified_total{result="refused"}'), 3)
  assert.equal(value('plant_store_tokens_remembered_total'), 3)
})

test('metrics: a fetched key set has its age, and is stale after a failed fetch', async (t) => {
  const set = { keys: [] as unknown[] }
  const url = `${await serving(t, (_req, res) => res.end(JSON.stringify(set)))}/keys`
  set.keys = [readPair(generateKeyPairSync('ed25519', PEM)).publicKey.export({ format: 'jwk' })]
  const good = await startService(t, { keys: { kind: 'url', url } })
  let found = await scrape(good.adminPort)
  while (found.value('plant_store_ready{check="keys"}') === 0) found = await scrape(good.adminPort)
  assert.equal(found.value('plant_store_keys_stale'), 0)
  const age = found.value('plant_store_key_set_age_seconds')
  assert.ok(age >= 0 && age < 60, String(age))
  assert.ok((await scrape(good.adminPort)).value('plant_store_key_set_age_seconds') > age)

  set.keys = []
  const bad = await startService(t, { keys: { kind: 'url', url } })
  do found = await scrape(bad.adminPort)
  while (found.value('plant_store_keys_stale') === 0)
  assert.deepEqual(found.all('plant_store_key_set_age_seconds'), [])
  assert.equal(found.value('plant_store_ready{check="keys"}'), 0)
  const secret = await scrape((await startService(t)).adminPort)
  assert.deepEqual(secret.all('plant_store_key'), [], 'a secret is not fetched')
})

test('metrics: stale keys show, from a file and a URL; the service is ready', async (t) => {
  const jwk = readPair(generateKeyPairSync('ed25519', PEM)).publicKey.export({ format: 'jwk' })
  const good = JSON.stringify({ keys: [jwk] })
  const path = join(await temporaryDirectory(), 'jwks.json')
  writeFileSync(path, good)
  const { adminPort } = await startService(t, { keys: { kind: 'file', path } })
  const stale = async (port: number): Promise<number> => {
    const { value } = await scrape(port)
    assert.equal(value('plant_store_ready{check="keys"}'), 1)
    return value('plant_store_keys_stale')
  }
  assert.equal(await stale(adminPort), 0)
  rmSync(path)
  await until('they are stale', async () => (await stale(adminPort)) === 1)
  writeFileSync(path, good)
  await until('they are not', async () => (await stale(adminPort)) === 0)

  let set = good
  const url = `${await serving(t, (_req, res) => res.end(set))}/keys`
  const remote = await startService(t, { keys: { kind: 'url', url } })
  await until('they are fetched', async () => {
    const { value } = await scrape(remote.adminPort)
    return value('plant_store_ready{check="keys"}') === 1
  })
  assert.equal(await stale(remote.adminPort), 0)
  set = '{"keys":[]}'
  // A key that is not known causes a fetch, if some time has passed since the last one.
  const clock = stopClock(t)
  clock.pass(30_000)
  const unknown = token('alice', {}, { alg: 'EdDSA', kid: 'a' })
  assert.equal((await call(remote.port, { token: unknown })).status, 401)
  assert.equal(await stale(remote.adminPort), 1)
  set = good
  clock.pass(30_000)
  assert.equal((await call(remote.port, { token: unknown })).status, 401)
  assert.equal(await stale(remote.adminPort), 0)
})

test('metrics: refusals under load count by error value, with the held bytes', async (t) => {
  const limited = await startService(t, { rateLimit: 1 })
  // All of them in one second.
  const clock = stopClock(t)
  for (let i = 0; i < 3; i++) await call(limited.port)
  clock.restore()
  assert.deepEqual(errors(await scrape(limited.adminPort)), { 42901: 2 })

  const MIB = 2 ** 20
  const { port, adminPort } = await startService(t, { maxBodyBytes: 16 * MIB })
  const wires = await Promise.all(Array.from({ length: 3 }, () => Wire.to(port)))
  // Two bodies of one owner, which is the most, and one of another owner.
  const tokens = ['alice', 'alice', 'bob'].map((sub) => token(sub))
  for (const [i, wire] of wires.entries())
    wire.write(
      head('POST', '/plants', {
        token: tokens[i],
        lines: ['Content-Type: application/json', `Content-Length: ${16 * MIB}`],
      }),
    )
  let found = await scrape(adminPort)
  while (
    found.value('http_server_active_requests') < 3 ||
    found.value('plant_store_held_body_bytes') < 48 * MIB
  )
    found = await scrape(adminPort)
  assert.equal(found.value('http_server_active_requests'), 3)
  assert.equal(found.value('plant_store_held_body_bytes'), 48 * MIB)
  assert.equal(found.value('plant_store_connections'), 3)
  assert.equal((await post(port, { id: 1, name: 'a' })).status, 503)
  assert.deepEqual(errors(await scrape(adminPort)), { 50303: 1 })
  for (const wire of wires) wire.destroy()
  await until('nothing is held, and each incomplete body was refused', async () => {
    found = await scrape(adminPort)
    return (
      [
        'plant_store_connections',
        'http_server_active_requests',
        'plant_store_held_body_bytes',
      ].every((name) => found.value(name) === 0) && requests(found)['POST /plants 400'] === 3
    )
  })
  assert.deepEqual(requests(found), { 'POST /plants 503': 1, 'POST /plants 400': 3 })
})

test('metrics: open connections and refused ones are counted', async (t) => {
  const { port, adminPort } = await startService(t, { maxConnections: 1 })
  const kept = await Wire.to(port)
  await kept.write(head('GET', '/plants')).answers(1)
  const refused = await Wire.to(port)
  assert.deepEqual(await refused.allAnswers(), [])
  const { value } = await scrape(adminPort)
  assert.deepEqual(
    [value('plant_store_connections'), value('plant_store_connections_refused_total')],
    [1, 1],
  )
  for (const wire of [kept, refused]) wire.destroy()
})

test('metrics: the process has CPU, memory and event loop delay', async (t) => {
  const { adminPort } = await startService(t)
  let found = await scrape(adminPort)
  const seconds = found.value('process_start_time_seconds')
  assert.ok(Math.abs(seconds - (Date.now() / 1000 - process.uptime())) < 5)
  assert.ok(found.value('process_cpu_seconds_total') > 0.05)
  assert.ok(found.value('process_resident_memory_bytes') > 10 * 2 ** 20)
  assert.equal(found.value(`plant_store_build_info{version="2.0.0",node="${process.version}"}`), 1)
  // Blocks the event loop, so that its timer is late.
  const until = performance.now() + 350
  while (performance.now() < until);
  do found = await scrape(adminPort)
  while (found.value('nodejs_eventloop_delay_seconds_count') === 0)
  assert.ok(found.value('nodejs_eventloop_delay_seconds_sum') >= 0.2)
})

test('metrics: without an admin listener, no timer measures the event loop', async (t) => {
  const intervals = t.mock.method(globalThis, 'setInterval')
  await startService(t, { adminListen: 'off' })
  const without = intervals.mock.callCount()
  const { close } = await startService(t)
  assert.equal(intervals.mock.callCount(), without + 1)
  const cleared = t.mock.method(globalThis, 'clearInterval')
  await close()
  assert.ok(
    cleared.mock.calls.some(
      ({ arguments: [timer] }) => timer === intervals.mock.calls.at(-1)?.result,
    ),
    'close stops the timer',
  )
})

test('metrics: promtool finds no problem', async (t) => {
  // Keys from a URL, so that every metric exists.
  const { port, adminPort } = await startService(t, {
    keys: { kind: 'url', url: 'http://127.0.0.1:1/keys' },
  })
  await call(port)
  await call(port, { path: '/trees' })
  const { text } = await scrape(adminPort)
  const { status, stdout, stderr, error } = spawnSync('promtool', ['check', 'metrics'], {
    input: text,
    encoding: 'utf8',
  })
  if (error) return t.skip('SKIPPED: promtool is missing (Debian: apt-get install prometheus)')
  assert.deepEqual([status, stdout, stderr], [0, '', ''])
})
