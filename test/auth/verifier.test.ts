import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'
import type { Caller } from '../../dist/auth/caller.js'
import { readSecrets } from '../../dist/auth/secrets.js'
import { MAX_CACHED_BYTES, TokenCache } from '../../dist/auth/token-cache.js'
import type { KeyPair } from '../support/keys.ts'
import { accepted, base64url, claims, ed25519, fileKeys, fixed, hs256, jwk } from './tokens.ts'
import { type Members, NOW, p256, p384, p521, PatientVerifier, refused, rsa } from './tokens.ts'
import { RULES, SECRET, secretKeys, signed, token, verifier, without } from './tokens.ts'

// What no token can do is in ../api/token-attacks.test.ts. Here is what only a few lines of the
// verifier decide: what it accepts, its bounds, its cache.

/** async, so that a throw and a rejection are the same. */
async function verify(text: string, by: PatientVerifier = verifier()): Promise<Caller> {
  return by.verify(text)
}

function callerOf(payload: Members): Promise<Caller> {
  return verify(hs256(payload))
}

const SIGNERS: Readonly<Record<string, readonly [KeyPair, ...string[]]>> = {
  rsa: [rsa, 'RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512'],
  p256: [p256, 'ES256'],
  p384: [p384, 'ES384'],
  p521: [p521, 'ES512'],
  ed: [ed25519, 'EdDSA', 'Ed25519'],
}

for (const [kid, [{ privateKey }, ...algorithms]] of Object.entries(SIGNERS)) {
  for (const alg of algorithms) {
    test(`signature: ${alg} is accepted, and refused if the payload was changed`, async () => {
      const keys = Object.entries(SIGNERS).map(([kid, [pair]]) => jwk(pair.publicKey, { kid }))
      const by = verifier(fileKeys(...keys))
      const good = signed(alg, privateKey, { kid })
      await accepted(good, by)
      const [header, , tail] = good.split('.')
      await refused(`${header}.${base64url(claims({ sub: 'bob' }))}.${tail}`, 'tokenInvalid', by)
    })
  }
}

test('signature: HS256 is accepted with any kid', async () => {
  for (const kid of [undefined, '', 'whatever', 7]) await accepted(hs256(claims(), { kid }))
})

test('header: typ is absent or that of an access token, in any case', async () => {
  const plain = 'JWT jwt JOSE at+jwt AT+JWT application/at+jwt Application/At+JWT'.split(' ')
  for (const typ of plain) await accepted(hs256(claims(), { typ }))
})

test('header: 4,096 characters are accepted, more are refused', async () => {
  const bytes = JSON.stringify({ alg: 'HS256', x: '' }).length
  const padded = (length: number): string => hs256(claims(), { x: 'x'.repeat(length - bytes) })
  assert.equal(padded(3072).indexOf('.'), 4096)
  await accepted(padded(3072))
  await refused(padded(3073), 'tokenInvalid')
})

test('header: 32 texts are accepted, more are refused', async () => {
  // Besides "alg", "HS256" and "x".
  await accepted(hs256(claims(), { x: Array<string>(29).fill('') }))
  await refused(hs256(claims(), { x: Array<string>(30).fill('') }), 'tokenInvalid')
})

test('exp: after the tolerance a token has expired', async () => {
  await refused(hs256(claims({ exp: NOW - 5 })), 'tokenExpired')
  await accepted(hs256(claims({ exp: NOW - 4 })))
  const exact = verifier(secretKeys(), { clockTolerance: 0 })
  await refused(hs256(claims({ exp: NOW })), 'tokenExpired', exact)
})

test('nbf: at most the tolerance ahead; iat is optional', async () => {
  await accepted(hs256(claims({ nbf: NOW + 5 })))
  await refused(hs256(claims({ nbf: NOW + 6 })), 'tokenUnacceptable')
  await accepted(hs256(without('iat')))
})

test('owner: any text that UTF-8 can encode; its hash is whole', async () => {
  const { owner } = await callerOf(claims({ sub: 'ä\u0000😀' }))
  assert.equal(owner, 'ä\u0000😀')
  const { ownerHash } = await callerOf(claims({ sub: 'abc' }))
  assert.equal(ownerHash, createHash('sha256').update('abc').digest('hex'))
})

/** A good token of this many bytes. */
function tokenOfLength(length: number): string {
  const bare = hs256(claims({ pad: '' }), { x: '' }).length
  const most = Math.floor(((length - bare) * 3) / 4)
  // Base64url skips some lengths: a longer header reaches them.
  const texts = ['', 'x', 'xx'].flatMap((x) =>
    [0, 1, 2, 3].map((fewer) => hs256(claims({ pad: 'x'.repeat(most - fewer) }), { x })),
  )
  return texts.find((text) => text.length === length) ?? assert.fail(`none has ${length} bytes`)
}

test('form: 12,288 bytes are accepted, one more is refused', async () => {
  await accepted(tokenOfLength(12_288))
  await refused(tokenOfLength(12_289), 'tokenInvalid')
})

