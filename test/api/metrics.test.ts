import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { generateKeyPairSync } from 'node:crypto'
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { METHODS } from 'node:http'
import { join } from 'node:path'
import { test } from 'node:test'
import { CATALOGUE } from '../../dist/errors.js'
import { call, type CallOptions, post } from '../support/http.ts'
import { PEM, readPair } from '../support/keys.ts'
import { scrape, type Scrape } from '../support/metrics.ts'
import { VERSION } from '../support/release.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { changeTimers, stopClock, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { converse, firstAnswer, head, postBytes, Wire } from '../support/wire.ts'

const DURATION = 'http_server_request_duration_seconds'
const SERIES = /http_request_method="(\w+)",http_route="([^"]*)",\w+="(\d+)"}$/

/** "METHOD ROUTE STATUS" of every series, with its count. */
function requests({ all }: Scrape): Readonly<Record<string, number>> {
  return Object.fromEntries(
    all(`${DURATION}_count`).map(([sample, count]) => {
      const [, method, route, status] = SERIES.exec(sample) ?? assert.fail(sample)
      return [`${method} ${route} ${status}`, count]
    }),
  )
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, value) => total + value, 0)
}

/** How often each error value was answered. */
function errors({ all }: Scrape): Readonly<Record<string, number>> {
  const found = all('plant_store_errors_total').map(
    ([sample, count]) => [Number(/"(\d+)"/.exec(sample)?.[1]), count] as const,
  )
  const values: number[] = Object.values(CATALOGUE).map(([error]) => error)
  const shown = found.map(([error]) => error)
  assert.deepEqual(shown, values, 'all are there from the start')
  return Object.fromEntries(found.filter(([, count]) => count > 0))
}

test('metrics: every answered request counts once and has one log line', async (t) => {
  const { port, adminPort, logLines } = await startService(t, { maxBodyBytes: 100 })
  assert.deepEqual(requests(await scrape(adminPort)), {})
  const names = ['Fern', 'Fern', 'Moss', 'x'.repeat(200)]
  for (const [at, id] of [1, 2, 2, 3].entries()) await post(port, { id, name: names[at] })
  const others: readonly CallOptions[] = [
    ...[{}, {}, {}, { token: undefined }, { path: '/trees' }, { path: '/plants?limit=x' }],
    ...['HEAD', 'OPTIONS', 'PUT', 'PROPFIND'].map((method) => ({ method })),
  ]
  for (const options of others) await call(port, options)
  const get = head('GET', '/plants')
  for (const bytes of [
    'GARBAGE\r\n\r\n',
    head('CONNECT', 'plants.test:443', { lines: ['Request-Id: connected'] }),
    head('GET', '/plants', { lines: [`X: ${'x'.repeat(20_000)}`] }),
    `${get}${get}GARBAGE\r\n\r\n`,
    // Pipelined: two requests wait for the first one, and the last of them is cut off in its body.
    postBytes({ id: 4, name: 'a' }) + get + postBytes({ id: 5, name: 'a' }).slice(0, -1),
  ])
    await converse(port, bytes)
  const expected = {
    ...{ 'GET /plants 200': 6, 'GET /plants 400': 1, 'GET /plants 401': 1, 'GET  404': 1 },
    ...{ 'POST /plants 200': 3, 'POST /plants 400': 1, 'POST /plants 409': 1 },
    ...{ 'POST /plants 413': 1, 'HEAD /plants 200': 1, 'OPTIONS /plants 204': 1 },
    ...{ 'PUT /plants 405': 1, 'CONNECT  501': 1, '_OTHER /plants 501': 1 },
    ...{ '_OTHER  400': 2, '_OTHER  431': 1 },
  }
  const found = await scrape(adminPort)
  assert.deepEqual(requests(found), expected)
  assert.deepEqual(errors(found), {
    ...{ 40001: 3, 40011: 1, 40101: 1, 40401: 1, 40501: 1, 40901: 1, 41301: 1, 43101: 1 },
    50101: 2,
  })

  // The service's own lines, whose fields are its documented ones.
  const lines = logLines
    .map((line) => JSON.parse(line) as Record<string, unknown>)
    .filter(({ message }) => message === 'request')
  const logged: Record<string, number> = {}
  for (const { method = '_OTHER', route = '', status } of lines) {
    const label = method === 'PROPFIND' ? '_OTHER' : String(method)
    const key = `${label} ${String(route)} ${String(status)}`
    logged[key] = (logged[key] ?? 0) + 1
  }
  assert.deepEqual(logged, expected)
  assert.equal(lines.find(({ method }) => method === 'CONNECT')?.['requestId'], 'connected')
  const seconds = sum(found.all(`${DURATION}_sum`).map(([, value]) => value))
  // The log rounds to microseconds.
  const loggedSeconds = sum(lines.map(({ ms }) => Number(ms))) / 1000
  assert.ok(Math.abs(seconds - loggedSeconds) <= lines.length * 1e-6)
  for (const [sample, count] of found.all(`${DURATION}_count`)) {
    const all = sample.replace('_count{', '_bucket{').replace('}', ',le="+Inf"}')
    assert.equal(found.value(all), count)
  }
  // Those of OpenTelemetry, and finer ones.
  const bounds = found.all(`${DURATION}_bucket`).map(([sample]) => /le="(.+)"/.exec(sample)?.[1])
  const few =
    '0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.075 0.1 0.25 0.5 0.75 1 2.5 5 7.5'
  assert.equal([...new Set(bounds)].join(' '), `${few} 10 +Inf`)
})

