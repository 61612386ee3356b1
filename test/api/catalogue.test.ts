import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Condition, conditions } from '../../dist/errors.js'
import { StoreUnavailable } from '../../dist/plants/store.js'
import { SqljsStore } from '../../dist/store/sqljs/store.js'
import { startBare } from '../support/bare.ts'
import { answerUnderLoad } from '../support/overload.ts'
import { startService } from '../support/service.ts'
import { stopClock } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import {
  answersToHalf,
  firstAnswer,
  head,
  postBytes,
  Wire,
  type WireAnswer,
} from '../support/wire.ts'

interface Case {
  readonly answer: () => Promise<WireAnswer>
  /** Expected values of headers in SPECIAL, exact or by pattern. */
  readonly headers?: Readonly<Record<string, string | RegExp>>
  /** True if the connection closes after the response. */
  readonly closes?: boolean
}

/** Headers of some errors only: a case that does not name one requires that it is absent. */
const SPECIAL = ['www-authenticate', 'allow', 'retry-after', 'accept-encoding', 'link'] as const
const REALM = 'Bearer realm="plants"'
const WHOLE_SECONDS = /^[1-9][0-9]*$/

test('catalogue: every error has its status, value, message and headers', async (t) => {
  const scoped = await startService(t, {
    readScope: 'plants:read',
    writeScope: 'plants:write',
    maxBodyBytes: 1000,
  })
  const port = scoped.port
  const good = token('alice', { scope: 'plants:read plants:write' })
  const get = (target: string, lines: readonly string[] = []) =>
    firstAnswer(port, head('GET', target, { token: good, lines }))
  const post = (body: unknown, lines: readonly string[] = []) =>
    firstAnswer(port, postBytes(body, { token: good, lines }))
  const bad = (claims: Readonly<Record<string, unknown>>) =>
    firstAnswer(port, head('GET', '/plants', { token: token('alice', claims) }))
  const typedHead = (lines: readonly string[]) => head('POST', '/plants', { token: good, lines })
  const typed = (lines: readonly string[]) =>
    firstAnswer(port, `${typedHead([...lines, 'Content-Length: 2'])}{}`)

  const cases: Readonly<Record<Condition, Case>> = {
    malformedRequest: { answer: () => firstAnswer(port, 'GARBAGE\r\n\r\n'), closes: true },
    hostInvalid: {
      answer: () => firstAnswer(port, head('GET', '/plants', { token: good, host: undefined })),
    },
    authorizationMalformed: {
      answer: () => firstAnswer(port, head('GET', '/plants', { token: 'a,b' })),
      headers: { 'www-authenticate': `${REALM}, error="invalid_request"` },
    },
    contentTypeRepeated: {
      answer: () => typed(['Content-Type: application/json', 'Content-Type: application/json']),
    },
    bodyNotUtf8: {
      answer: () =>
        firstAnswer(
          port,
          typedHead(['Content-Type: application/json', 'Content-Length: 1']) + '\xff',
        ),
    },
    bodyNotJson: { answer: () => post('[]') },
    memberRepeated: { answer: () => post('{"id":1,"name":"a","name":"a"}') },
    nameInvalid: { answer: () => post({ id: 1 }) },
    idInvalid: { answer: () => post({ name: 'a' }) },
    tagInvalid: { answer: () => post({ id: 1, name: 'a', tag: null }) },
    limitInvalid: { answer: () => get('/plants?limit=-1') },
    afterInvalid: { answer: () => get('/plants?after=') },
    tokenMissing: {
      answer: () => firstAnswer(port, head('GET', '/plants', { token: undefined })),
      headers: { 'www-authenticate': REALM },
    },
    tokenInvalid: {
      answer: () => firstAnswer(port, head('GET', '/plants', { token: 'abc' })),
      headers: { 'www-authenticate': `${REALM}, error="invalid_token"` },
    },
    tokenExpired: {
      answer: () => bad({ exp: 1_000_000 }),
      headers: { 'www-authenticate': `${REALM}, error="invalid_token"` },
    },
    tokenUnacceptable: {
      answer: () => bad({ aud: 'others' }),
      headers: { 'www-authenticate': `${REALM}, error="invalid_token"` },
    },
    scopeMissing: {
      answer: () => bad({ scope: 'plants:write' }),
      headers: { 'www-authenticate': `${REALM}, error="insufficient_scope", scope="plants:read"` },
    },
    pathUnknown: { answer: () => get('/trees') },
    methodNotAllowed: {
      answer: () => firstAnswer(port, head('DELETE', '/plants', { token: good })),
      headers: { allow: 'GET, HEAD, POST, OPTIONS' },
    },
    requestTimeout: {
      answer: async () => {
        const bare = await startBare(t, { timeouts: { headersMs: 100 } })
        return (
          (
            await answersToHalf(bare.port, (wire) => void wire.write('GET /plants HTTP/1.1\r\n'))
          )[0] ?? assert.fail()
        )
      },
      closes: true,
    },
    idTaken: {
      answer: async () => {
        await post({ id: 5, name: 'a' })
        return post({ id: 5, name: 'b' })
      },
    },
    bodyTooLarge: { answer: () => post({ id: 1, name: 'x'.repeat(1000) }), closes: true },
    mediaTypeUnsupported: { answer: () => typed(['Content-Type: text/plain']) },
    contentEncodingUnsupported: {
      answer: () => typed(['Content-Type: application/json', 'Content-Encoding: gzip']),
      headers: { 'accept-encoding': 'identity' },
    },
    expectationFailed: { answer: () => get('/plants', ['Expect: a-miracle']) },
    rateLimited: {
      answer: async () => {
        const limited = await startService(t, { rateLimit: 1 })
        const wire = await Wire.to(limited.port)
        // Both requests in one second.
        const clock = stopClock(t)
        const answers = await wire.write(head('GET', '/plants') + head('GET', '/plants')).answers(2)
        clock.restore()
        wire.destroy()
        return answers[1] ?? assert.fail()
      },
      headers: { 'retry-after': WHOLE_SECONDS },
    },
    headersTooLarge: { answer: () => get('/plants', [`X: ${'x'.repeat(20_000)}`]), closes: true },
    internal: {
      answer: async () => {
        const mocked = t.mock.method(SqljsStore.prototype, 'list', () => {
          throw new Error('a secret of the inside')
        })
        const answer = await get('/plants')
        mocked.mock.restore()
        assert.ok(!answer.body.includes('secret'))
        return answer
      },
    },
    methodUnknown: { answer: () => firstAnswer(port, head('TRACE', '/plants', { token: good })) },
    keysUnavailable: {
      answer: async () => {
        // Nothing listens on port 1.
        const keyless = await startService(t, {
          keys: { kind: 'url', url: 'http://127.0.0.1:1/keys' },
        })
        return firstAnswer(
          keyless.port,
          head('GET', '/plants', { token: token('alice', {}, { alg: 'RS256', kid: 'a' }) }),
        )
      },
      headers: { 'retry-after': WHOLE_SECONDS },
    },
    storageUnavailable: {
      answer: async () => {
        const mocked = t.mock.method(SqljsStore.prototype, 'create', () =>
          Promise.reject(new StoreUnavailable('a secret of the inside')),
        )
        const answer = await post({ id: 6, name: 'a' })
        mocked.mock.restore()
        assert.ok(!answer.body.includes('secret'))
        return answer
      },
      headers: { 'retry-after': WHOLE_SECONDS },
    },
    overloaded: {
      answer: () =>
        answerUnderLoad(t, (loaded) => firstAnswer(loaded, postBytes({ id: 1, name: 'a' }))),
      headers: { 'retry-after': WHOLE_SECONDS },
    },
    storageFull: {
      answer: async () => {
        const full = await startService(t, { maxDataBytes: 65_536 })
        for (let id = 0; ; id++) {
          const answer = await firstAnswer(full.port, postBytes({ id, name: 'x'.repeat(10_000) }))
          if (answer.status !== 200) return answer
          assert.ok(id < 7)
        }
      },
    },
  }

  assert.deepEqual(
    Object.keys(cases).sort(),
    [...conditions.keys()].sort(),
    'every entry of the catalogue has a case',
  )
  for (const [condition, { answer, headers = {}, closes = false }] of Object.entries(cases)) {
    await t.test(condition, async () => {
      const found = await answer()
      assert.equal(verdict(found), condition)
      assert.equal(found.version, '1.1')
      assert.deepEqual(headerLines(found, 'connection'), [closes ? 'close' : 'keep-alive'])
      assert.deepEqual(headerLines(found, 'content-length'), [String(found.body.length)])
      for (const name of SPECIAL) {
        const expected = headers[name]
        const lines = headerLines(found, name)
        assert.equal(lines.length, expected === undefined ? 0 : 1, name)
        if (expected instanceof RegExp) assert.match(lines[0] ?? '', expected)
        else if (expected !== undefined) assert.equal(lines[0], expected)
      }
    })
  }
})

