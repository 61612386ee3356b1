import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { startBare } from '../support/bare.ts'
import { call, post } from '../support/http.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { lengthenTimers } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { assertLast, verdict } from '../support/verdict.ts'
import { answersUntilEnd, CHUNKED, converse, firstAnswer, head } from '../support/wire.ts'
import { JSON_TYPE, postBytes, posting, Wire } from '../support/wire.ts'

/* What Node's parser refuses, and what comes before and after it. Each shape is in framing. */

const GOOD = head('GET', '/plants')
const GARBAGE = 'GARBAGE\r\n\r\n'

/** Bodies whose framing is broken, after headers that are good. */
const BROKEN_CHUNKS: Readonly<Record<string, string>> = {
  'a chunk size that is no number': 'xyz\r\n',
  'a negative chunk size': '-1\r\n',
  'an endless chunk size': `${'f'.repeat(20)}\r\n`,
  'a chunk longer than its size': '1\r\nab\r\n0\r\n\r\n',
  'a chunk extension of 20 KiB': `1;${'x'.repeat(20_000)}\r\na\r\n0\r\n\r\n`,
}

test('parser', async (t) => {
  const { port } = await startService(t)

  for (const [name, broken] of Object.entries(BROKEN_CHUNKS))
    await t.test(`${name}: 400; without a token 401 came before`, async () => {
      const bytes = broken + GOOD
      const answers = await converse(port, posting([CHUNKED]) + bytes)
      assert.deepEqual(answers.map(verdict), ['malformedRequest'])
      const refused = await converse(port, posting([CHUNKED], { token: undefined }) + bytes)
      assert.deepEqual(refused.map(verdict), ['tokenMissing'])
    })

  await t.test('a client that goes on sending after garbage reads the 400', async (inner) => {
    // How long the service waits for a client after its last response.
    lengthenTimers(inner, 1000)
    const wire = await Wire.to(port)
    wire.write(GARBAGE)
    for (let i = 0; i < 10; i++) {
      await sleep(10)
      wire.write('x')
    }
    assertLast(await wire.halfClose().allAnswers(), ['malformedRequest'])
    assert.equal(wire.error, undefined)
  })

  await t.test('garbage after a long list is 400, also if the client has ended', async () => {
    const name = 'x'.repeat(10_000)
    for (let id = 1; id <= 15; id++) await post(port, { id, name }, { token: token('lister') })
    const list = head('GET', '/plants', { token: token('lister') })
    // The client ends at another moment of the list each time.
    for (let i = 0; i < (THOROUGH ? 20 : 5); i++) {
      const answers = await converse(port, list + GARBAGE)
      assert.deepEqual(answers.map(verdict), [200, 'malformedRequest'])
      assert.equal(JSON.parse(answers[0]?.body ?? '').length, 15)
    }
  })

  await t.test('after a request that closes the connection nothing is answered', async () => {
    const late = postBytes({ id: 68, name: 'late' })
    for (const after of [GOOD, GARBAGE, late, '\r\n', 'x'.repeat(300_000)])
      for (const options of [{ lines: ['Connection: close'] }, { version: '1.0' }]) {
        const last = head('GET', '/trees', options)
        assertLast(await answersUntilEnd(port, last + after), ['pathUnknown'])
      }
    assert.ok(!(await call(port)).text.includes('late'))
  })

  await t.test('a good request is answered before the 400 to a broken last one', async () => {
    const first = postBytes({ id: 73, name: 'first' })
    const broken = postBytes({ id: 74, name: 'half' }, { lines: ['Connection: close'] })
    const answers = await converse(port, first + broken.slice(0, -1))
    assert.deepEqual(answers.map(verdict), [200, 'malformedRequest'])
    assert.ok(!(await call(port)).text.includes('half'))
  })

  const twice = Array<string>(2).fill('Expect: 100-continue')
  const odd = ['Expect: a 100-continue', 'Content-Length: 3']
  for (const [first, expected] of [
    [head('GET', '/plants', { lines: ['Expect: 100-continue'] }), 200],
    [head('GET', '/trees', { lines: ['Expect: 100-continue'] }), 'pathUnknown'],
    [head('TRACE', '/plants', { lines: twice }), 'methodUnknown'],
    [head('OPTIONS', '/plants', { version: '1.0', lines: ['Connection: keep-alive'] }), 204],
    [`${head('POST', '/plants', { lines: odd })}abc`, 'expectationFailed'],
  ] as const)
    await t.test(
      `after a ${expected} with which Node closes, requests have no effect`,
      async () => {
        const after = postBytes({ id: 72, name: 'after' }) + GOOD
        assertLast(await converse(port, first + after), [expected])
        assert.ok(!(await call(port)).text.includes('after'))
      },
    )

  await t.test('empty lines before a request are ignored', async () => {
    assert.deepEqual((await converse(port, `\r\n\r\n${GOOD}\r\n${GOOD}`)).map(verdict), [200, 200])
  })

  await t.test('headers just below 16 KiB are accepted; one byte more is 431', async () => {
    // Node counts the target, names and values, and refuses at the limit itself.
    const bearer = `Bearer ${token('alice')}`
    const counted = `X/plantsHostplants.testAuthorization${bearer}`.length
    const sized = (bytes: number) =>
      firstAnswer(port, head('GET', '/plants', { lines: [`X: ${'x'.repeat(bytes - counted)}`] }))
    assert.equal(verdict(await sized(16_383)), 200)
    assert.equal(verdict(await sized(16_384)), 'headersTooLarge')
  })

  const manyLong = Array.from({ length: 400 }, (_, at) => `X-${at}: ${'x'.repeat(50)}`)
  const tooLong = {
    'a long header': head('GET', '/plants', { lines: [`X: ${'x'.repeat(16_384)}`] }),
    'a long target': head('GET', `/plants?${'x'.repeat(16_384)}`),
    'many long headers': head('GET', '/plants', { lines: manyLong }),
    'a long header without an end': `GET / HTTP/1.1\r\nX: ${'x'.repeat(20_000)}`,
    'a header of 2 MB': head('GET', '/plants', { lines: [`X: ${'x'.repeat(2_000_000)}`] }),
  }
  for (const [what, bytes] of Object.entries(tooLong))
    await t.test(`${what}: 431, and the connection closes`, async () => {
      assertLast([await firstAnswer(port, bytes)], ['headersTooLarge'])
      assert.equal(verdict(await firstAnswer(port, GOOD)), 200)
    })

  const withHeaders = (method: string, target: string, count: number): string =>
    head(method, target, { lines: Array<string>(count - 2).fill('a:') })

  await t.test('99 headers are accepted', async () => {
    const answers = await converse(port, withHeaders('GET', '/plants', 99) + GOOD)
    assert.deepEqual(answers.map(verdict), [200, 200])
  })

  for (const count of [100, 101, 127, 128, 129, 500, 3000])
    await t.test(`${count} headers are 431 for any target and method`, async () => {
      for (const bytes of [
        withHeaders('GET', '/plants', count),
        withHeaders('PUT', '/trees', count),
        withHeaders('CONNECT', 'a:1', count),
        withHeaders('POST', '/plants', count) + '{"id":72,"name":"many"}',
        // The parser reads the length that the service may not see.
        `GET /plants HTTP/1.1\r\n${'a:\r\n'.repeat(count)}Content-Length: 1\r\n\r\nx`,
      ])
        assertLast(await converse(port, bytes + GOOD), ['headersTooLarge'])
      assert.ok(!(await call(port)).text.includes('many'))
    })

  await t.test('trailers over 16 KiB are 431, and the plant is not created', async () => {
    const body = '{"id":69,"name":"trailed"}'
    const trailer = `X: ${'x'.repeat(20_000)}`
    const bytes = posting([CHUNKED]) + `1a\r\n${body}\r\n0\r\n${trailer}\r\n\r\n`
    assert.deepEqual((await converse(port, bytes)).map(verdict), ['headersTooLarge'])
    assert.ok(!(await call(port)).text.includes('trailed'))
  })
})

for (const [method, status] of Object.entries({ POST: 408, CHECKOUT: 501 }))
  test(`parser: a broken body after an Upgrade of a ${method} ends at its limit`, async (t) => {
    const { port, plants } = await startBare(t, { timeouts: { requestMs: 300 } })
    const lines = ['Connection: Upgrade', 'Upgrade: websocket', JSON_TYPE, CHUNKED]
    const bytes = `${head(method, '/plants', { lines })}2\r\n{}\r\n0\r\nX: a\0\r\n\r\n`
    const [answer, ...others] = await converse(port, bytes)
    assert.deepEqual([answer?.status, others], [status, []])
    assert.equal(plants.size, 0)
  })
