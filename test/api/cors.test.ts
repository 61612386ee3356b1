import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, type CallOptions, post, type Reply } from '../support/http.ts'
import { problems, startService } from '../support/service.ts'
import { AUDIENCE, ISSUER, SECRET } from '../support/tokens.ts'
import { readConfig } from '../../dist/settings/read.js'

const APP = 'https://app.example'
const OTHER = 'http://localhost:5173'
const EXPOSED = 'Link, Request-Id, Retry-After, WWW-Authenticate'

/** The headers of a response that concern other origins. */
function corsOf({ headers }: Reply): Readonly<Record<string, unknown>> {
  const found = Object.entries(headers).filter(([name]) => /^(access-control-|vary)/.test(name))
  return Object.fromEntries(found)
}

function allowed(origin: string): Readonly<Record<string, unknown>> {
  return {
    'access-control-allow-origin': origin,
    'access-control-expose-headers': EXPOSED,
    vary: 'Origin',
  }
}

const from = (origin: string | readonly string[], options: CallOptions = {}): CallOptions => ({
  ...options,
  headers: { origin, ...options.headers },
})

test('cors: every response to a listed origin says so, refusals too', async (t) => {
  const { port } = await startService(t, { corsOrigins: [APP, OTHER], maxBodyBytes: 1000 })
  const made = await post(port, { id: 1, name: 'Fern' }, from(APP))
  assert.deepEqual([made.status, corsOf(made)], [200, allowed(APP)])
  await post(port, { id: 2, name: 'Moss' })
  const closing = { headers: { connection: 'close' } }
  const requests: readonly (readonly [status: number, options: CallOptions])[] = [
    [200, {}],
    [200, closing],
    [200, { path: '/plants?limit=1' }],
    [200, { method: 'HEAD' }],
    [400, { headers: { 'transfer-encoding': 'gzip' } }],
    [400, { path: '/plants?limit=x' }],
    [401, { token: undefined }],
    [401, { token: 'a.b.c' }],
    [404, { path: '/trees' }],
    [405, { method: 'DELETE' }],
    [415, { method: 'POST', body: '{}' }],
    [501, { method: 'PROPFIND' }],
  ]
  for (const [status, options] of requests) {
    const reply = await call(port, from(OTHER, options))
    assert.deepEqual([reply.status, corsOf(reply)], [status, allowed(OTHER)], reply.text)
  }
  const long = await post(port, { id: 3, name: 'x'.repeat(2000) }, from(APP))
  assert.deepEqual([long.status, corsOf(long)], [413, allowed(APP)])
})

test('cors: a cached page keeps nothing of the origin that asked first', async (t) => {
  const { port } = await startService(t, { corsOrigins: [APP, OTHER] })
  for (const origin of [APP, OTHER, 'https://evil.example', APP]) {
    const expected = origin.includes('evil') ? {} : allowed(origin)
    assert.deepEqual(corsOf(await call(port, from(origin))), expected)
  }
  assert.deepEqual(corsOf(await call(port)), {})
})

test('cors: an unknown, a repeated or a missing origin gets nothing', async (t) => {
  const { port } = await startService(t, { corsOrigins: [APP] })
  const unknown = ['https://evil.example', 'null', '', APP.toUpperCase(), `${APP}:443`, `${APP}/`]
  for (const origin of unknown)
    for (const options of [{}, { token: undefined }, { method: 'OPTIONS' }])
      assert.deepEqual(corsOf(await call(port, from(origin, options))), {}, origin)
  assert.deepEqual(corsOf(await call(port, from([APP, APP]))), {})
  assert.deepEqual(corsOf(await call(port)), {})
})

const PREFLIGHT = {
  'access-control-allow-methods': 'GET, HEAD, POST, OPTIONS',
  'access-control-allow-headers': 'Authorization, Content-Type, Request-Id, traceparent',
  'access-control-max-age': '600',
}

test('cors: a preflight is answered before any token', async (t) => {
  const { port } = await startService(t, { corsOrigins: [APP] })
  const headers = {
    'access-control-request-method': 'POST',
    'access-control-request-headers': 'authorization,content-type',
  }
  const reply = await call(port, from(APP, { method: 'OPTIONS', token: undefined, headers }))
  assert.equal(reply.status, 204)
  assert.deepEqual(corsOf(reply), { ...allowed(APP), ...PREFLIGHT })
  assert.equal(reply.headers['allow'], 'GET, HEAD, POST, OPTIONS')
})

test('cors: with * every origin is allowed, null too', async (t) => {
  const { port } = await startService(t, { corsOrigins: ['*'] })
  for (const origin of [APP, 'null', 'capacitor://localhost']) {
    assert.deepEqual(corsOf(await call(port, from(origin))), allowed('*'))
    const preflight = await call(port, from(origin, { method: 'OPTIONS', token: undefined }))
    assert.deepEqual(corsOf(preflight), { ...allowed('*'), ...PREFLIGHT })
  }
  assert.deepEqual(corsOf(await call(port)), {})
})

test('cors: if it is not set, no response has such a header', async (t) => {
  const { port } = await startService(t)
  for (const options of [{}, { token: undefined }, { method: 'OPTIONS' }])
    assert.deepEqual(corsOf(await call(port, from(APP, options))), {})
})

test('cors: origins are as a browser sends them, whatever is written', () => {
  const env = { PLANTS_ISSUER: ISSUER, PLANTS_AUDIENCE: AUDIENCE, PLANTS_JWT_SECRET: SECRET }
  const of = (origins: string) =>
    readConfig({ ...env, PLANTS_CORS_ORIGINS: origins }, 'service').corsOrigins
  assert.equal(of(''), undefined)
  assert.deepEqual(of('*'), ['*'])
  assert.deepEqual(of(`https://App.example:443/, ${OTHER},capacitor://localhost`), [
    APP,
    OTHER,
    'capacitor://localhost',
  ])
  const form = 'must be * or origins such as https://app.example, with commas between, and URL'
  for (const [origins, place] of [
    ['app.example', 1],
    ['null', 1],
    [`${APP},*`, 2],
    [`${APP},`, 2],
    [`${APP}/path`, 1],
    ['https://*.app.example', 1],
    ['https://user@app.example', 1],
    ['file:///x', 1],
  ] as const)
    assert.deepEqual(problems({ ...env, PLANTS_CORS_ORIGINS: origins }), [
      `PLANTS_CORS_ORIGINS ${form} ${place} is not`,
    ])
})
