import assert from 'node:assert/strict'
import { generateKeyPairSync, sign } from 'node:crypto'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { PEM, readPair } from '../support/keys.ts'
import { startService } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { until } from '../support/time.ts'
import { AUDIENCE } from '../support/tokens.ts'

const { publicKey, privateKey } = readPair(
  generateKeyPairSync('ec', { namedCurve: 'P-256', ...PEM }),
)
const KEY_SET = JSON.stringify({
  keys: [{ ...publicKey.export({ format: 'jwk' }), kid: 'one', alg: 'ES256', use: 'sig' }],
})

function signed(issuer: string, sub: string): string {
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url')
  const input = `${part({ alg: 'ES256', typ: 'at+jwt', kid: 'one' })}.${part({ iss: issuer, aud: AUDIENCE, sub, exp: Math.floor(Date.now() / 1000) + 600 })}`
  return `${input}.${sign('sha256', Buffer.from(input), { key: privateKey, dsaEncoding: 'ieee-p1363' }).toString('base64url')}`
}

test('keys are discovered from the issuer, and its tokens create and list plants', async (t) => {
  const issuer: string = await serving(t, (req, res) => {
    if (req.url === '/realm/.well-known/openid-configuration')
      res.end(JSON.stringify({ issuer: `${issuer}/realm/`, jwks_uri: `${issuer}/keys` }))
    else if (req.url === '/keys') res.end(KEY_SET)
    else res.writeHead(404).end()
  })
  const { port, adminPort } = await startService(t, {
    issuer: `${issuer}/realm/`,
    keys: { kind: 'discovery' },
  })
  const bearer = signed(`${issuer}/realm/`, 'alice')
  assert.equal((await post(port, { id: 1, name: 'Fern' }, { token: bearer })).status, 200)
  assert.deepEqual((await call(port, { token: bearer })).json(), [{ name: 'Fern' }])
  assert.equal(
    (await call(port, { token: signed(issuer, 'alice') })).status,
    401,
    'another issuer by one slash',
  )
  assert.equal((await call(adminPort, { path: '/readyz' })).status, 200)
})

test('while the issuer cannot be reached a token is 503 with Retry-After and no token 401; readiness says why; both heal by themselves', async (t) => {
  let up = false
  const issuer = await serving(t, (_req, res) => (up ? res.end(KEY_SET) : res.writeHead(500).end()))
  const { port, adminPort } = await startService(t, {
    issuer,
    keys: { kind: 'url', url: `${issuer}/keys` },
  })
  const refused = await call(port, { token: signed(issuer, 'alice') })
  assert.deepEqual(
    [refused.status, refused.json()],
    [
      503,
      {
        error: 50301,
        message: 'The keys that verify tokens are not available: try again later.',
      },
    ],
  )
  assert.match(String(refused.headers['retry-after']), /^[1-9][0-9]*$/)
  assert.equal((await call(port, { token: undefined })).status, 401)
  const ready = await call(adminPort, { path: '/readyz' })
  assert.equal(ready.status, 503)
  assert.match(ready.text, /"keys":"(?!ok)/)
  up = true
  // The background tries again within seconds.
  await until(
    'it is ready',
    async () => (await call(adminPort, { path: '/readyz' })).status === 200,
  )
  assert.equal((await call(port, { token: signed(issuer, 'alice') })).status, 200)
})