test('metrics: clients cannot add series, and no label has text of theirs', async (t) => {
  const { port, adminPort } = await startService(t)
  for (const method of METHODS)
    await firstAnswer(port, head(method, '/plants'), method === 'HEAD' ? [0] : [])
  const usual = Object.keys(requests(await scrape(adminPort)))
  assert.deepEqual(
    [...new Set(usual.map((key) => key.split(' ')[0]))].sort(),
    'CONNECT DELETE GET HEAD OPTIONS PATCH POST PUT TRACE _OTHER'.split(' '),
  )
  for (let i = 0; i < 30; i++) {
    const bearer = { token: token(`odd-owner-${i}`) }
    const lines = [`Request-Id: odd-id-${i}`, `User-Agent: odd-${i}`]
    await converse(port, head('GET', `/odd"path\\${i}`, { ...bearer, lines }))
    await converse(port, head('GET', '/plants', bearer))
    await converse(port, `ODD${i} /odd HTTP/1.1\r\nHost: a\r\n\r\n`)
  }
  const found = await scrape(adminPort)
  const added = Object.keys(requests(found)).filter((key) => !usual.includes(key))
  assert.deepEqual(added.sort(), ['GET  404', '_OTHER  400'])
  assert.doesNotMatch(found.text, /odd|alice/i)
  const names = [...found.text.matchAll(/[{,](\w+)="/g)].map(([, name]) => name)
  assert.deepEqual([...new Set(names)].sort(), [
    ...['check', 'error', 'http_request_method', 'http_response_status_code', 'http_route'],
    ...['le', 'node', 'result', 'version'],
  ])
})

test('metrics: plants, bytes and syncs match the store', async (t) => {
  const { port, adminPort, dataDirectory } = await startService(t)
  for (const id of [0, 1, 2, 3, 4, 100, 0]) await post(port, { id, name: 'Fern' })
  const { value } = await scrape(adminPort)
  assert.equal(value('plant_store_plants'), 6)
  assert.equal(value('plant_store_sync_seconds_count'), 6, 'a repeated create needs no sync')
  assert.ok(value('plant_store_sync_seconds_sum') > 0)
  const journals = readdirSync(dataDirectory).filter((name) => name.startsWith('journal-'))
  const written = journals.map((name) =>
    readFileSync(join(dataDirectory, name), 'latin1').replace(/\0+$/, ''),
  )
  assert.equal(value('plant_store_journal_bytes'), written.join('').length, 'without padding')
  const bytes = value('plant_store_data_bytes')
  assert.ok(bytes > 0 && bytes % 4096 === 0)
  for (const result of ['success', 'failure'])
    assert.equal(value(`plant_store_compactions_total{result="${result}"}`), 0)
})

test('metrics: verified, refused and cached tokens are counted separately', async (t) => {
  const { port, adminPort } = await startService(t)
  const alice = token('alice')
  const bad = [`${alice}x`, token('alice', { exp: 1 }), 'abc']
  for (const each of [alice, alice, alice, alice, token('bob'), ...bad, undefined])
    await call(port, { token: each })
  const { value } = await scrape(adminPort)
  assert.equal(value('plant_store_tokens_verified_total{result="accepted"}'), 2)
  assert.equal(value('plant_store_tokens_verified_total{result="refused"}'), 3)
  assert.equal(value('plant_store_token_cache_hits_total'), 3)
})

function keySet(): string {
  const { publicKey } = readPair(generateKeyPairSync('ed25519', PEM))
  return JSON.stringify({ keys: [publicKey.export({ format: 'jwk' })] })
}

/** Whether keys are there and whether they are stale, each 0 or 1. */
async function keysOf(adminPort: number): Promise<readonly number[]> {
  const { value } = await scrape(adminPort)
  return [value('plant_store_ready{check="keys"}'), value('plant_store_keys_stale')]
}

function untilKeys(adminPort: number, ready: number, stale: number): Promise<void> {
  const isSo = async () => (await keysOf(adminPort)).join() === `${ready},${stale}`
  return until(`keys are ready: ${ready}, stale: ${stale}`, isSo)
}

test('metrics: stale keys of a file show, and the service is ready', async (t) => {
  // Between two readings of the file.
  changeTimers(t, 2000, 10)
  const path = join(await temporaryDirectory(), 'jwks.json')
  const set = keySet()
  writeFileSync(path, set)
  const { adminPort } = await startService(t, { jwksFile: path })
  assert.deepEqual(await keysOf(adminPort), [1, 0])
  rmSync(path)
  await untilKeys(adminPort, 1, 1)
  writeFileSync(path, set)
  await untilKeys(adminPort, 1, 0)
})

test('metrics: a fetched key set has its age, and is stale after a failed fetch', async (t) => {
  const good = keySet()
  let set = good
  const url = `${await serving(t, (_req, res) => res.end(set))}/keys`
  const { port, adminPort } = await startService(t, { jwksUrl: url })
  await untilKeys(adminPort, 1, 0)
  const clock = stopClock(t)
  const age = async () => (await scrape(adminPort)).value('plant_store_key_set_age_seconds')
  const first = await age()
  assert.ok(first >= 0 && first < 60, String(first))
  // A key that is not known causes a fetch, if some time has passed since the last one.
  const unknown = { token: token('alice', {}, { alg: 'EdDSA', kid: 'a' }) }
  for (const [next, stale] of [
    ['{"keys":[]}', 1],
    [good, 0],
  ] as const) {
    clock.pass(30_000)
    assert.ok((await age()) >= first + 29)
    set = next
    assert.equal((await call(port, unknown)).status, 401)
    assert.deepEqual(await keysOf(adminPort), [1, stale])
  }
  assert.equal(await age(), 0)

  set = '{"keys":[]}'
  const bad = await startService(t, { jwksUrl: url })
  await untilKeys(bad.adminPort, 0, 1)
  assert.deepEqual((await scrape(bad.adminPort)).all('plant_store_key_set_age_seconds'), [])
  const secret = await scrape((await startService(t)).adminPort)
  assert.deepEqual(secret.all('plant_store_key'), [], 'a secret is not fetched')
})

test('metrics: what is open, held and refused for want of room shows', async (t) => {
  const MIB = 2 ** 20
  const { port, adminPort } = await startService(t, { maxBodyBytes: 16 * MIB, maxConnections: 4 })
  const lines = ['Content-Type: application/json', `Content-Length: ${16 * MIB}`]
  const names = ['plant_store_connections', 'http_server_active_requests']
  const held = async () => {
    const { value } = await scrape(adminPort)
    return [...names, 'plant_store_held_body_bytes'].map(value).join()
  }
  const wires: Wire[] = []
  // Two bodies of one owner, which is the most, and one of another owner. In this order: with the
  // other's body first, the second one would have no room.
  for (const owner of ['alice', 'alice', 'bob']) {
    const bytes = head('POST', '/plants', { token: token(owner), lines })
    const count = wires.push((await Wire.to(port)).write(bytes))
    const expected = `${count},${count},${count * 16 * MIB}`
    await until('the body is held', async () => (await held()) === expected)
  }
  assert.equal((await post(port, { id: 1, name: 'a' })).status, 503)
  assert.deepEqual(errors(await scrape(adminPort)), { 50303: 1 })
  // One more connection has room, and the next one has none.
  await until('that of the refusal is closed', async () => (await held()).startsWith('3,'))
  const [idle, refused] = [await Wire.to(port), await Wire.to(port)]
  assert.deepEqual(await refused.allAnswers(), [])
  assert.equal((await scrape(adminPort)).value('plant_store_connections_refused_total'), 1)
  for (const wire of [...wires, idle, refused]) wire.destroy()
  await until('nothing is held', async () => (await held()) === '0,0,0')
  const expected = { 'POST /plants 503': 1, 'POST /plants 400': 3 }
  assert.deepEqual(requests(await scrape(adminPort)), expected)
})

test('metrics: the process has CPU, memory and event loop delay', async (t) => {
  const { adminPort } = await startService(t)
  let { value } = await scrape(adminPort)
  const seconds = value('process_start_time_seconds')
  assert.ok(Math.abs(seconds - (Date.now() / 1000 - process.uptime())) < 5)
  assert.ok(value('process_cpu_seconds_total') > 0.05)
  assert.ok(value('process_resident_memory_bytes') > 10 * 2 ** 20)
  const labels = `version="${VERSION}",node="${process.version}"`
  assert.equal(value(`plant_store_build_info{${labels}}`), 1)
  // Blocks the event loop, so that its timer is late.
  const end = performance.now() + 350
  while (performance.now() < end);
  do ({ value } = await scrape(adminPort))
  while (value('nodejs_eventloop_delay_seconds_count') === 0)
  assert.ok(value('nodejs_eventloop_delay_seconds_sum') >= 0.2)
})

test('metrics: without an admin listener, no timer measures the event loop', async (t) => {
  const intervals = t.mock.method(globalThis, 'setInterval')
  const off = await startService(t, { adminListen: 'off' })
  assert.equal(off.adminPort, 0)
  assert.equal((await call(off.port)).status, 200)
  const without = intervals.mock.callCount()
  const { close } = await startService(t)
  assert.equal(intervals.mock.callCount(), without + 1)
  const cleared = t.mock.method(globalThis, 'clearInterval')
  await close()
  const timer = intervals.mock.calls.at(-1)?.result
  const isCleared = () => cleared.mock.calls.some((each) => each.arguments[0] === timer)
  await until('the timer is stopped', isCleared)
})

test('metrics: promtool finds no problem', async (t) => {
  // Keys from a URL, so that every metric exists.
  const { port, adminPort } = await startService(t, { jwksUrl: 'http://127.0.0.1:1/keys' })
  for (const path of ['/plants', '/trees']) await call(port, { path })
  const { text: input } = await scrape(adminPort)
  const checked = spawnSync('promtool', ['check', 'metrics'], { input, encoding: 'utf8' })
  if (checked.error)
    return t.skip('SKIPPED: promtool is missing (Debian: apt-get install prometheus)')
  assert.deepEqual([checked.status, checked.stdout, checked.stderr], [0, '', ''])
})
