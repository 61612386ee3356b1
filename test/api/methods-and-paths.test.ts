import assert from 'node:assert/strict'
import { METHODS } from 'node:http'
import { test } from 'node:test'
import { post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { PATIENCE_MS } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { converse, firstAnswer, head, Wire } from '../support/wire.ts'

const ALLOW = ['GET, HEAD, POST, OPTIONS']

/** The lines of a response's head, in order. The date must be that of today, and is left out. */
function headOf({ text }: Wire): readonly string[] {
  const [head = ''] = text.split('\r\n\r\n', 1)
  const dates = [...head.matchAll(/\r\nDate: (.*)/g)].map(([, date = '']) => date)
  assert.equal(dates.length, 1, head)
  const [date = ''] = dates
  assert.equal(new Date(date).toUTCString(), date)
  assert.ok(Math.abs(Date.now() - Date.parse(date)) < PATIENCE_MS, date)
  return head.replace(date, '…').split('\r\n')
}

test('methods and paths', async (t) => {
  const { port } = await startService(t)
  await post(port, { id: 1, name: 'a' })
  const send = (method: string, target: string, options: Parameters<typeof head>[2] = {}) =>
    firstAnswer(port, head(method, target, options), method === 'HEAD' ? [0] : [])

  await t.test('OPTIONS is answered before the token is checked', async () => {
    for (const bearer of [undefined, 'abc', 'a,b']) {
      const answer = await send('OPTIONS', '/plants?limit=x', { token: bearer })
      assert.deepEqual(
        [verdict(answer), answer.body, headerLines(answer, 'allow')],
        [204, '', ALLOW],
      )
      for (const name of ['content-type', 'content-length', 'transfer-encoding'])
        assert.deepEqual(headerLines(answer, name), [], name)
    }
    assert.equal(verdict(await send('OPTIONS', '*', { token: undefined })), 'pathUnknown')
  })

  await t.test('GET has the same lines as HEAD, whose head Node writes', async () => {
    // Text that is sent with its head, bytes after it, and bytes in pieces, which Node sends.
    for (const [owner, name] of [
      ['short', 'a'],
      ['umlaut', '\u00e4'],
      ['long', 'x'.repeat(5_000)],
      ['longest', 'x'.repeat(25_000)],
      ['none', undefined],
    ] as const) {
      for (const id of name === undefined ? [] : [1, 2])
        await post(port, { id, name }, { token: token(owner) })
      for (const target of ['/plants', '/plants?limit=1', '/plants?limit=x', '/trees']) {
        const heads = []
        for (const method of ['GET', 'HEAD']) {
          const lines = ['Request-Id: 1']
          const wire = await Wire.to(port)
          wire.write(head(method, target, { token: token(owner), lines }))
          const [answer] = await wire.answers(1, method === 'HEAD' ? [0] : [])
          heads.push(headOf(wire))
          if (method === 'GET' && target === '/plants' && name !== undefined)
            assert.deepEqual(JSON.parse(Buffer.from(answer?.body ?? '', 'latin1').toString()), [
              { name },
              { name },
            ])
          wire.destroy()
        }
        assert.deepEqual(heads[0], heads[1])
        assert.ok(heads[0]?.includes('Keep-Alive: timeout=75'))
      }
    }
  })

  await t.test('HEAD is GET without its body, for failures too', async () => {
    for (const [target, bearer] of [
      ['/plants', 'good'],
      ['/plants?limit=x', 'good'],
      ['/trees', 'good'],
      ['/plants', 'abc'],
      ['/plants', undefined],
      ['/plants', 'a,b'],
    ] as const) {
      const options = bearer === 'good' ? {} : { token: bearer }
      const [got, only] = [await send('GET', target, options), await send('HEAD', target, options)]
      assert.equal(only.status, got.status)
      for (const name of ['content-length', 'content-type', 'www-authenticate', 'cache-control'])
        assert.deepEqual(headerLines(only, name), headerLines(got, name), name)
      assert.equal(only.body, '')
    }
    // The next answer follows at once, without a body in between.
    const wire = await Wire.to(port)
    const answers = await wire
      .write(head('HEAD', '/plants') + head('HEAD', '/trees') + head('GET', '/plants'))
      .answers(3, [0, 1])
    assert.deepEqual(
      answers.map(({ status, body }) => [status, body]),
      [
        [200, ''],
        [404, ''],
        [200, '[{"name":"a"}]'],
      ],
    )
    wire.destroy()
  })

  await t.test(
    'PUT, PATCH and DELETE are 405; other methods that Node parses are 501',
    async () => {
      for (const method of METHODS) {
        if (['GET', 'HEAD', 'POST', 'OPTIONS', 'CONNECT'].includes(method)) continue
        const expected = ['PUT', 'PATCH', 'DELETE'].includes(method)
          ? 'methodNotAllowed'
          : 'methodUnknown'
        const answer = await send(method, '/plants', { token: undefined })
        assert.equal(verdict(answer), expected, method)
        assert.deepEqual(headerLines(answer, 'allow'), expected === 'methodNotAllowed' ? ALLOW : [])
        assert.equal(
          verdict(await send(method, '/trees', { token: undefined })),
          'pathUnknown',
          method,
        )
      }
      for (const method of ['get', 'Get', 'FOO', 'GETT'])
        assert.equal(verdict(await send(method, '/plants')), 'malformedRequest', method)
    },
  )

  await t.test('CONNECT is 501 and closes the connection', async () => {
    for (const more of ['', head('GET', '/plants'), 'x'.repeat(200_000)]) {
      const wire = await Wire.to(port)
      const [answer, second] = await wire
        .write(head('CONNECT', 'plants.test:443') + more)
        .allAnswers()
      assert.equal(verdict(answer ?? assert.fail()), 'methodUnknown')
      assert.equal(second, undefined)
      wire.destroy()
    }
  })

  await t.test('CONNECT without a version, or with an unknown one, is 400', async () => {
    for (const bytes of [
      'CONNECT /plants\r\n\r\n',
      'CONNECT plants.test:443\r\nHost: plants.test\r\n\r\n',
      head('CONNECT', 'plants.test:443', { version: '2.0' }),
      'GET /plants\r\n\r\n',
    ]) {
      assert.equal(verdict(await firstAnswer(port, bytes)), 'malformedRequest', bytes)
    }
  })

  await t.test('paths are compared byte by byte', async () => {
    for (const target of [
      '/',
      '/plants/',
      '//plants',
      '/%70lants',
      '/Plants',
      '/plants;a=b',
      '/plants%3Flimit=1',
      '/plants#a',
      '/./plants',
      '/a/../plants',
      '/plants/1',
      '/plants/1/leaves',
      '/plants%00',
      '/plant',
      '/plantss',
      '*',
      '/livez',
      '/readyz',
      '/metrics',
      '/openapi.json',
      '/plants%2F',
      '/\\plants',
      '/plants\\',
      '/constructor',
      '/__proto__',
      '/plants%20',
      '/PLANTS',
    ]) {
      const answer = await send('GET', target)
      assert.equal(verdict(answer), 'pathUnknown', target)
    }
    for (const target of [
      '/plants',
      '/plants?',
      '/plants?limit=1',
      '/plants??',
      '/plants?a=/b/../c',
      '/plants?/',
    ])
      assert.equal(verdict(await send('GET', target)), 200, target)
  })

  await t.test('absolute-form targets are accepted', async () => {
    for (const target of [
      'http://plants.test/plants',
      'HTTP://other:8080/plants',
      'https://a/plants?limit=1',
      'http://[::1]:1/plants',
    ]) {
      assert.equal(verdict(await send('GET', target)), 200, target)
      assert.equal(
        verdict(await firstAnswer(port, head('GET', target, { token: undefined }))),
        'tokenMissing',
        target,
      )
    }
    assert.deepEqual((await send('GET', 'http://a/plants?limit=0')).body, '[]')
    for (const target of [
      'http://plants.test',
      'http://plants.test/',
      'http://a/b/plants',
      'ftp://a/plants',
      'http://a?/plants',
    ])
      assert.equal(verdict(await send('GET', target)), 'pathUnknown', target)
  })

  await t.test('exactly one Host', async () => {
    for (const host of ['a', 'a:80', '[::1]:80', '', '127.0.0.1', 'a_b.c'])
      assert.equal(verdict(await send('GET', '/plants', { host })), 200, host)
    assert.equal(verdict(await send('GET', '/plants', { host: undefined })), 'hostInvalid')
    assert.equal(
      verdict(await send('GET', '/trees', { host: undefined, token: undefined })),
      'hostInvalid',
    )
    assert.equal(
      verdict(await send('GET', '/plants', { lines: ['Host: plants.test'] })),
      'hostInvalid',
    )
    for (const host of ['a b', 'a/b', 'a@b', 'a,b', '"a"', 'a?b', '<a>', 'a\\b', 'é'].filter(
      (text) => text !== 'a,b',
    ))
      assert.equal(verdict(await send('GET', '/plants', { host })), 'hostInvalid', host)
    assert.equal(
      verdict(
        await firstAnswer(
          port,
          head('GET', '/plants', { lines: Array.from({ length: 97 }, () => 'Host:') }),
        ),
      ),
      'hostInvalid',
    )
  })

  await t.test('HTTP/1.0 is served, and its connection is closed', async () => {
    const answers = await converse(port, head('GET', '/plants', { version: '1.0' }))
    assert.deepEqual(answers.map(verdict), [200])
    assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'connection'), ['close'])
    const wire = await Wire.to(port)
    const kept = head('GET', '/plants', { version: '1.0', lines: ['Connection: keep-alive'] })
    assert.deepEqual((await wire.write(kept).answers(1)).map(verdict), [200])
    assert.deepEqual((await wire.write(kept).answers(2)).map(verdict), [200, 200])
    wire.destroy()
  })

  await t.test('other versions are refused', async () => {
    for (const version of ['2.0', '0.9', '1.2', '3.0', '1', '1.10', 'x']) {
      for (const lines of [[], ['Connection: keep-alive']]) {
        const wire = await Wire.to(port)
        const [answer, second] = await wire
          .write(head('GET', '/plants', { version, lines }) + head('GET', '/plants'))
          .allAnswers()
        assert.ok(answer)
        assert.equal(verdict(answer), 'malformedRequest', version)
        assert.deepEqual(headerLines(answer, 'connection'), ['close'])
        assert.equal(second, undefined)
        wire.destroy()
      }
    }
  })

  await t.test('an Upgrade is ignored, and the bytes after it are not answered', async () => {
    for (const more of ['', head('GET', '/trees')]) {
      const wire = await Wire.to(port)
      wire.write(
        head('GET', '/plants', {
          lines: [
            'Connection: Upgrade, HTTP2-Settings',
            'Upgrade: h2c',
            'HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA',
          ],
        }) + more,
      )
      const [answer, second] = await wire.allAnswers()
      assert.equal(verdict(answer ?? assert.fail()), 200)
      assert.deepEqual(headerLines(answer ?? assert.fail(), 'connection'), ['close'])
      assert.equal(second, undefined)
      wire.destroy()
    }
  })
})
