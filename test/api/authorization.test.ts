import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { firstAnswer, head } from '../support/wire.ts'

test('authorization', async (t) => {
  const { port } = await startService(t)
  const good = token('alice')
  const send = (lines: readonly string[], target = '/plants') =>
    firstAnswer(port, head('GET', target, { token: undefined, lines }))
  const create = async (bearer: string | undefined, lines: readonly string[], body = '') =>
    verdict(await firstAnswer(port, head('POST', '/plants', { token: bearer, lines }) + body))
  const challenged = async (lines: readonly string[]) => {
    const answer = await send(lines)
    return [verdict(answer), headerLines(answer, 'www-authenticate').join('|')]
  }
  const MISSING = ['tokenMissing', 'Bearer realm="plants"']
  const MALFORMED = ['authorizationMalformed', 'Bearer realm="plants", error="invalid_request"']
  const INVALID = ['tokenInvalid', 'Bearer realm="plants", error="invalid_token"']

  await t.test('the scheme is case-insensitive, and more than one space may follow', async () => {
    for (const scheme of ['Bearer', 'bearer', 'BEARER', 'bEaReR', 'Bearer  '])
      assert.equal(verdict(await send([`Authorization: ${scheme} ${good}`])), 200, scheme)
    assert.equal(verdict(await send([`AUTHORIZATION:Bearer ${good}  `])), 200)
  })

  await t.test('no token at all: 401 without an error attribute', async () => {
    for (const lines of [
      [],
      ['Authorization:'],
      ['Authorization: Basic YTpi'],
      ['Authorization: Digest a="b"'],
      [`Authorization: ${good}`],
      [`Authorization: Bearerx ${good}`],
      ['Proxy-Authorization: Bearer a'],
      [`X-Authorization: Bearer ${good}`],
      ['Cookie: access_token=a'],
    ]) {
      assert.deepEqual(await challenged(lines), MISSING, lines.join())
    }
  })

  await t.test('a token in the query or in the body is not read', async () => {
    assert.equal(verdict(await send([], `/plants?access_token=${good}`)), 'tokenMissing')
    const body = `access_token=${good}`
    const form = ['Content-Type: application/x-www-form-urlencoded']
    assert.equal(
      await create(undefined, [...form, `Content-Length: ${body.length}`], body),
      'tokenMissing',
    )
  })

  await t.test('Bearer with anything but one token after it: 400', async () => {
    for (const value of [
      'Bearer',
      'Bearer ',
      'bearer',
      `Bearer ${good} x`,
      `Bearer ${good},`,
      `Bearer ${good}, Bearer ${good}`,
      'Bearer "a"',
      'Bearer =',
      'Bearer a=b',
      `Bearer\t${good}`,
      'Bearer é',
      'Bearer a;b',
      `Bearer, ${good}`,
    ]) {
      assert.deepEqual(await challenged([`Authorization: ${value}`]), MALFORMED, value)
    }
    for (const lines of [
      [`Authorization: Bearer ${good}`, `Authorization: Bearer ${good}`],
      [`Authorization: Bearer ${good}`, 'Authorization: Basic YTpi'],
      ['Authorization:', `authorization: Bearer ${good}`],
      ['Authorization: Basic YTpi', 'Authorization: Basic YTpi'],
    ]) {
      assert.deepEqual(await challenged(lines), MALFORMED, lines.join())
    }
  })

  await t.test('a second Authorization is seen after as many headers as can be', async () => {
    // With Host and Authorization these are 99.
    const padding = Array.from({ length: 96 }, () => 'a:')
    assert.deepEqual(
      await challenged([
        `Authorization: Bearer ${good}`,
        ...padding,
        `Authorization: Bearer ${good}`,
      ]),
      MALFORMED,
    )
  })

  await t.test('a well-formed text that is no valid token: 401 with invalid_token', async () => {
    const [head64 = '', payload = '', signature = ''] = good.split('.')
    const other = token('bob').split('.')[1] ?? ''
    for (const value of [
      'a',
      'a.b.c',
      '===a'.slice(3),
      '~',
      `${head64}.${payload}.`,
      `${head64}.${payload}`,
      `${head64}.${other}.${signature}`,
      `${head64}.${payload}.${signature}=`,
      `${good}.${signature}`,
      'x'.repeat(14_000),
      `${Buffer.from('{"alg":"none"}').toString('base64url')}.${payload}.`,
    ]) {
      assert.deepEqual(
        await challenged([`Authorization: Bearer ${value}`]),
        INVALID,
        value.slice(0, 60),
      )
    }
  })

  await t.test(
    'expired, not yet valid, for others, or without an owner: 401 with invalid_token',
    async () => {
      const now = Math.floor(Date.now() / 1000)
      const refused: readonly (readonly [string, string])[] = [
        [token('alice', { exp: now - 60 }), 'tokenExpired'],
        [token('alice', { nbf: now + 3600 }), 'tokenUnacceptable'],
        [token('alice', { aud: 'others' }), 'tokenUnacceptable'],
        [token('alice', { aud: undefined }), 'tokenUnacceptable'],
        [token('alice', { iss: 'https://others.test' }), 'tokenUnacceptable'],
        [token('alice', { exp: undefined }), 'tokenUnacceptable'],
        [token(undefined), 'tokenUnacceptable'],
        [token(''), 'tokenUnacceptable'],
        [token('\ud800'), 'tokenUnacceptable'],
        [token('alice', { sub: 7 }), 'tokenUnacceptable'],
      ]
      for (const [value, condition] of refused) {
        for (const method of ['GET', 'POST', 'HEAD']) {
          const answer = await firstAnswer(
            port,
            head(method, '/plants', { token: value }),
            method === 'HEAD' ? [0] : [],
          )
          assert.equal(answer.status, 401)
          if (method !== 'HEAD') assert.equal(verdict(answer), condition)
          assert.deepEqual(headerLines(answer, 'www-authenticate'), [
            'Bearer realm="plants", error="invalid_token"',
          ])
        }
      }
    },
  )
  await t.test(
    'the token is checked before expectation, type, size, JSON and parameters',
    async () => {
      const wrong = [
        'Expect: a-miracle',
        'Content-Type: text/plain',
        'Content-Encoding: gzip',
        'Content-Length: 5',
      ]
      const huge = ['Content-Type: text/plain', 'Content-Length: 99999999']
      assert.equal(await create(undefined, wrong, 'abcde'), 'tokenMissing')
      assert.equal(await create(good, wrong, 'abcde'), 'expectationFailed')
      assert.equal(await create(good, wrong.slice(1), 'abcde'), 'mediaTypeUnsupported')
      assert.equal(await create(good, huge), 'mediaTypeUnsupported')
      const strange = async (options: Parameters<typeof call>[1]) =>
        verdict(await call(port, { token: undefined, ...options }))
      assert.equal(await strange({ path: '/plants?limit=x' }), 'tokenMissing')
      assert.equal(await strange({ path: '/trees' }), 'pathUnknown')
      assert.equal(await strange({ method: 'DELETE' }), 'methodNotAllowed')
    },
  )

  await t.test('neither a token nor a plant is in the log', async () => {
    const logged = await startService(t, { logLevel: 'debug' })
    const secret = token('alice', { scope: 'xyzzy' })
    await post(logged.port, { id: 1, name: 'secret plant' }, { token: secret })
    await post(logged.port, { id: 1, name: 'other plant' }, { token: secret })
    await call(logged.port, { token: `${secret}x` })
    await call(logged.port, { token: token('alice', { aud: 'xyzzy' }) })
    await logged.close()
    const text = logged.logLines.join('\n')
    assert.ok(logged.logLines.length >= 4)
    for (const part of [
      ...secret.split('.').slice(1),
      'secret plant',
      'other plant',
      'xyzzy',
      '"alice"',
    ])
      assert.ok(!text.includes(part), part)
  })
})
