import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'

const STRINGS = [
  '',
  '\0',
  'a\0b',
  '\0\0',
  '"',
  '\\',
  '\\"',
  '\n',
  '\r\n',
  '\t',
  '\b\f',
  '\u0001\u001f\u007f\u0080',
  ' ',
  "'; DROP TABLE plants; --",
  '%00',
  '💐',
  '👩🏽‍🌾',
  '\u{10ffff}',
  '\ufffd',
  '\uffff',
  '\ufeff',
  '\u2028\u2029',
  'é',
  'e\u0301',
  '</script>',
  '__proto__',
  'null',
  '1e5',
  '\u202e',
  'x'.repeat(100_000),
  '💐'.repeat(1000),
]

test('strings', async (t) => {
  const { port } = await startService(t)

  await t.test('any text comes back unchanged, as name and as tag', async () => {
    const plants = STRINGS.map((text, id) => ({ id, name: text, tag: text }))
    for (const plant of plants) {
      const reply = await post(port, plant)
      assert.deepEqual([verdict(reply), reply.json()], [200, { name: plant.name, tag: plant.tag }])
    }
    assert.deepEqual(
      (await call(port)).json(),
      plants.map(({ name, tag }) => ({ name, tag })),
    )
  })

  await t.test('an escape is read as its character', async () => {
    const bearer = token('bob')
    const reply = await post(
      port,
      '{"\\u0069d":1,"n\\u0061me":"\\u0000\\ud83d\\udc90\\/\\"\\\\","t\\u0061g":"\\n"}',
      { token: bearer },
    )
    assert.deepEqual([verdict(reply), reply.json()], [200, { name: '\0💐/"\\', tag: '\n' }])
    assert.equal(
      verdict(await post(port, { id: 1, name: '\0💐/"\\', tag: '\n' }, { token: bearer })),
      200,
    )
  })

  await t.test('a lone surrogate is refused', async () => {
    for (const escape of [
      '\\ud800',
      '\\udfff',
      'a\\uD83Db',
      '\\udc90\\ud83d',
      '\\ud83d\\ud83d\\udc90',
    ]) {
      assert.equal(
        verdict(await post(port, `{"id":900,"name":"${escape}"}`)),
        'nameInvalid',
        escape,
      )
      assert.equal(
        verdict(await post(port, `{"id":900,"name":"a","tag":"${escape}"}`)),
        'tagInvalid',
        escape,
      )
      assert.equal(
        verdict(
          await post(port, `{"id":900,"name":"a","x":"${escape}"}`, {
            token: token(`surrogate ${escape}`),
          }),
        ),
        200,
        'an unknown member may have one',
      )
    }
  })

  await t.test('invalid UTF-8 is refused at any place', async () => {
    for (const bytes of [
      [0xff],
      [0xc0, 0x80],
      [0xc3],
      [0xed, 0xa0, 0x80],
      [0xf4, 0x90, 0x80, 0x80],
      [0xe2, 0x82],
      [0x80],
    ]) {
      for (const [before, after] of [
        ['{"id":901,"name":"', '"}'],
        ['{"id":901,"name":"a","x":"', '"}'],
        ['{"id":901,"name":"a"}', ''],
      ]) {
        const body = Buffer.concat([
          Buffer.from(before ?? ''),
          Buffer.from(bytes),
          Buffer.from(after ?? ''),
        ])
        assert.equal(verdict(await post(port, body)), 'bodyNotUtf8', body.toString('hex'))
      }
    }
  })

  await t.test('a byte order mark is refused', async () => {
    assert.equal(verdict(await post(port, '\ufeff{"id":902,"name":"a"}')), 'bodyNotUtf8')
    assert.equal(verdict(await post(port, '\ufeff')), 'bodyNotUtf8')
    assert.equal(
      verdict(await post(port, Buffer.from('{"id":902,"name":"a"}', 'utf16le'))),
      'bodyNotJson',
    )
  })

  await t.test('nothing that was refused is stored', async () => {
    assert.equal((JSON.parse((await call(port)).text) as unknown[]).length, STRINGS.length)
  })
})
