import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { readSecrets } from '../../dist/auth/secrets.js'
import { CATALOGUE } from '../../dist/errors.js'
import { Overloaded } from '../../dist/limits/budget.js'
import { StoreUnavailable } from '../../dist/plants/store.js'
import { SqljsStore } from '../../dist/store/sqljs/sqljs-store.js'
import { base64url, ed25519, fixed, jwk, keyFile, other256, p256, p384 } from '../auth/tokens.ts'
import { p521, signed, verifier, weak } from '../auth/tokens.ts'
import { tableOf } from '../support/documents.ts'
import { startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { AUDIENCE, ISSUER, SECRET, token } from '../support/tokens.ts'
import { conditions, headerLines, verdict } from '../support/verdict.ts'
import { firstAnswer, head, postBytes } from '../support/wire.ts'

/*
 * scripts/deploy/README.md has a table of refused tokens: the cause that level debug logs,
 * and what to look at. Here tokens are refused for each reason, and the table must have exactly
 * these causes.
 */
const ROWS = tableOf('scripts/deploy/README.md', 'error').map(([error = '', causes = '']) => {
  const texts = [...causes.matchAll(/`([^`]+)`/g)].map(([, text = '']) => text)
  return { error: Number(error), texts }
})

type Line = Readonly<Record<string, unknown>>

const now = Math.floor(Date.now() / 1000)
const CLAIMS = { iss: ISSUER, aud: AUDIENCE, sub: 'alice', exp: now + 60 }
const GOOD = token('alice')
const [HEADER = '', PAYLOAD = '', SIGNATURE = ''] = GOOD.split('.')
const signedText = (payload: string) => signed('HS256', Buffer.from(SECRET), {}, payload)

/** A token, or the whole Authorization headers. */
type Sent = string | readonly string[]

const BY_SECRET: readonly Sent[] = [
  ...[[], ['Authorization: Basic YTpi'], ['Authorization: Bearer a b']],
  ['Authorization: Bearer a', 'Authorization: Bearer a'],
  ...['opaque', 'x'.repeat(12_289), `${'x'.repeat(4097)}.${PAYLOAD}.${SIGNATURE}`, `${GOOD}=`],
  `${HEADER}.${Buffer.from([0xff]).toString('base64url')}.${SIGNATURE}`,
  `${base64url('no JSON')}.${PAYLOAD}.${SIGNATURE}`,
  token('alice', {}, { x5c: Array<string>(33).fill('x') }),
  `${GOOD.slice(0, -8)}AAAAAAAA`,
  ...[{ alg: 'RS256' }, { typ: 'logout+jwt' }, { crit: ['x'], x: 1 }, { b64: false }].map(
    (header) => token('alice', {}, header),
  ),
  ...[
    ...[{ exp: now - 60 }, { exp: undefined }, { nbf: now + 3600 }, { iat: 'yesterday' }],
    ...[{ iss: `${ISSUER}/` }, { aud: 'account' }, { aud: undefined }, { sub: undefined }],
    ...[{ sub: '' }, { scope: 'plants:write' }],
  ].map((claims) => token('alice', claims)),
  signedText('no JSON'),
  signedText(JSON.stringify(CLAIMS).replace(/"exp":\d+/, '"exp":1e400')),
]

const BY_KEY_SET: readonly Sent[] = [
  signed('EdDSA', ed25519.privateKey, {}, CLAIMS),
  signed('ES256', p256.privateKey, { kid: 'three' }, CLAIMS),
  signed('RS256', weak.privateKey, { kid: 'weak' }, CLAIMS),
  signed('ES384', p384.privateKey, { kid: 'broken' }, CLAIMS),
  signed('ES512', p521.privateKey, {}, CLAIMS),
  signed('ES512', p521.privateKey, { kid: 'twin' }, CLAIMS),
]

/** Sends requests to a service; returns the debug lines of their refusals. */
async function refusals(
  t: TestContext,
  options: Parameters<typeof startService>[1],
  tokens: readonly Sent[],
): Promise<readonly Line[]> {
  const { port, logLines } = await startService(t, { logLevel: 'debug', ...options })
  for (const sent of tokens) {
    const by = typeof sent === 'string' ? { token: sent } : { token: undefined, lines: sent }
    const { status } = await firstAnswer(port, head('GET', '/plants', by))
    assert.ok(status >= 400, String(sent))
  }
  // The service's own lines.
  const lines = () => logLines.map((line) => JSON.parse(line) as Line)
  const named = (message: string) => lines().filter((line) => line['message'] === message)
  await until('all are logged', () => named('request').length === tokens.length)
  const refused = named('refused')
  const idAndError = (line: Line): readonly unknown[] => [line['requestId'], line['error']]
  assert.deepEqual(named('request').map(idAndError), refused.map(idAndError))
  for (const { status, error } of named('request'))
    assert.equal(status, Math.floor(Number(error) / 100))
  return refused
}

/** The table's text for a cause; "…" in it fits anything. */
function textOf({ error, cause }: Line): string {
  const fits = (text: string): boolean => {
    const parts = text.split('…').map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
    return new RegExp(`^${parts.join('.+')}$`).test(String(cause))
  }
  const texts = ROWS.filter((row) => row.error === error).flatMap((row) => row.texts)
  return texts.find(fits) ?? assert.fail(`the table has no ${String(error)} ${String(cause)}`)
}

test('refused tokens: the log has error and cause, and the table each of them', async (t) => {
  const path = keyFile(
    jwk(p256.publicKey, { kid: 'one' }),
    jwk(other256.publicKey, { kid: 'two' }),
    jwk(weak.publicKey, { kid: 'weak' }),
    jwk(p384.publicKey, { kid: 'broken', y: jwk(p384.publicKey)['x'] }),
    // Five of one algorithm, two of them with one kid.
    ...['1', '2', '3', 'twin', 'twin'].map((kid, n) => jwk(p521.publicKey, { kid, n })),
  )
  const unreachable = { jwksUrl: 'http://127.0.0.1:1/keys' }
  const found = [
    ...(await refusals(t, { readScope: 'plants:read' }, BY_SECRET)),
    ...(await refusals(t, { audienceClaim: 'azp' }, [token('alice', { azp: 'other' })])),
    ...(await refusals(t, { jwksFile: path }, BY_KEY_SET)),
    ...(await refusals(t, unreachable, BY_KEY_SET.slice(0, 1))),
  ]
  const never = (): Promise<never> => new Promise(() => {})
  const keys = { ...readSecrets([Buffer.alloc(32)]), find: never }
  const busy = verifier(fixed(keys))
  for (let n = 0; n < 512; n++) void busy.verify(GOOD)
  await assert.rejects(Promise.resolve(busy.verify(GOOD)), (error) => {
    assert.ok(error instanceof Overloaded)
    const [value] = CATALOGUE.overloaded
    return found.push({ error: value, cause: error.message }) > 0
  })
  const used = new Set(found.map((line) => `${String(line['error'])} ${textOf(line)}`))
  const inTable = ROWS.flatMap(({ error, texts }) => texts.map((text) => `${error} ${text}`))
  assert.deepEqual([...used].sort(), inTable.sort())
  const listed = ROWS.map(({ error }) => error)
  for (const [name, [error]] of conditions)
    if (/token|scope|authoriz|keys/i.test(name))
      assert.ok(listed.includes(error), `the table has no ${error}`)
})

test('refused requests: the log says why the store does not confirm a plant', async (t) => {
  const { port, logLines } = await startService(t, { logLevel: 'debug' })
  const fail = () => Promise.reject(new StoreUnavailable('the disk is full'))
  t.mock.method(SqljsStore.prototype, 'create', fail)
  const refused = await firstAnswer(port, postBytes({ id: 1, name: 'Fern' }))
  assert.equal(verdict(refused), 'storageUnavailable')
  assert.deepEqual(headerLines(refused, 'retry-after'), ['1'])
  assert.deepEqual(headerLines(refused, 'connection'), ['keep-alive'])
  await until('it is logged', () => logLines.some((line) => line.includes('"status":503')))
  assert.match(logLines.join('\n'), /"refused",.*"error":50302,"cause":"the disk is full"/)
  assert.match(logLines.join('\n'), /"status":503,.*"error":50302,/)
})
