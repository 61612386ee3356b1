import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { processorMs } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'
import { firstAnswer, head } from '../support/wire.ts'

const JSON_TYPE = 'application/json'

/** What may follow application/json. */
const PARAMETERS = [
  ['', ';charset=utf-8', '; charset=UTF-8', ' \t; \t charset="utf-8"', '; charset=utf8'],
  ['; charset="UTF8"', ';', '; ;;', '; a=b', '; a="b;c"', '; a="\\"; b="'],
  [';a=b;charset=utf-8;c=d', '; profile="x y"'],
].flat()

const REFUSED = [
  ['', 'text/plain', 'application/jsonp', 'application/json+x', 'application/ld+json'],
  ['text/json', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=a', '*/*'],
  ['json', 'application /json', 'application/json, application/json'],
  ...[
    ['; charset=latin1', '; charset=utf-16', '; charset="us-ascii"', '; charset', '; charset='],
    ['; charset=utf-8; charset=latin1', '; charset="utf-8', '; charset = utf-8', ' x', '; a b'],
    ['; charset=utf_8', '; charset=utf88'],
  ].map((rest) => rest.map((each) => JSON_TYPE + each)),
].flat()

test('media type', async (t) => {
  const { port } = await startService(t)
  const body = '{"id":1,"name":"a"}'
  const answerTo = (lines: readonly string[]) => {
    const all = [...lines, `Content-Length: ${body.length}`]
    return firstAnswer(port, head('POST', '/plants', { lines: all }) + body)
  }
  const send = async (...lines: readonly string[]) => verdict(await answerTo(lines))
  const sendCodings = (...codings: readonly string[]) =>
    send(`Content-Type: ${JSON_TYPE}`, ...codings.map((coding) => `Content-Encoding: ${coding}`))

  await t.test('application/json with any parameters but another charset is accepted', async () => {
    for (const type of ['Application/JSON', ...PARAMETERS.map((each) => JSON_TYPE + each)])
      assert.equal(await send(`Content-Type: ${type}`), 200, type)
  })

  await t.test('256 characters are read', async () => {
    const type = `Content-Type: ${JSON_TYPE};a=`.padEnd(256 + 'Content-Type: '.length, 'x')
    assert.deepEqual([await send(type), await send(`${type}x`)], [200, 'mediaTypeUnsupported'])
  })

  await t.test('anything else is 415', async () => {
    for (const type of REFUSED)
      assert.equal(await send(`Content-Type: ${type}`), 'mediaTypeUnsupported', type)
    assert.equal(await send(), 'mediaTypeUnsupported')
  })

  await t.test('a refusal names what came', async () => {
    const wanted = 'Send the body as Content-Type: application/json, in UTF-8.'
    const type = `Content-Type: ${JSON_TYPE}`
    const coded = 'Send the body without a Content-Encoding. It is "br, gzip".'
    for (const [message, ...lines] of [
      [`${wanted} It is "text/plain".`, 'Content-Type: text/plain'],
      [`${wanted} It is "a\\"b\\\\".`, 'Content-Type: a"b\\'],
      [`${wanted} There is none.`],
      [`${wanted} It is "${'x'.repeat(100)}".`, `Content-Type: ${'x'.repeat(1000)}`],
      [`${wanted} It is "${JSON_TYPE}; charset=latin1".`, `${type}; charset=latin1`],
      [coded, type, 'Content-Encoding: br', 'Content-Encoding: gzip'],
    ] as const) {
      // `verdict` of the tests above asserts the rest of the form.
      const error = JSON.parse((await answerTo(lines)).body) as { readonly message: string }
      assert.equal(error.message, message)
    }
  })

  await t.test('two lines are refused, even if they are the same', async () => {
    for (const first of [JSON_TYPE, 'text/plain']) {
      const lines = [`Content-Type: ${first}`, `content-type: ${JSON_TYPE}`]
      assert.equal(await send(...lines), 'contentTypeRepeated', first)
    }
  })

  await t.test('no content coding but identity is accepted; an empty list is none', async () => {
    for (const coding of ['identity', 'Identity', ' \t identity \t ', '', ',', ' ,\t, '])
      assert.equal(await sendCodings(coding), 200, coding)
    assert.equal(await sendCodings('', 'identity', ','), 200)
    assert.equal(await sendCodings(','.repeat(256)), 200)
    assert.equal(await sendCodings(','.repeat(257)), 'contentEncodingUnsupported')
    const others = ['gzip', 'br', 'x', 'identity, gzip', ', gzip', '\u00a0', '\u00a0identity']
    others.push('identity\u00a0')
    assert.equal(await sendCodings('', 'gzip'), 'contentEncodingUnsupported')
    for (const coding of others)
      assert.equal(await sendCodings(coding), 'contentEncodingUnsupported', coding)
    assert.equal(await sendCodings('identity', 'gzip'), 'contentEncodingUnsupported')
  })

  await t.test('a long type that almost matches is refused quickly', async () => {
    for (const filler of [';   ', ' ; ', ';', '; a=b ', '; a="b" ', '\t', ';a="\\"']) {
      const type = `${JSON_TYPE}${filler.repeat(Math.floor(8000 / filler.length))}@`
      const took = await processorMs(async () =>
        assert.equal(await send(`Content-Type: ${type}`), 'mediaTypeUnsupported'),
      )
      assert.ok(took < 5000, filler)
    }
  })

  await t.test('a GET ignores both', async () => {
    const headers = {
      'content-type': 'text/plain',
      'content-encoding': 'gzip',
      accept: 'text/html',
    }
    assert.equal(verdict(await call(port, { headers })), 200)
  })
})
