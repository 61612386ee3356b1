import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { processorMs } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'
import { firstAnswer, head } from '../support/wire.ts'

const ACCEPTED = [
  'application/json',
  'Application/JSON',
  'application/json;charset=utf-8',
  'application/json; charset=UTF-8',
  'application/json \t; \t charset="utf-8"',
  'application/json; charset=utf8',
  'application/json; charset="UTF8"',
  'application/json;',
  'application/json; ;;',
  'application/json; a=b',
  'application/json; a="b;c"',
  'application/json; a="\\"; b="',
  'application/json;a=b;charset=utf-8;c=d',
  'application/json; profile="x y"',
]

const REFUSED = [
  '',
  'text/plain',
  'application/jsonp',
  'application/json+x',
  'application/ld+json',
  'text/json',
  'application/x-www-form-urlencoded',
  'multipart/form-data; boundary=a',
  '*/*',
  'application/json, application/json',
  'application/json; charset=latin1',
  'application/json; charset=utf-16',
  'application/json; charset="us-ascii"',
  'application/json; charset=utf-8; charset=latin1',
  'application/json; charset',
  'application/json; charset=',
  'application/json; charset="utf-8',
  'application/json; charset = utf-8',
  'application/json x',
  'application/json; a b',
  'json',
  'application /json',
  'application/json; charset=utf_8',
  'application/json; charset=utf88',
]

test('media type', async (t) => {
  const { port } = await startService(t)
  const body = '{"id":1,"name":"a"}'
  const send = async (...lines: readonly string[]) =>
    verdict(
      await firstAnswer(
        port,
        head('POST', '/plants', { lines: [...lines, `Content-Length: ${body.length}`] }) + body,
      ),
    )

  await t.test('application/json with any parameters but another charset is accepted', async () => {
    for (const type of ACCEPTED) assert.equal(await send(`Content-Type: ${type}`), 200, type)
  })

  await t.test('anything else is 415', async () => {
    for (const type of REFUSED)
      assert.equal(await send(`Content-Type: ${type}`), 'mediaTypeUnsupported', type)
    assert.equal(await send(), 'mediaTypeUnsupported')
  })

  await t.test('a refusal names what came', async () => {
    const told = async (...lines: readonly string[]) => {
      const all = [...lines, `Content-Length: ${body.length}`]
      const answer = await firstAnswer(port, head('POST', '/plants', { lines: all }) + body)
      return (JSON.parse(answer.body) as { readonly message: string }).message
    }
    const wanted = 'Send the body as Content-Type: application/json, in UTF-8.'
    assert.equal(await told('Content-Type: text/plain'), `${wanted} It is "text/plain".`)
    assert.equal(await told('Content-Type: a"b\\'), `${wanted} It is "a\\"b\\\\".`)
    assert.equal(await told(), `${wanted} There is none.`)
    const long = `${wanted} It is "${'x'.repeat(100)}".`
    assert.equal(await told(`Content-Type: ${'x'.repeat(1000)}`), long)
    const json = 'Content-Type: application/json'
    const coded = 'Send the body without a Content-Encoding. It is "br, gzip".'
    assert.equal(await told(json, 'Content-Encoding: br', 'Content-Encoding: gzip'), coded)
    const charset = 'application/json; charset=latin1'
    assert.equal(await told(`Content-Type: ${charset}`), `${wanted} It is "${charset}".`)
  })

  await t.test('two lines are refused, even if they are the same', async () => {
    assert.equal(
      await send('Content-Type: application/json', 'content-type: application/json'),
      'contentTypeRepeated',
    )
    assert.equal(
      await send('Content-Type: text/plain', 'Content-Type: application/json'),
      'contentTypeRepeated',
    )
  })

  await t.test('no content coding but identity is accepted', async () => {
    for (const coding of ['identity', 'Identity', ' \t identity \t '])
      assert.equal(await send('Content-Type: application/json', `Content-Encoding: ${coding}`), 200)
    for (const coding of [
      'gzip',
      'br',
      'x',
      'identity, gzip',
      '',
      '\u00a0identity',
      'identity\u00a0',
    ])
      assert.equal(
        await send('Content-Type: application/json', `Content-Encoding: ${coding}`),
        'contentEncodingUnsupported',
        coding,
      )
    assert.equal(
      await send(
        'Content-Type: application/json',
        'Content-Encoding: identity',
        'Content-Encoding: gzip',
      ),
      'contentEncodingUnsupported',
    )
  })

  await t.test('a long type that almost matches is refused quickly', async () => {
    for (const filler of [';   ', ' ; ', ';', '; a=b ', '; a="b" ', '\t', ';a="\\"']) {
      const type = `application/json${filler.repeat(Math.floor(8000 / filler.length))}@`
      const took = await processorMs(async () =>
        assert.equal(await send(`Content-Type: ${type}`), 'mediaTypeUnsupported'),
      )
      assert.ok(took < 5000, filler)
    }
  })

  await t.test('a GET ignores both', async () => {
    assert.equal(
      verdict(
        await call(port, {
          headers: {
            'content-type': 'text/plain',
            'content-encoding': 'gzip',
            accept: 'text/html',
          },
        }),
      ),
      200,
    )
  })
})

test('media type: a transfer coding besides chunked is refused as a coding', async (t) => {
  const { port } = await startService(t)
  const lines = ['Content-Type: application/json', 'Transfer-Encoding: gzip, chunked']
  const answer = await firstAnswer(port, `${head('POST', '/plants', { lines })}0\r\n\r\n`)
  assert.equal(verdict(answer), 'contentEncodingUnsupported')
})
