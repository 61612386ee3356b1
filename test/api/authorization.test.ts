import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { firstAnswer, head } from '../support/wire.ts'

const MISSING = ['tokenMissing', 'Bearer realm="plants"']
const MALFORMED = ['authorizationMalformed', 'Bearer realm="plants", error="invalid_request"']

test('authorization', async (t) => {
  const { port } = await startService(t)
  const good = token('alice')
  const send = (lines: readonly string[], target = '/plants') =>
    firstAnswer(port, head('GET', target, { token: undefined, lines }))
  const create = async (bearer: string | undefined, lines: readonly string[], body = '') =>
    verdict(await firstAnswer(port, head('POST', '/plants', { token: bearer, lines }) + body))
  const assertChallenged = async (lines: readonly string[], expected: readonly string[]) => {
    const answer = await send(lines)
    const challenge = headerLines(answer, 'www-authenticate').join('|')
    assert.deepEqual([verdict(answer), challenge], expected, lines.join().slice(0, 200))
  }

  await t.test('no token at all: 401 without an error attribute', async () => {
    const schemes = ['Bearerx', 'Bearer.x', 'xBearer', ',']
    const others = schemes.map((scheme) => ` ${scheme} ${good}`)
    const values = ['', ' Basic YTpi', ' Digest a="b"', ` ${good}`, ...others]
    await assertChallenged([], MISSING)
    for (const line of [
      ...values.map((value) => `Authorization:${value}`),
      'Proxy-Authorization: Bearer a',
      `X-Authorization: Bearer ${good}`,
      'Cookie: access_token=a',
    ])
      await assertChallenged([line], MISSING)
  })

  await t.test('a token in the query or in the body is not read', async () => {
    assert.equal(verdict(await send([], `/plants?access_token=${good}`)), 'tokenMissing')
    const body = `access_token=${good}`
    const form = ['Content-Type: application/x-www-form-urlencoded']
    const lines = [...form, `Content-Length: ${body.length}`]
    assert.equal(await create(undefined, lines, body), 'tokenMissing')
  })

  await t.test('Bearer with anything but one token after it: 400', async () => {
    for (const value of [
      ['Bearer', 'Bearer ', 'bearer', `Bearer ${good} x`, `Bearer ${good},`, `Bearer, ${good}`],
      [`Bearer ${good}, Bearer ${good}`, `Bearer\t${good}`],
      ['Bearer "a"', 'Bearer =', 'Bearer a=b', 'Bearer é', 'Bearer a;b', 'Bearer:a', 'Bearer/a'],
    ].flat())
      await assertChallenged([`Authorization: ${value}`], MALFORMED)
  })

  await t.test('a token is read after Bearer in any case and any number of blanks', async () => {
    for (const start of ['Bearer', 'bearer', 'BEARER  ', `Bearer${' '.repeat(15_000)}`])
      assert.equal(verdict(await send([`Authorization: ${start} ${good}`])), 200)
    // Each character that a token may have (RFC 6750 §2.1); it is none of ours.
    const invalid = ['tokenInvalid', 'Bearer realm="plants", error="invalid_token"']
    await assertChallenged(['Authorization: Bearer a.b-c_~+/=='], invalid)
  })

  await t.test('two Authorization headers: 400, also after as many as can be', async () => {
    const [bearer, basic] = [`Authorization: Bearer ${good}`, 'Authorization: Basic YTpi']
    // With Host and Authorization these are 99.
    const padding = Array<string>(96).fill('a:')
    for (const lines of [
      [bearer, bearer],
      [bearer, basic],
      ['Authorization:', `authorization: Bearer ${good}`],
      [basic, basic],
      [bearer, ...padding, bearer],
    ])
      await assertChallenged(lines, MALFORMED)
  })

  await t.test('the token is checked before all that follows it, and after the path', async () => {
    const wrong = ['Expect: a-miracle', 'Content-Type: text/plain', 'Content-Encoding: gzip']
    const lines = [...wrong, 'Content-Length: 5']
    const huge = ['Content-Type: text/plain', 'Content-Length: 99999999']
    assert.equal(await create(undefined, lines, 'abcde'), 'tokenMissing')
    assert.equal(await create(good, lines, 'abcde'), 'expectationFailed')
    assert.equal(await create(good, lines.slice(1), 'abcde'), 'mediaTypeUnsupported')
    assert.equal(await create(good, huge), 'mediaTypeUnsupported')
    for (const [options, expected] of [
      [{ path: '/plants?limit=x' }, 'tokenMissing'],
      [{ path: '/trees' }, 'pathUnknown'],
      [{ method: 'DELETE' }, 'methodNotAllowed'],
    ] as const)
      assert.equal(verdict(await call(port, { token: undefined, ...options })), expected)
  })

  await t.test('neither a token nor a plant is in the log', async () => {
    const logged = await startService(t, { logLevel: 'debug' })
    const secret = token('alice', { scope: 'xyzzy' })
    for (const name of ['secret plant', 'other plant'])
      await post(logged.port, { id: 1, name }, { token: secret })
    for (const bad of [`${secret}x`, token('alice', { aud: 'xyzzy' })])
      await call(logged.port, { token: bad })
    await logged.close()
    assert.ok(logged.logLines.length >= 4)
    const parts = ['secret plant', 'other plant', 'xyzzy', '"alice"', ...secret.split('.').slice(1)]
    for (const part of parts) assert.ok(!logged.logLines.join('\n').includes(part), part)
  })
})
