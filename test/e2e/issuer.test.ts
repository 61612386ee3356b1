import assert from 'node:assert/strict'
import { test } from 'node:test'
import { claims, jwk, p256, signed } from '../auth/tokens.ts'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { AUDIENCE } from '../support/tokens.ts'

const KEY_SET = JSON.stringify({
  keys: [jwk(p256.publicKey, { kid: 'one', alg: 'ES256', use: 'sig' })],
})

function tokenOf(issuer: string): string {
  const now = Math.floor(Date.now() / 1000)
  const payload = claims({ iss: issuer, aud: AUDIENCE, iat: now, exp: now + 600 })
  return signed('ES256', p256.privateKey, { typ: 'at+jwt', kid: 'one' }, payload)
}

test('issuer: its keys are discovered, and its tokens create and list plants', async (t) => {
  const issuer: string = await serving(t, (req, res) => {
    if (req.url === '/realm/.well-known/openid-configuration')
      res.end(JSON.stringify({ issuer: `${issuer}/realm/`, jwks_uri: `${issuer}/keys` }))
    else if (req.url === '/keys') res.end(KEY_SET)
    else res.writeHead(404).end()
  })
  const { port, adminPort } = await startService(t, {
    issuer: `${issuer}/realm/`,
    jwtSecret: undefined,
  })
  const bearer = tokenOf(`${issuer}/realm/`)
  assert.equal((await post(port, { id: 1, name: 'Fern' }, { token: bearer })).status, 200)
  assert.deepEqual((await call(port, { token: bearer })).json(), [{ name: 'Fern' }])
  // Another issuer by one slash.
  assert.equal((await call(port, { token: tokenOf(issuer) })).status, 401)
  assert.equal((await call(adminPort, { path: '/readyz' })).status, 200)
})
