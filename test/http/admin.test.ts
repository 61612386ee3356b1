import assert from 'node:assert/strict'
import { test } from 'node:test'
import { SqljsStore } from '../../dist/store/sqljs/store.js'
import { call } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { assertCommon, headerLines, verdict } from '../support/verdict.ts'

test('admin: livez and readyz need no token, and say what is wrong', async (t) => {
  const { adminPort, port } = await startService(t)
  const get = (path: string, method = 'GET') => call(adminPort, { path, method, token: undefined })
  for (const path of ['/livez', '/livez?verbose', '/readyz', '/readyz?x=1']) {
    const reply = await get(path)
    assertCommon(reply)
    assert.equal(reply.status, 200)
    const only = await get(path, 'HEAD')
    assert.deepEqual([only.status, only.text, headerLines(only, 'content-length')], [200, '', headerLines(reply, 'content-length')])
  }
  assert.deepEqual((await get('/livez')).json(), { status: 'ok' })
  assert.deepEqual((await get('/readyz')).json(), { status: 'ok', checks: { service: 'ok', keys: 'ok', storage: 'ok' } })

  const trouble = t.mock.method(SqljsStore.prototype, 'trouble', () => 'the disk is full')
  const red = await get('/readyz')
  assert.deepEqual([red.status, red.json()], [503, { status: 'unavailable', checks: { service: 'ok', keys: 'ok', storage: 'the disk is full' } }])
  assert.equal((await get('/livez')).status, 200)
  trouble.mock.restore()
  assert.equal((await get('/readyz')).status, 200)

  for (const path of ['/plants', '/', '/livez/', '/readyz/x', '//livez']) assert.equal(verdict(await get(path)), 'pathUnknown', path)
  for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS']) {
    const reply = await get('/livez', method)
    assert.deepEqual([verdict(reply), headerLines(reply, 'allow')], ['methodNotAllowed', ['GET, HEAD']])
  }
  assert.equal(verdict(await call(port, { path: '/livez' })), 'pathUnknown', 'the public listener has plants alone')
})

test('admin: without keys it is not ready', async (t) => {
  // Nobody listens on port 1.
  const { adminPort } = await startService(t, { keys: { kind: 'url', url: 'http://127.0.0.1:1/keys' } })
  const reply = await call(adminPort, { path: '/readyz', token: undefined })
  assert.equal(reply.status, 503)
  assert.match(reply.text, /"keys":"[^"]*no usable key set/)
  assert.match(reply.text, /"storage":"ok"/)
})

test('admin: it can be off', async (t) => {
  const { port, adminPort } = await startService(t, { adminListen: 'off' })
  assert.equal(adminPort, 0)
  assert.equal((await call(port)).status, 200)
})
