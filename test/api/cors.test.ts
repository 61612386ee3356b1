import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, type CallOptions, post, type Reply } from '../support/http.ts'
import { problems, startService } from '../support/service.ts'
import { AUDIENCE, ISSUER, SECRET } from '../support/tokens.ts'
import { headerLines } from '../support/verdict.ts'
import { CHUNKED, firstAnswer, posting } from '../support/wire.ts'
import { readConfig } from '../../dist/settings/read.js'

const APP = 'https://app.example'
const OTHER = 'http://localhost:5173'

function allowed(origin: string): Readonly<Record<string, unknown>> {
  return {
    'access-control-allow-origin': origin,
    'access-control-expose-headers': 'Link, Request-Id, Retry-After, WWW-Authenticate',
    vary: 'Origin',
  }
}

const PREFLIGHT = {
  'access-control-allow-methods': 'GET, HEAD, POST, OPTIONS',
  'access-control-allow-headers': 'Authorization, Content-Type, Request-Id, traceparent, *',
  'access-control-max-age': '600',
}

/** Checks the status of a response, and its headers that concern other origins. */
function assertCors({ status, headers }: Reply, wanted: number, cors: object, what = ''): void {
  const found = Object.entries(headers).filter(([name]) => /^(access-control-|vary)/.test(name))
  assert.deepEqual([status, Object.fromEntries(found)], [wanted, cors], what)
}

const from = (origin: string | readonly string[], options: CallOptions = {}): CallOptions => ({
  ...options,
  headers: { origin, ...options.headers },
})

const OPTIONS: CallOptions = { method: 'OPTIONS', token: undefined }

test('cors', async (t) => {
  const start = async (corsOrigins?: readonly string[]): Promise<number> =>
    (await startService(t, { corsOrigins, maxBodyBytes: 1000 })).port
  const [one, two] = [await start([APP]), await start([APP, OTHER])]
  const [any, none] = [await start(['*']), await start()]

  await t.test('every response to a listed origin says so, refusals too', async () => {
    assertCors(await post(two, { id: 1, name: 'Fern' }, from(APP)), 200, allowed(APP))
    await post(two, { id: 2, name: 'Moss' })
    for (const [status, options] of [
      [200, {}],
      [200, { headers: { connection: 'close' } }],
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
    ] as const) {
      const reply = await call(two, from(OTHER, options))
      assertCors(reply, status, allowed(OTHER), reply.text)
    }
    const long = await post(two, { id: 3, name: 'x'.repeat(2000) }, from(APP))
    assertCors(long, 413, allowed(APP))
  })

  await t.test('a cached page keeps nothing of the origin that asked first', async () => {
    for (const origin of [APP, OTHER, APP])
      assertCors(await call(two, from(origin)), 200, allowed(origin))
    assertCors(await call(two, from('https://evil.example')), 200, {})
    assertCors(await call(two), 200, {})
  })

  await t.test('an unknown or repeated origin gets nothing, nor any if it is not set', async () => {
    const near = [APP.toUpperCase(), `${APP}:443`, `${APP}/`]
    for (const [port, origins] of [
      [one, ['https://evil.example', 'null', '', ...near, [APP, APP]]],
      [none, [APP]],
    ] as const) {
      for (const origin of origins) {
        assertCors(await call(port, from(origin)), 200, {}, String(origin))
        assertCors(await call(port, from(origin, { token: undefined })), 401, {}, String(origin))
        assertCors(await call(port, from(origin, OPTIONS)), 204, {}, String(origin))
      }
      assertCors(await call(port), 200, {})
    }
  })

  await t.test('a preflight needs no token; with * every origin is allowed, null too', async () => {
    const headers = {
      'access-control-request-method': 'POST',
      'access-control-request-headers': 'authorization,content-type',
    }
    for (const [port, origins, allowedOrigin] of [
      [one, [APP], APP],
      [any, [APP, 'null', 'capacitor://localhost'], '*'],
    ] as const) {
      for (const origin of origins) {
        assertCors(await call(port, from(origin)), 200, allowed(allowedOrigin))
        const reply = await call(port, from(origin, { ...OPTIONS, headers }))
        assertCors(reply, 204, { ...allowed(allowedOrigin), ...PREFLIGHT })
        assert.equal(reply.headers['allow'], 'GET, HEAD, POST, OPTIONS')
      }
      assertCors(await call(port), 200, {})
    }
  })

  await t.test('refusals of the parser name the only origin, or *', async () => {
    const bad = ['GARBAGE\r\n\r\n', `GET / HTTP/1.1\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`]
    bad.push(posting(['Origin: https://evil.example', CHUNKED]) + 'no size\r\n')
    for (const [port, named, known] of [
      [one, APP, undefined],
      [any, '*', '*'],
      [two, undefined, undefined],
      [none, undefined, undefined],
    ] as const) {
      const found: unknown[] = []
      for (const bytes of bad) {
        const answer = await firstAnswer(port, bytes)
        found.push([answer.status, headerLines(answer, 'access-control-allow-origin')[0]])
        assert.deepEqual(headerLines(answer, 'access-control-allow-credentials'), [])
      }
      // The headers of the last one could be read: it has its own origin.
      const expected = [named, named, known].map((origin, at) => [[400, 431, 400][at], origin])
      assert.deepEqual(found, expected)
    }
  })
})

test('cors: origins are as a browser sends them, whatever is written', () => {
  const env = { PLANTS_ISSUER: ISSUER, PLANTS_AUDIENCE: AUDIENCE, PLANTS_JWT_SECRET: SECRET }
  const of = (origins: string) => readConfig({ ...env, PLANTS_CORS_ORIGINS: origins }).corsOrigins
  assert.equal(of(''), undefined)
  assert.deepEqual(of('*'), ['*'])
  const browser = [APP, OTHER, 'capacitor://localhost']
  assert.deepEqual(of(`https://App.example:443/, ${OTHER},capacitor://localhost`), browser)
  const form = 'must be * or origins such as https://app.example, with commas between, and URL'
  const wrong = ['app.example', 'null', `${APP}/path`, 'https://*.app.example', 'file:///x']
  for (const [place, ...all] of [
    [1, ...wrong, 'https://user@app.example'],
    [2, `${APP},*`, `${APP},`],
  ] as const)
    for (const origins of all)
      assert.deepEqual(problems({ ...env, PLANTS_CORS_ORIGINS: origins }), [
        `PLANTS_CORS_ORIGINS ${form} ${place} is not`,
      ])
})