test('form: header and payload must be JSON objects in UTF-8', async () => {
  const broken = (text: string): Buffer => Buffer.from(text.replace('alice', '\xff'), 'latin1')
  await refused(hs256(broken(JSON.stringify(claims()))), 'tokenInvalid')
  const headers = [broken('{"alg":"HS256","x":"alice"}'), '[]', 'null', '1', '"x"', '{', '{}{}']
  for (const header of [...headers, '[{"alg":"HS256"}]'])
    await refused(token(header, claims(), SECRET, 'HS256'), 'tokenInvalid')
})

test('refusal: the reason quotes nothing of header or payload', async () => {
  for (const part of ['xyzzy', '{"xyzzy":}', '"xyzzy"', '{"alg":"HS256"} xyzzy']) {
    const extension = hs256(claims(), { crit: [part], [part]: 1 })
    for (const text of [token(part, claims(), SECRET, 'HS256'), hs256(part), extension])
      await assert.rejects(verify(text), { message: /^(?!.*xyz)/ })
  }
})

const newKeys = () => readSecrets([SECRET])
const NOBODY: Caller = { owner: '', ownerHash: '', scopes: new Set(), exp: NOW }

test('token cache: a refused token is not cached, and helps no other', async () => {
  const source = secretKeys()
  const by = verifier(source)
  const [expired, forged] = [hs256(claims({ exp: NOW - 60 })), `${hs256().slice(0, -4)}AAAA`]
  await refused(expired, 'tokenExpired', by)
  await refused(forged, 'tokenInvalid', by)
  for (const text of [expired, forged]) assert.equal(source.keys?.verified.get(text, 0), undefined)
  await verify(hs256(), by)
  await refused(`${hs256().slice(0, -4)}AAAA`, 'tokenInvalid', by)
})

test('token cache: a cached token expires at the same second as a new one', async () => {
  let now = NOW
  const by = new PatientVerifier(secretKeys(), RULES, () => now * 1000 + 999)
  const text = hs256(claims({ exp: NOW + 10 }))
  await verify(text, by)
  now = NOW + 9
  assert(!(by.verify(text) instanceof Promise))
  now = NOW + 14
  await accepted(text, by)
  now = NOW + 15
  for (const _ of [1, 2]) await refused(text, 'tokenExpired', by)
})

test('exp: a token that expires while it waits for its key is refused', async () => {
  let now = NOW
  const keys = fixed(newKeys(), async () => void (now = NOW + 15))
  const by = new PatientVerifier(keys, RULES, () => now * 1000)
  await refused(hs256(claims({ exp: NOW + 10 })), 'tokenExpired', by)
  assert.equal(keys.keys.verified.get(hs256(claims({ exp: NOW + 10 })), 0), undefined)
  now = NOW
  await accepted(hs256(claims({ exp: NOW + 11 })), by)
})

test('token cache: new keys invalidate it, even during a verification', async () => {
  const source = fixed(newKeys())
  const by = verifier(source)
  const text = hs256()
  await verify(text, by)
  source.keys = newKeys()
  assert(by.verify(text) instanceof Promise)
  assert.equal(source.keys.verified.get(text, 0), undefined)
  await verify(text, by)
  assert(!(by.verify(text) instanceof Promise))

  const other = hs256(claims({ sub: 'bob' }))
  const first = source.keys
  source.keys = {
    ...newKeys(),
    find(...args) {
      source.keys = newKeys()
      return first.find(...args)
    },
  }
  await by.verify(other)
  assert(by.verify(other) instanceof Promise)
})

test('token cache: of 16 MiB the latest half stays, and a token that is used', () => {
  const cache = new TokenCache()
  const text = (at: number): string => String(at).padStart(1000, 'x')
  for (let at = 0; at < 20_000; at++) {
    cache.add(text(at), NOBODY)
    if (at % 1000 === 0) assert.equal(cache.get(text(0), 0), NOBODY)
  }
  assert.equal(cache.get(text(0), NOW - 1), NOBODY)
  assert.equal(cache.get(text(0), NOW), undefined, 'it has expired')
  const bytes = 1024 + 1000
  const half = Math.floor(MAX_CACHED_BYTES / 2 / bytes)
  for (let at = 20_000 - half + 1; at < 20_000; at++) assert.ok(cache.get(text(at), 0), String(at))
  assert.equal(cache.get(text(20_000 - 2 * half - 2), 0), undefined)
})

test('token cache: texts of a caller take two bytes a character', () => {
  /** The longest token that fits in one half of the cache. */
  const longest = MAX_CACHED_BYTES / 2 - 1024
  for (const [caller, bytes] of [
    [{ ...NOBODY, owner: 'alice' }, 2 * 5],
    [{ ...NOBODY, scopes: new Set(['read', 'write']) }, 2 * 64 + 2 * 9],
  ] as const) {
    for (const more of [0, 1]) {
      const cache = new TokenCache()
      cache.add('first', NOBODY)
      cache.add('x'.repeat(longest - 1024 - 'first'.length - bytes + more), caller)
      // With one byte more, the second began a new half, and the third drops the first.
      cache.add('y'.repeat(longest), NOBODY)
      assert.equal(cache.get('first', 0), more === 0 ? NOBODY : undefined)
    }
  }
})
