import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { processorMs } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'

/** JSON numbers as they are written, and the id that each one is. */
const ACCEPTED: readonly (readonly [literal: string, id: bigint])[] = [
  ['-9223372036854775808', -(2n ** 63n)],
  ['-9223372036854775808.0', -(2n ** 63n)],
  ['-9223372036854775807', 1n - 2n ** 63n],
  ['9223372036854775807', 2n ** 63n - 1n],
  ['9223372036854775806', 2n ** 63n - 2n],
  ['92233720368547758070e-1', 2n ** 63n - 1n],
  ['9007199254740991', 2n ** 53n - 1n],
  ['9007199254740992', 2n ** 53n],
  ['9007199254740993', 2n ** 53n + 1n],
  ['-9007199254740993', -(2n ** 53n) - 1n],
  ['-9007199254740992', -(2n ** 53n)],
  ['7', 7n],
  ['7.0', 7n],
  ['7e0', 7n],
  ['7E+0', 7n],
  ['70e-1', 7n],
  ['0.7e1', 7n],
  ['0.0000007e7', 7n],
  ['7.000000000000000000000000000', 7n],
  ['0', 0n],
  ['-0', 0n],
  ['0e9', 0n],
  ['-0.0', 0n],
  ['0e999999999999', 0n],
  ['0.0e-999999999999', 0n],
  ['1e18', 10n ** 18n],
  ['1000000000000000000', 10n ** 18n],
  ['-1e18', -(10n ** 18n)],
]

const REFUSED = [
  '9223372036854775808',
  '-9223372036854775809',
  '9223372036854775807.5',
  '9223372036854775807.0000000000000000001',
  '18446744073709551616',
  '0.9999999999999999999',
  '0.5',
  '1e-1',
  '7.0000000000000000001',
  '1e19',
  '1e400',
  '-1e400',
  '1e-400',
  '1e999999999999',
  '1e-999999999999',
  `1e${'9'.repeat(1000)}`,
  `1${'0'.repeat(100_000)}`,
  `0.${'9'.repeat(100_000)}`,
  '"7"',
  'null',
  'true',
  '[7]',
  '{"id":7}',
  '""',
]

/** Not JSON at all. */
const BROKEN = ['07', '+7', '.7', '7.', '7e', '0x7', 'NaN', 'Infinity', '7n', '- 7', '']

test('ids', async (t) => {
  const { port } = await startService(t)

  await t.test('all notations of an integer are one plant; its neighbours are others', async () => {
    for (const [literal, id] of ACCEPTED) {
      const reply = await post(port, `{"name":"${id}","id":${literal}}`)
      assert.deepEqual([verdict(reply), reply.text], [200, `{"name":"${id}"}`], literal)
    }
    const ids = [...new Set(ACCEPTED.map(([, id]) => id))].sort((a, b) => (a < b ? -1 : 1))
    assert.deepEqual(
      (await call(port)).json(),
      ids.map((id) => ({ name: String(id) })),
    )
  })

  await t.test('anything but an int64 is refused, and quickly', async () => {
    const took = await processorMs(async () => {
      for (const literal of REFUSED)
        assert.equal(
          verdict(await post(port, `{"name":"a","id":${literal}}`)),
          'idInvalid',
          literal.slice(0, 50),
        )
    })
    assert.equal(verdict(await post(port, '{"name":"a"}')), 'idInvalid')
    for (const literal of BROKEN)
      assert.equal(
        verdict(await post(port, `{"name":"a","id":${literal}}`)),
        'bodyNotJson',
        literal,
      )
    assert.ok(took < 10_000, String(took))
  })

  await t.test('a refusal says what came instead', async () => {
    const messageOf = async (plant: string) =>
      ((await post(port, plant)).json() as { readonly message: string }).message
    const id = '"id" is required and must be an integer from -2^63 to 2^63 - 1.'
    const name = '"name" is required and must be a string of valid Unicode.'
    for (const [plant, message] of [
      ['{"name":"a","id":"7"}', `${id} It is a text.`],
      ['{"name":"a"}', `${id} It is missing.`],
      ['{"name":"a","id":1.5}', id],
      ['{"name":"a","id":null}', id],
      ['{"id":1}', `${name} It is missing.`],
      ['{"id":1,"name":7}', `${name} It is a number.`],
      ['{"id":1,"name":"\\ud800"}', `${name} It is a text that is not valid Unicode.`],
    ] as const)
      assert.equal(await messageOf(plant), message, plant)
    const tag = '"tag" must be a string of valid Unicode; omit it if there is no tag.'
    assert.equal(await messageOf('{"id":1,"name":"a","tag":1}'), `${tag} It is a number.`)
    assert.equal(await messageOf('{"id":1,"name":"a","tag":null}'), tag)
  })

  await t.test('a repeated POST is 200 with the same body; other content is 409', async () => {
    const bearer = token('carol')
    const first = await post(port, { id: 1, name: 'a', tag: 'b' }, { token: bearer })
    for (const same of [
      '{"tag":"b","name":"a","id":1.0}',
      '{"id":1e0,"name":"\\u0061","tag":"b","x":[]}',
    ]) {
      const again = await post(port, same, { token: bearer })
      assert.deepEqual([verdict(again), again.text], [200, first.text])
    }
    for (const other of [
      { id: 1, name: 'a' },
      { id: 1, name: 'b', tag: 'b' },
      { id: 1, name: 'a', tag: '' },
      { id: 1, name: 'a', tag: 'c' },
    ]) {
      assert.equal(verdict(await post(port, other, { token: bearer })), 'idTaken')
    }
    assert.deepEqual((await call(port, { token: bearer })).json(), [{ name: 'a', tag: 'b' }])
  })

  await t.test('two contents for one id at once: exactly one 200 and one 409', async () => {
    const bearer = token('dora')
    for (let id = 0; id < 60; id++) {
      const replies = await Promise.all(
        ['a', 'b'].map((name) => post(port, { id, name }, { token: bearer })),
      )
      assert.deepEqual(replies.map(verdict).sort(), [200, 'idTaken'].sort(), String(id))
    }
    assert.equal((JSON.parse((await call(port, { token: bearer })).text) as unknown[]).length, 60)
  })

  await t.test('the same POST many times at once is one plant', async () => {
    const bearer = token('erna')
    for (let id = 0; id < 10; id++) {
      const replies = await Promise.all(
        Array.from({ length: 8 }, () => post(port, { id, name: 'a' }, { token: bearer })),
      )
      assert.deepEqual(
        replies.map(verdict),
        replies.map(() => 200),
      )
    }
    assert.equal((JSON.parse((await call(port, { token: bearer })).text) as unknown[]).length, 10)
  })
})
