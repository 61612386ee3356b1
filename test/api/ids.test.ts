import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { processorMs } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'

/** Ids, and how a JSON number may write each of them. */
const ACCEPTED: readonly (readonly [id: bigint, ...literals: string[]])[] = [
  [-(2n ** 63n), '-9223372036854775808', '-9223372036854775808.0', '-92233720368547758080e-1'],
  [1n - 2n ** 63n, '-9223372036854775807'],
  [-(10n ** 18n), '-1e18'],
  [-(2n ** 53n) - 1n, '-9007199254740993'],
  [-(2n ** 53n), '-9007199254740992'],
  [-7n, '-7', '-7.000'],
  [0n, '0', '-0', '0e9', '-0.0', '-0.0e-5', '0e999999999999', '0.0e-999999999999'],
  [1n, '1', `1${'0'.repeat(100_000)}e-100000`],
  [7n, '7', '7.0', '7e0', '7E+0', '70e-1', '0.7e1', '0.0000007e7', '0.007E+3', '7e00000'],
  [7n, `7.${'0'.repeat(27)}`, `0.${'0'.repeat(100_000)}7e100001`],
  [120n, '120', '1.20e2'],
  [2n ** 53n - 1n, '9007199254740991'],
  [2n ** 53n, '9007199254740992'],
  [2n ** 53n + 1n, '9007199254740993'],
  [10n ** 18n, '1e18', '1000000000000000000'],
  [2n ** 63n - 2n, '9223372036854775806'],
  [2n ** 63n - 1n, '9223372036854775807', '92233720368547758070e-1', '9.223372036854775807e18'],
]

const REFUSED = [
  ['9223372036854775808', '-9223372036854775809', '18446744073709551616', '1e19', '1e400'],
  ['-1e400', '9223372036854775807.5', '9223372036854775807.0000000000000000001'],
  ['9.2233720368547758071e18', '9007199254740992.5', '0.9999999999999999999', '0.5', '-1.5'],
  ['7.0000000000000000001', '1e-1', '1e-400', '1e999999999999', '1e-999999999999'],
  [`1e${'9'.repeat(1000)}`, `1${'0'.repeat(100_000)}`, '9'.repeat(100_000)],
  [`0.${'9'.repeat(100_000)}`, `0.${'0'.repeat(100_000)}1`],
  ['"7"', 'null', 'true', '[7]', '{"id":7}', '""'],
].flat()

/** Not JSON at all. */
const BROKEN = ['07', '+7', '.7', '7.', '7e', '0x7', 'NaN', 'Infinity', '7n', '- 7', '']

const ROUNDS = THOROUGH ? 60 : 20

test('ids', async (t) => {
  const { port } = await startService(t)

  await t.test('all notations of an integer are one plant; its neighbours are others', async () => {
    for (const [id, ...literals] of ACCEPTED)
      for (const literal of literals) {
        const reply = await post(port, `{"name":"${id}","id":${literal}}`)
        const found = [verdict(reply), reply.text]
        assert.deepEqual(found, [200, `{"name":"${id}"}`], literal.slice(0, 50))
      }
    const ids = [...new Set(ACCEPTED.map(([id]) => id))]
    const plants = ids.map((id) => ({ name: String(id) }))
    assert.deepEqual((await call(port)).json(), plants)
  })

  await t.test('anything but an int64 is refused, and quickly', async () => {
    const refused = async (literals: readonly string[], condition: string) => {
      for (const literal of literals) {
        const reply = await post(port, `{"name":"a","id":${literal}}`)
        assert.equal(verdict(reply), condition, literal.slice(0, 50))
      }
    }
    const took = await processorMs(() => refused(REFUSED, 'idInvalid'))
    assert.ok(took < 10_000, String(took))
    await refused(BROKEN, 'bodyNotJson')
  })

  await t.test('a refusal says what came instead', async () => {
    const id = '"id" is required: an integer from -2^63 to 2^63 - 1, without quotes.'
    const name = '"name" is required and must be a string of valid Unicode.'
    const tag = '"tag" must be a string of valid Unicode; omit it if there is no tag.'
    for (const [plant, message] of [
      ['{"name":"a","id":"7"}', `${id} It is a text.`],
      ['{"name":"a"}', `${id} It is missing.`],
      ['{"name":"a","id":1.5}', id],
      ['{"name":"a","id":null}', id],
      ['{"id":1}', `${name} It is missing.`],
      ['{"id":1,"name":7}', `${name} It is a number.`],
      ['{"id":1,"name":"\\ud800"}', `${name} It is a text that is not valid Unicode.`],
      ['{"id":1,"name":"a","tag":1}', `${tag} It is a number.`],
      ['{"id":1,"name":"a","tag":null}', tag],
    ] as const) {
      // `verdict` of other tests asserts the rest of the form.
      const error = (await post(port, plant)).json() as { readonly message: string }
      assert.equal(error.message, message, plant)
    }
  })

  await t.test('a repeated POST is 200 with the same body; other content is 409', async () => {
    const bearer = { token: token('carol') }
    const first = await post(port, { id: 1, name: 'a', tag: 'b' }, bearer)
    for (const same of [
      '{"tag":"b","name":"a","id":1.0}',
      '{"id":1e0,"name":"\\u0061","tag":"b","x":[]}',
    ]) {
      const again = await post(port, same, bearer)
      assert.deepEqual([verdict(again), again.text], [200, first.text])
    }
    for (const other of [
      { id: 1, name: 'a' },
      { id: 1, name: 'b', tag: 'b' },
      { id: 1, name: 'a', tag: '' },
      { id: 1, name: 'a', tag: 'c' },
    ])
      assert.equal(verdict(await post(port, other, bearer)), 'idTaken')
    assert.deepEqual((await call(port, bearer)).json(), [{ name: 'a', tag: 'b' }])
  })

  for (const [what, rounds, names, verdicts] of [
    ['two contents for one id at once: one 200 and one 409', ROUNDS, 'ab', [200, 'idTaken']],
    ['the same POST many times at once is one plant', 10, 'aaaaaaaa', Array(8).fill(200)],
  ] as const)
    await t.test(what, async () => {
      const bearer = { token: token(names) }
      for (let id = 0; id < rounds; id++) {
        const replies = await Promise.all(
          [...names].map((name) => post(port, { id, name }, bearer)),
        )
        assert.deepEqual(replies.map(verdict).sort(), [...verdicts].sort(), String(id))
      }
      const list = (await call(port, bearer)).json()
      assert.equal(Array.isArray(list) && list.length, rounds)
    })
})