test('catalogue: values are unique int32 numbers that begin with the status', () => {
  const values = [...conditions.values()].map(([error]) => error)
  assert.equal(new Set(values).size, values.length)
  for (const value of values)
    assert.ok(Number.isInteger(value) && value >= 40_001 && value < 60_000, String(value))
})

test("catalogue: Request-Id is the client's if it is usable, else a new one", async (t) => {
  const { port } = await startService(t)
  const idFor = async (lines: readonly string[]) =>
    headerLines(await firstAnswer(port, head('GET', '/plants', { lines })), 'request-id')[0] ?? ''
  for (const id of ['a', '!"#~', 'x'.repeat(128)])
    assert.equal(await idFor([`Request-Id: ${id}`]), id)
  const fresh = /^[\w-]{22}$/
  for (const lines of [
    [],
    ['Request-Id:'],
    ['Request-Id: a b'],
    [`Request-Id: ${'x'.repeat(129)}`],
    ['Request-Id: \xe9'],
    ['Request-Id: a', 'Request-Id: a'],
  ]) {
    assert.match(await idFor(lines), fresh, lines.join())
  }
  assert.notEqual(await idFor([]), await idFor([]))
  for (const bytes of [
    head('GET', '/plants', { version: '2.0', lines: ['Request-Id: mine'] }),
    head('CONNECT', 'plants.test:443', { lines: ['Request-Id: mine'] }),
    head('POST', '/plants', {
      lines: ['Request-Id: mine', 'Content-Type: application/json', 'Content-Length: 9999999'],
    }),
  ]) {
    assert.deepEqual(
      headerLines(await firstAnswer(port, bytes), 'request-id'),
      ['mine'],
      bytes.slice(0, 10),
    )
  }
})
