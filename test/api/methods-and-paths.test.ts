import assert from 'node:assert/strict'
import { METHODS } from 'node:http'
import { test } from 'node:test'
import { post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { PATIENCE_MS } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { assertLast, headerLines, verdict } from '../support/verdict.ts'
import { answersUntilEnd, firstAnswer, head, Wire, type WireAnswer } from '../support/wire.ts'

const ALLOW = ['GET, HEAD, POST, OPTIONS']

/** Paths and queries of no operation: paths are compared byte by byte. */
const UNKNOWN = [
  ['/', '/plants/', '//plants', '/%70lants', '/Plants', '/PLANTS', '/plants;a=b', '/plants#a'],
  ['/plants%3Flimit=1', '/./plants', '/a/../plants', '/plants/1/2/3/4', '/plants/a/b/c/', '/plant'],
  ['/plantss', '/plants%00', '/plants%20', '/plants%2F', '/\\plants', '/plants\\', '*'],
  ['/livez', '/readyz', '/metrics', '/openapi.json', '/constructor', '/__proto__'],
  ['http://plants.test', 'http://plants.test/', 'http://a/b/plants', 'ftp://a/plants'],
  ['http://a?/plants'],
].flat()
const KNOWN = [
  ['/plants', '/plants?', '/plants?limit=1', '/plants??', '/plants?a=/b/../c', '/plants?/'],
  ['http://plants.test/plants', 'HTTP://other:8080/plants', 'https://a/plants?limit=1'],
  ['http://[::1]:1/plants'],
].flat()

/** The lines of a response's head, in order. The date must be that of today, and is left out. */
function linesOf(answer: WireAnswer): readonly unknown[] {
  const [date = ''] = headerLines(answer, 'date')
  assert.equal(new Date(date).toUTCString(), date)
  assert.ok(Math.abs(Date.now() - Date.parse(date)) < PATIENCE_MS, date)
  return [answer.status, ...[...answer.headers].filter(([name]) => name !== 'date')]
}

test('methods and paths', async (t) => {
  const { port } = await startService(t)
  await post(port, { id: 1, name: 'a' })
  const send = (method: string, target: string, options: Parameters<typeof head>[2] = {}) =>
    firstAnswer(port, head(method, target, options))
  await t.test('OPTIONS is answered before the token is checked', async () => {
    for (const bearer of [undefined, 'abc', 'a,b']) {
      const answer = await send('OPTIONS', '/plants?limit=x', { token: bearer })
      const found = [verdict(answer), answer.body, headerLines(answer, 'allow')]
      assert.deepEqual(found, [204, '', ALLOW])
      for (const name of ['content-type', 'content-length', 'transfer-encoding'])
        assert.deepEqual(headerLines(answer, name), [], name)
    }
    assert.equal(verdict(await send('OPTIONS', '*', { token: undefined })), 'pathUnknown')
  })

  await t.test('HEAD has the lines of GET, for failures too, and no body', async () => {
    // Text that is sent with its head, bytes after it, and bytes in pieces, which Node sends.
    const names = ['a', '\u00e4', 'x'.repeat(5_000), 'x'.repeat(25_000)]
    const tokens = names.map((_, at) => token(`owner ${at}`))
    for (const [at, name] of names.entries())
      for (const id of [1, 2]) await post(port, { id, name }, { token: tokens[at] })
    for (const bearer of [...tokens, token('none'), 'abc', 'a,b', undefined])
      for (const target of ['/plants', '/plants?limit=1', '/plants?limit=x', '/trees']) {
        const options = { token: bearer, lines: ['Request-Id: 1'] }
        const both = head('HEAD', target, options) + head('GET', target, options)
        const wire = await Wire.to(port)
        const [only, got] = await wire.write(both).answers(2, [0])
        assert.ok(only && got)
        assert.deepEqual(linesOf(only), linesOf(got))
        assert.deepEqual(headerLines(only, 'keep-alive'), ['timeout=75'])
        assert.equal(only.body, '')
      }
  })

  await t.test('PUT, PATCH and DELETE are 405; others that Node parses are 501', async () => {
    for (const method of METHODS) {
      if (['GET', 'HEAD', 'POST', 'OPTIONS', 'CONNECT'].includes(method)) continue
      const isKnown = ['PUT', 'PATCH', 'DELETE'].includes(method)
      const answer = await send(method, '/plants', { token: undefined })
      assert.equal(verdict(answer), isKnown ? 'methodNotAllowed' : 'methodUnknown', method)
      assert.deepEqual(headerLines(answer, 'allow'), isKnown ? ALLOW : [])
      const elsewhere = await send(method, '/trees', { token: undefined })
      assert.equal(verdict(elsewhere), 'pathUnknown', method)
    }
    for (const method of ['get', 'Get', 'FOO', 'GETT'])
      assert.equal(verdict(await send(method, '/plants')), 'malformedRequest', method)
  })

  await t.test('CONNECT is 501 and closes the connection', async () => {
    for (const more of ['', head('GET', '/plants'), 'x'.repeat(200_000)])
      assertLast(await answersUntilEnd(port, head('CONNECT', 'a:443') + more), ['methodUnknown'])
  })

  await t.test('paths are compared byte by byte, also in absolute form', async () => {
    for (const target of UNKNOWN)
      assert.equal(verdict(await send('GET', target)), 'pathUnknown', target)
    for (const target of KNOWN) {
      assert.equal(verdict(await send('GET', target)), 200, target)
      assert.equal(verdict(await send('GET', target, { token: undefined })), 'tokenMissing', target)
    }
    assert.deepEqual((await send('GET', 'http://a/plants?limit=0')).body, '[]')
  })

  await t.test('exactly one Host', async () => {
    for (const host of ['a', 'a:80', '[::1]:80', '', '127.0.0.1', 'a_b.c'])
      assert.equal(verdict(await send('GET', '/plants', { host })), 200, host)
    for (const host of [undefined, 'a b', 'a/b', 'a@b', '"a"', 'a?b', '<a>', 'a\\b', 'é'])
      assert.equal(verdict(await send('GET', '/plants', { host })), 'hostInvalid', host)
    const strange = await send('GET', '/trees', { host: undefined, token: undefined })
    assert.equal(verdict(strange), 'hostInvalid', 'before path and token')
    for (const lines of [['Host: plants.test'], Array<string>(97).fill('Host:')])
      assert.equal(verdict(await send('GET', '/plants', { lines })), 'hostInvalid')
  })

  await t.test('HTTP/1.0 is served, and its connection is closed', async () => {
    assertLast(await answersUntilEnd(port, head('GET', '/plants', { version: '1.0' })), [200])
    const wire = await Wire.to(port)
    const kept = head('GET', '/plants', { version: '1.0', lines: ['Connection: keep-alive'] })
    await wire.write(kept).answers(1)
    assert.deepEqual((await wire.write(kept).answers(2)).map(verdict), [200, 200])
  })

  await t.test('other versions are refused, and end the connection', async () => {
    const keep = { lines: ['Connection: keep-alive'] }
    const versions = ['2.0', '0.9', '1.2', '3.0', '1', '1.10', 'x']
    for (const bytes of [
      ...versions.map((version) => head('GET', '/plants', { version })),
      ...versions.map((version) => head('GET', '/plants', { version, ...keep })),
      head('CONNECT', 'plants.test:443', { version: '2.0' }),
      'CONNECT /plants\r\n\r\n',
      'CONNECT plants.test:443\r\nHost: plants.test\r\n\r\n',
    ])
      assertLast(await answersUntilEnd(port, bytes + head('GET', '/plants')), ['malformedRequest'])
  })
})
