import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'

const STRINGS = [
  ['', '\0', 'a\0b', '\0\0', '"', '\\', '\\"', '\n', '\r\n', '\t', '\b\f', ' '],
  ['\u0001\u001f\u007f\u0080', "'; DROP TABLE plants; --", '%00', '</script>', '__proto__', 'null'],
  ['💐', '👩🏽‍🌾', '\u{10ffff}', '\ufffd', '\uffff', '\ufeff', '\u2028\u2029', '\u202e', '1e5'],
  ['é', 'e\u0301', 'x'.repeat(100_000), '💐'.repeat(1000)],
].flat()

/** The escapes of texts that UTF-8 cannot encode. */
const SURROGATES = ['\\ud800', '\\udfff', 'a\\uD83Db', '\\udc90\\ud83d', '\\ud83d\\ud83d\\udc90']

/** Bytes that are no UTF-8, in hexadecimal: of no use, too long, cut, surrogates, out of range. */
const NOT_UTF8 = ['ff', 'c080', 'c3', 'eda080', 'f4908080', 'e282', '80']

test('strings', async (t) => {
  const { port } = await startService(t)

  await t.test('any text comes back unchanged, as name and as tag', async () => {
    const plants = STRINGS.map((text) => ({ name: text, tag: text }))
    for (const [id, plant] of plants.entries()) {
      const reply = await post(port, { id, ...plant })
      assert.deepEqual([verdict(reply), reply.json()], [200, plant])
    }
    assert.deepEqual((await call(port)).json(), plants)
  })

  await t.test('an escape is read as its character', async () => {
    const bearer = { token: token('bob') }
    const plant = { name: '\0💐/"\\', tag: '\n' }
    const name = '"n\\u0061me":"\\u0000\\ud83d\\udc90\\/\\"\\\\"'
    const reply = await post(port, `{"\\u0069d":1,${name},"t\\u0061g":"\\n"}`, bearer)
    assert.deepEqual([verdict(reply), reply.json()], [200, plant])
    assert.equal(verdict(await post(port, { id: 1, ...plant }, bearer)), 200)
  })

  await t.test('a lone surrogate is refused, but not in an unknown member', async () => {
    for (const text of SURROGATES) {
      const bearer = { token: token(`surrogate ${text}`) }
      for (const [members, expected] of [
        [`"name":"${text}"`, 'nameInvalid'],
        [`"name":"a","tag":"${text}"`, 'tagInvalid'],
        [`"name":"a","x":"${text}"`, 200],
      ] as const)
        assert.equal(verdict(await post(port, `{"id":9,${members}}`, bearer)), expected, members)
    }
  })

  await t.test('invalid UTF-8 is refused at any place', async () => {
    for (const hex of NOT_UTF8)
      for (const [before, after] of [
        ['{"id":901,"name":"', '"}'],
        ['{"id":901,"name":"a","x":"', '"}'],
        ['{"id":901,"name":"a"}', ''],
      ] as const) {
        const body = [Buffer.from(before), Buffer.from(hex, 'hex'), Buffer.from(after)]
        assert.equal(verdict(await post(port, Buffer.concat(body))), 'bodyNotUtf8', before + hex)
      }
  })

  await t.test('a byte order mark is refused, and so is UTF-16', async () => {
    const json = '{"id":902,"name":"a"}'
    assert.equal(verdict(await post(port, `\ufeff${json}`)), 'bodyNotUtf8')
    assert.equal(verdict(await post(port, '\ufeff')), 'bodyNotUtf8')
    assert.equal(verdict(await post(port, Buffer.from(json, 'utf16le'))), 'bodyNotJson')
  })

  await t.test('nothing that was refused is stored', async () => {
    const list = (await call(port)).json()
    assert.equal(Array.isArray(list) && list.length, STRINGS.length)
  })
})
