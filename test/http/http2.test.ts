import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import { connect, createSecureServer } from 'node:http2'
import { test } from 'node:test'
import { startBare } from '../support/bare.ts'
import { AUTHORITY, CERTIFICATE, KEY } from '../support/etcd-pem.ts'
import { asHttp2, askHttp2, http2Server } from '../support/http2.ts'
import { embed } from '../support/service.ts'
import { listening } from '../support/serving.ts'
import { until } from '../support/time.ts'
import { assertLast, headerLines, verdict } from '../support/verdict.ts'
import { answersUntilEnd, firstAnswer, head } from '../support/wire.ts'

/* The handler in an application's server that speaks HTTP/2. */

test('http2: every request gets 505 without Connection, whatever else is wrong', async (t) => {
  const { adapter, answered, failures, refused, plants } = await startBare(t)
  const port = await http2Server(t, adapter.handler)
  const warnings: string[] = []
  const warn = ({ name, message }: Error): number => warnings.push(`${name}: ${message}`)
  process.on('warning', warn)
  t.after(() => process.off('warning', warn))
  const long = `{"id":1,"name":"${'x'.repeat(500_000)}"}`
  const type = { 'content-type': 'application/json' }
  for (const [method, headers, body] of [
    ['GET', {}, ''],
    ['GET', { ':path': '/trees' }, ''],
    ['DELETE', { authorization: 'Basic x' }, ''],
    ['OPTIONS', {}, ''],
    ['POST', type, '{"id":1,"name":"Fern"}'],
    ['POST', type, long],
  ] as const) {
    const answer = await askHttp2(port, method, { ...headers, 'request-id': 'mine' }, body)
    assert.equal(verdict(answer), 'versionUnsupported', method)
    assert.deepEqual(headerLines(answer, 'connection'), [])
    assert.deepEqual(headerLines(answer, 'request-id'), ['mine'])
  }
  const { status, body } = await askHttp2(port, 'HEAD')
  assert.deepEqual([status, body], [505, ''])
  await until('all are noted', () => answered.length === 7)
  assert.deepEqual(answered.slice(-2), ['POST 505', 'HEAD 505'])
  assert.deepEqual([refused, plants.size, adapter.active], [Array(7).fill(50501), 0, 0])
  assert.equal(failures.length, 1)
  assert.match(String(failures[0]), /^HTTP\/2 is refused: mount the handler in a server of /)
  assert.deepEqual(warnings, [])
})

test('http2: 505 comes before the check of the store, and each service logs once', async (t) => {
  const lines: string[] = []
  const onLog = ({ level, message }: { readonly level: string; readonly message: string }) =>
    void (level === 'error' && lines.push(message))
  const { handler } = await embed(t, { logLevel: 'info', onLog })
  const port = await http2Server(t, handler)
  for (let at = 0; at < 3; at++)
    assert.equal(verdict(await askHttp2(port, 'GET')), 'versionUnsupported')
  assert.equal(lines.length, 1)
  const other = await embed(t, { logLevel: 'info', onLog })
  await askHttp2(await http2Server(t, other.handler), 'GET')
  assert.equal(lines.length, 2)
  assert.equal(lines[0], lines[1])
})

test('http2: a response of the application stays the only one', async (t) => {
  const { adapter, failures } = await startBare(t)
  const first: RequestListener = (req, res) => {
    res.writeHead(202).end('"application"')
    adapter.handler(req, res)
  }
  const { status, body } = await askHttp2(await http2Server(t, first), 'GET')
  assert.deepEqual([status, body], [202, '"application"'])
  assert.equal(failures.length, 1)
})

test('http2: a client that has left before the handler sees its request breaks none', async (t) => {
  const { adapter, answered } = await startBare(t)
  let seen = 0
  const late: RequestListener = (req, res) => {
    if (req.method !== 'POST') return adapter.handler(req, res)
    req.once('close', () => {
      adapter.handler(req, res)
      seen++
    })
  }
  const port = await http2Server(t, late)
  for (const leave of ['stream', 'session'] as const) {
    const session = connect(`http://127.0.0.1:${port}`).on('error', () => {})
    const stream = session.request({ ':method': 'POST', ':path': '/plants' }).on('error', () => {})
    // The server answers after the request before it.
    const [status] = await once(session.request({ ':path': '/plants' }), 'response')
    assert.equal(Object(status)[':status'], 505)
    if (leave === 'stream') stream.close()
    else session.destroy()
    await until('the handler has seen it', () => seen === (leave === 'stream' ? 1 : 2))
    session.destroy()
  }
  assert.deepEqual([answered, adapter.active], [['GET 505', 'GET 505'], 0])
})

test('http2: the text HTTP/2.0 over HTTP/1 is 400, and ends its connection', async (t) => {
  const { adapter, failures } = await startBare(t)
  const port = await listening(t, createServer(adapter.handler))
  for (const lines of [[], ['Connection: keep-alive']]) {
    const bytes = head('GET', '/plants', { version: '2.0', lines })
    assertLast(await answersUntilEnd(port, bytes), ['malformedRequest'])
  }
  assert.deepEqual(failures, [])
})

test('http2: a server of both serves HTTP/1.1', async (t) => {
  const { adapter, failures } = await startBare(t)
  const options = { key: KEY, cert: CERTIFICATE, allowHTTP1: true }
  const port = await listening(t, createSecureServer(options, asHttp2(adapter.handler)))
  const answer = await firstAnswer({ port, ca: AUTHORITY }, head('GET', '/plants'))
  assert.deepEqual([verdict(answer), failures], [200, []])
})
