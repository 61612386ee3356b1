import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Caller, TokenRules } from '../../dist/auth/caller.js'
import type { Keys, KeySource } from '../../dist/auth/key-source.js'
import { MAX_CACHED_BYTES, MAX_ENTRIES, TokenCache } from '../../dist/auth/token-cache.js'
import type { KeyPair } from '../support/keys.ts'
import { seeded } from '../support/random.ts'
import {
  accepted,
  AUDIENCE,
  base64url,
  claims,
  ed25519,
  fileKeys,
  hs256,
  ISSUER,
  jwk,
  type Members,
  NOW,
  p256,
  p384,
  p521,
  PatientVerifier,
  refused,
  rsa,
  rsa2,
  RULES,
  SECRET,
  secretKeys,
  signature,
  signed,
  token,
  verifier,
  without,
} from './tokens.ts'

/** async, so that a throw and a rejection are the same. */
async function verify(text: string, by: PatientVerifier = verifier()): Promise<Caller> {
  return by.verify(text)
}

async function ownerOf(
  payload: Members | string,
  rules: Partial<TokenRules> = {},
): Promise<string> {
  return (await verify(hs256(payload), verifier(secretKeys(), rules))).owner
}

const SIGNERS: readonly (readonly [alg: string, pair: KeyPair])[] = [
  ['RS256', rsa],
  ['RS384', rsa],
  ['RS512', rsa],
  ['PS256', rsa],
  ['PS384', rsa],
  ['PS512', rsa],
  ['ES256', p256],
  ['ES384', p384],
  ['ES512', p521],
  ['EdDSA', ed25519],
  ['Ed25519', ed25519],
]

for (const [alg, { publicKey, privateKey }] of SIGNERS) {
  test(`signature: ${alg} is accepted, and refused if the payload was changed`, async () => {
    const by = verifier(fileKeys(jwk(publicKey, { kid: 'one' })))
    const good = signed(alg, privateKey, { kid: 'one' })
    await accepted(good, by)
    const [header, , tail] = good.split('.')
    await refused(`${header}.${base64url(claims({ sub: 'bob' }))}.${tail}`, 'tokenInvalid', by)
  })
}

test('signature: HS256 is accepted with any kid, and refused with another secret', async () => {
  await accepted(hs256())
  await accepted(hs256(claims(), { kid: 'whatever' }))
  await refused(signed('HS256', Buffer.alloc(32, 8)), 'tokenInvalid')
})

test('signature: HS384 and HS512 with the secret are refused', async () => {
  for (const alg of ['HS384', 'HS512']) await refused(signed(alg, SECRET), 'tokenInvalid')
})

test('signature: HS256 with the text of the public key is refused', async () => {
  const by = verifier(fileKeys(jwk(rsa.publicKey, { kid: 'one' })))
  const pem = rsa.publicKey.export({ type: 'spki', format: 'pem' })
  const der = rsa.publicKey.export({ type: 'spki', format: 'der' })
  for (const text of [pem, String(pem).trim(), der, JSON.stringify(jwk(rsa.publicKey))]) {
    await refused(signed('HS256', Buffer.from(text), { kid: 'one' }), 'tokenInvalid', by)
  }
})

test('signature: an unsigned token is refused in every spelling of alg', async () => {
  const by = [verifier(), verifier(fileKeys(jwk(rsa.publicKey)))]
  const spellings = [
    'none',
    'None',
    'NONE',
    'nOnE',
    'none ',
    '',
    null,
    undefined,
    0,
    ['none'],
    ['HS256'],
    'toString',
  ]
  for (const alg of spellings) {
    const head = `${base64url({ alg })}.${base64url(claims())}`
    for (const one of by) {
      await refused(`${head}.`, 'tokenInvalid', one)
      await refused(`${head}.AA`, 'tokenInvalid', one)
      await refused(`${head}.${signature('HS256', head, SECRET)}`, 'tokenInvalid', one)
    }
  }
})

test('header: a key in the token itself is never used', async () => {
  const by = verifier(fileKeys(jwk(rsa.publicKey, { kid: 'one' })))
  const more = {
    jwk: jwk(rsa2.publicKey),
    jku: 'https://evil.example/',
    x5u: 'https://evil.example/',
    x5c: ['AA=='],
  }
  await refused(signed('RS256', rsa2.privateKey, more), 'tokenInvalid', by)
  await refused(signed('RS256', rsa2.privateKey, { kid: 'one', ...more }), 'tokenInvalid', by)
})

test('header: the kid selects the key; an unknown or malformed kid is refused', async () => {
  const by = verifier(
    fileKeys(jwk(rsa.publicKey, { kid: 'one' }), jwk(rsa2.publicKey, { kid: 'two' })),
  )
  await accepted(signed('RS256', rsa2.privateKey, { kid: 'two' }), by)
  for (const kid of ['one', 'three', '', null, 2, ['two'], { kid: 'two' }]) {
    await refused(signed('RS256', rsa2.privateKey, { kid }), 'tokenInvalid', by)
  }
})

test('header: without a kid, exactly one key must fit the algorithm', async () => {
  const bare = signed('RS256', rsa.privateKey)
  const [one, two] = [jwk(rsa.publicKey, { kid: 'one' }), jwk(rsa2.publicKey, { kid: 'two' })]
  const others = [jwk(p256.publicKey, { kid: 'three' }), { ...two, alg: 'PS256' }]
  await accepted(bare, verifier(fileKeys(one, ...others)))
  await refused(bare, 'tokenInvalid', verifier(fileKeys(jwk(p256.publicKey))))
  await refused(bare, 'tokenInvalid', verifier(fileKeys(one, two)))
  await accepted(bare, verifier(fileKeys(jwk(rsa.publicKey), jwk(rsa.publicKey))))
})

test('signature: a key verifies only the algorithm that it names', async () => {
  const by = verifier(fileKeys(jwk(rsa.publicKey, { kid: 'one', alg: 'PS256' })))
  await accepted(signed('PS256', rsa.privateKey, { kid: 'one' }), by)
  await refused(signed('RS256', rsa.privateKey, { kid: 'one' }), 'tokenInvalid', by)
})

test('exp: required, a finite number, and expired after the tolerance', async () => {
  await refused(hs256(claims({ exp: NOW - 5 })), 'tokenExpired')
  assert.equal(await ownerOf(claims({ exp: NOW - 4 })), 'alice')
  await refused(
    hs256(claims({ exp: NOW })),
    'tokenExpired',
    verifier(secretKeys(), { clockTolerance: 0 }),
  )
  await refused(hs256(without('exp')), 'tokenUnacceptable')
  for (const exp of [String(NOW + 60), null, [NOW + 60], true])
    await refused(hs256(claims({ exp })), 'tokenUnacceptable')
  await refused(
    hs256(JSON.stringify(claims()).replace(/"exp":\d+/, '"exp":1e400')),
    'tokenUnacceptable',
  )
  await refused(
    hs256(JSON.stringify(claims()).replace(/"exp":\d+/, '"exp":-1e400')),
    'tokenExpired',
  )
})

test('nbf: a number, at most the tolerance ahead; iat: a number', async () => {
  assert.equal(await ownerOf(claims({ nbf: NOW + 5 })), 'alice')
  await refused(hs256(claims({ nbf: NOW + 6 })), 'tokenUnacceptable')
  for (const value of ['0', null, {}]) {
    await refused(hs256(claims({ nbf: value })), 'tokenUnacceptable')
    await refused(hs256(claims({ iat: value })), 'tokenUnacceptable')
  }
  assert.equal(await ownerOf(without('iat')), 'alice')
})

test('iss: required, and equal to the issuer byte for byte', async () => {
  await refused(hs256(without('iss')), 'tokenUnacceptable')
  for (const iss of [ISSUER.slice(0, -1), `${ISSUER}/`, ISSUER.toUpperCase(), '', null, [ISSUER]]) {
    await refused(hs256(claims({ iss })), 'tokenUnacceptable')
  }
})

test('aud: required, the audience or a list that holds it', async () => {
  assert.equal(await ownerOf(claims({ aud: ['other', AUDIENCE] })), 'alice')
  await refused(hs256(without('aud')), 'tokenUnacceptable')
  for (const aud of [
    'other',
    `${AUDIENCE} `,
    '',
    null,
    [],
    ['other'],
    [[AUDIENCE]],
    { [AUDIENCE]: AUDIENCE },
  ]) {
    await refused(hs256(claims({ aud })), 'tokenUnacceptable')
  }
})

test('aud: only the configured claim is read', async () => {
  const rules = { audienceClaim: 'client_id' }
  const by = verifier(secretKeys(), rules)
  assert.equal(await ownerOf({ ...without('aud'), client_id: AUDIENCE }, rules), 'alice')
  assert.equal(await ownerOf(claims({ aud: 'other', client_id: ['x', AUDIENCE] }), rules), 'alice')
  await refused(hs256(), 'tokenUnacceptable', by)
  for (const id of ['other', null, ['other'], [[AUDIENCE]], { [AUDIENCE]: 1 }]) {
    await refused(hs256(claims({ client_id: id })), 'tokenUnacceptable', by)
  }
})

test('owner: a non-empty string that UTF-8 can encode', async () => {
  assert.equal(await ownerOf(claims({ sub: 'ä\u0000😀' })), 'ä\u0000😀')
  await refused(hs256(without('sub')), 'tokenUnacceptable')
  for (const sub of ['', 7, null, true, ['alice'], { a: 1 }, '\ud800', 'a\udc00b']) {
    await refused(hs256(claims({ sub })), 'tokenUnacceptable')
  }
})

test('owner: read from the configured claim', async () => {
  assert.equal(await ownerOf(claims({ tenant: 'acme' }), { ownerClaim: 'tenant' }), 'acme')
  await refused(hs256(), 'tokenUnacceptable', verifier(secretKeys(), { ownerClaim: 'tenant' }))
})

test('claims: a name with dots is a claim, or else the path to one through objects', async () => {
  const nested = { tenant: { id: 'acme', 'a.b': 'other', list: ['x'] }, api: { for: [AUDIENCE] } }
  const of = (rules: object, more: Members = {}) => ownerOf(claims({ ...nested, ...more }), rules)
  assert.equal(await of({ ownerClaim: 'tenant.id', audienceClaim: 'api.for' }), 'acme')
  const whole = { 'tenant.id': 'whole', 'https://x.test/roles': ['a'] }
  assert.equal(await of({ ownerClaim: 'tenant.id' }, whole), 'whole')
  const keycloak = claims({ ...whole, realm_access: { roles: ['reader'] } })
  for (const [scopeClaim, scopes] of [
    ['realm_access.roles', ['reader']],
    ['https://x.test/roles', ['a']],
    ['realm_access', []],
    ['realm_access.roles.0', []],
    ['realm_access.roles.length', []],
    ['sub.length', []],
    ['realm_access.constructor.name', []],
  ] as const) {
    const caller = await verify(hs256(keycloak), verifier(secretKeys(), { scopeClaim }))
    assert.deepEqual([...caller.scopes], scopes, scopeClaim)
  }
  await assert.rejects(of({ ownerClaim: 'tenant.id' }, { 'tenant.id': null }))
  for (const ownerClaim of ['tenant.list.0', 'tenant.x', 'x.id', 'tenant.a.b', 'tenant.', '.sub'])
    await assert.rejects(of({ ownerClaim }), {
      condition: 'tokenUnacceptable',
      cause: `missing required "${ownerClaim}" claim`,
    })
  await assert.rejects(of({ audienceClaim: 'api.none' }), { condition: 'tokenUnacceptable' })
  await assert.rejects(of({ audienceClaim: 'tenant.id' }), { condition: 'tokenUnacceptable' })
})

for (const name of ['constructor', '__proto__', 'toString', 'hasOwnProperty']) {
  test(`claims: one named ${name} is never inherited`, async () => {
    const own = JSON.stringify(claims()).replace('}', `,"${name}":"${AUDIENCE}"}`)
    assert.equal(await ownerOf(own, { ownerClaim: name, audienceClaim: name }), AUDIENCE)
    await refused(hs256(), 'tokenUnacceptable', verifier(secretKeys(), { ownerClaim: name }))
    await refused(hs256(), 'tokenUnacceptable', verifier(secretKeys(), { audienceClaim: name }))
    const { scopes } = await verify(hs256(), verifier(secretKeys(), { scopeClaim: name }))
    assert.deepEqual(scopes, new Set())
  })
}

test('header: any crit is refused', async () => {
  for (const crit of [['x'], [], 'exp', ['exp'], null, ['__proto__'], [''], ['alg']]) {
    await refused(hs256(claims(), { crit, x: 1, exp: NOW + 60 }), 'tokenInvalid')
  }
})

test('header: an unencoded payload is refused, listed in crit or not', async () => {
  await refused(hs256(claims(), { b64: false, crit: ['b64'] }), 'tokenInvalid')
  await refused(hs256(claims(), { b64: false }), 'tokenInvalid')
  await refused(hs256(claims(), { b64: 'false' }), 'tokenInvalid')
  const head = base64url({ alg: 'HS256', b64: false, crit: ['b64'] })
  const input = `${head}.${JSON.stringify(claims())}`
  await refused(`${input}.${signature('HS256', input, SECRET)}`, 'tokenInvalid')
})

test('form: padding, spaces, another alphabet and unused bits are refused', async () => {
  // Payloads of all lengths modulo 3: each ends in another number of unused bits.
  for (const sub of ['alice', 'alicea', 'aliceab']) {
    const good = hs256(claims({ sub }))
    assert.equal((await verify(good)).owner, sub)
    const parts = good.split('.')
    for (const [index, part] of parts.entries()) {
      const bad = [
        '',
        ` ${part}`,
        ...['=', '==', ' ', '\n', 'A', '+', '/', 'ä'].map((tail) => part + tail),
      ]
      const last = part.at(-1) ?? ''
      const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
      const twin = alphabet[alphabet.indexOf(last) + 1] ?? ''
      if (part.length % 4 !== 0) bad.push(part.slice(0, -1) + twin)
      for (const one of bad) await refused(parts.with(index, one).join('.'), 'tokenInvalid')
    }
  }
})

test('form: unused bits are refused even if the signature would verify', async () => {
  // The last character of 32 bytes has two unused bits. Those of the header are signed, those of
  // the signature are not.
  const good = hs256()
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
  const twin = good.slice(0, -1) + alphabet[alphabet.indexOf(good.at(-1) ?? '') | 1]
  assert.notEqual(twin, good)
  assert.deepEqual(
    Buffer.from(twin.split('.')[2] ?? '', 'base64url'),
    Buffer.from(good.split('.')[2] ?? '', 'base64url'),
  )
  await refused(twin, 'tokenInvalid')
})

test('form: any number of parts but three is refused', async () => {
  const good = hs256()
  for (const text of [
    '',
    '.',
    '..',
    '...',
    'a',
    'a.b',
    `${good}.`,
    `.${good}`,
    `${good}.a`,
    `${good}.a.b`,
  ]) {
    await refused(text, 'tokenInvalid')
  }
})

test('form: 12,288 bytes are accepted, one more is refused', async () => {
  const head = base64url({ alg: 'HS256' })
  const bare = Buffer.byteLength(JSON.stringify(claims({ pad: '' })))
  for (const [length, passes] of [
    [12_288, true],
    [12_289, false],
  ] as const) {
    // Base64url of the payload skips some lengths: a longer header reaches them.
    const found = [0, 1, 2, 3].flatMap((more) => {
      const header = more === 0 ? head : base64url({ alg: 'HS256', x: 'x'.repeat(more) })
      const room = length - header.length - 2 - 43
      const bytes = Math.floor((room * 3) / 4)
      return Math.ceil((bytes * 4) / 3) === room ? [{ header, bytes }] : []
    })[0]
    assert(found !== undefined)
    const input = `${found.header}.${base64url(claims({ pad: 'x'.repeat(found.bytes - bare) }))}`
    const text = `${input}.${signature('HS256', input, SECRET)}`
    assert.equal(text.length, length)
    await (passes ? verify(text) : refused(text, 'tokenInvalid'))
  }
})

test('header: typ is absent or that of an access token, in any case', async () => {
  for (const typ of [
    'JWT',
    'jwt',
    'at+jwt',
    'AT+JWT',
    'application/at+jwt',
    'Application/At+JWT',
  ]) {
    await accepted(hs256(claims(), { typ }))
  }
  for (const typ of [
    'logout+jwt',
    'id_token',
    'dpop+jwt',
    'application/jwt',
    '',
    'JOSE',
    'at+jwt ',
    null,
    1,
    ['JWT'],
  ]) {
    await refused(hs256(claims(), { typ }), 'tokenInvalid')
  }
})

test('form: header and payload must be JSON objects in UTF-8', async () => {
  const brokenPayload = Buffer.from(
    JSON.stringify(claims({ sub: 'al\u0000ce' })).replace('\\u0000', '\u0001'),
    'latin1',
  )
  brokenPayload[brokenPayload.indexOf(1)] = 0xff
  const brokenHeader = Buffer.from('{"alg":"HS256","x":"\u0001"}', 'latin1')
  brokenHeader[brokenHeader.indexOf(1)] = 0xff
  await refused(hs256(brokenPayload), 'tokenInvalid')
  await refused(token(brokenHeader, claims(), SECRET, 'HS256'), 'tokenInvalid')
  for (const part of ['[]', 'null', '1', '"x"', '{', 'x', '{}{}', '[{"alg":"HS256"}]']) {
    await refused(hs256(part), 'tokenInvalid')
    await refused(token(part, claims(), SECRET, 'HS256'), 'tokenInvalid')
  }
})

test('scopes: a string or an array, from scope, scp or the configured claim', async () => {
  const scopes = async (more: Members, scopeClaim?: string): Promise<readonly string[]> => [
    ...(await verify(hs256(claims(more)), verifier(secretKeys(), { scopeClaim }))).scopes,
  ]
  assert.deepEqual(await scopes({ scope: ' a:b  c ' }), ['a:b', 'c'])
  assert.deepEqual(await scopes({ scope: ['a', 'c d'] }), ['a', 'c d'])
  assert.deepEqual(await scopes({ scp: 'a c' }), ['a', 'c'])
  assert.deepEqual(await scopes({ scope: 'a', scp: 'c' }), ['a'])
  assert.deepEqual(await scopes({ scope: null, scp: 'c' }), [])
  assert.deepEqual(await scopes({ roles: ['a'], scope: 'c' }, 'roles'), ['a'])
  assert.deepEqual(await scopes({ scope: 'c' }, 'roles'), [])
  for (const scope of [1, null, {}, ['a', 1], true, ''])
    assert.deepEqual(await scopes({ scope }), [])
})

test('refusal: the reason does not hold the claims', async () => {
  await assert.rejects(
    verify(hs256(claims({ iss: 'other', private: 'matter' }))),
    (error: Error) => {
      assert.equal(error.cause, 'unexpected "iss" claim value')
      return true
    },
  )
})

test('refusal: the reason quotes nothing of header or payload', async () => {
  for (const part of ['xyzzy', '{"xyzzy":}', '"xyzzy"', '{"alg":"HS256"} xyzzy']) {
    const extension = hs256(claims(), { crit: [part], [part]: 1 })
    for (const text of [token(part, claims(), SECRET, 'HS256'), hs256(part), extension]) {
      await assert.rejects(
        verify(text),
        (error: Error) => typeof error.cause === 'string' && !error.cause.includes('xyz'),
      )
    }
  }
})

test('caller: the log names an owner by 12 hex digits of its SHA-256', async () => {
  const { owner, ownerHash } = await verify(hs256(claims({ sub: 'abc' })))
  assert.deepEqual([owner, ownerHash], ['abc', 'ba7816bf8f01'])
})

const NOBODY: Caller = { owner: '', ownerHash: '', scopes: new Set() }

test('token cache: a verified token is returned without a promise', async () => {
  const by = verifier()
  const text = hs256()
  assert(by.verify(text) instanceof Promise)
  const first = await by.verify(text)
  assert.equal(by.verify(text), first)
})

test('token cache: a refused token is not cached, and helps no other', async () => {
  const source = secretKeys()
  const by = verifier(source)
  await refused(hs256(claims({ exp: NOW - 60 })), 'tokenExpired', by)
  await refused(`${hs256().slice(0, -4)}AAAA`, 'tokenInvalid', by)
  assert.equal(source.keys?.verified.size, 0)
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
  await refused(text, 'tokenExpired', by)
  await refused(text, 'tokenExpired', by)
})

test('exp: a token that expires while it waits for its key is refused', async () => {
  let now = NOW
  const keys: KeySource = {
    ...secretKeys(),
    fetchFor() {
      now = NOW + 15
      return Promise.resolve()
    },
  }
  const by = new PatientVerifier(keys, RULES, () => now * 1000)
  await refused(hs256(claims({ exp: NOW + 10 })), 'tokenExpired', by)
  assert.equal(keys.keys?.verified.size, 0)
  now = NOW
  await accepted(hs256(claims({ exp: NOW + 11 })), by)
})

test('token cache: new keys invalidate it, even during a verification', async () => {
  const source: { keys: Keys } = { keys: keysOf(SECRET) }
  const by = verifier(source)
  const text = hs256()
  await verify(text, by)
  source.keys = keysOf(SECRET)
  assert(by.verify(text) instanceof Promise)
  assert.equal(source.keys.verified.size, 0)
  await verify(text, by)
  assert(!(by.verify(text) instanceof Promise))

  const other = hs256(claims({ sub: 'bob' }))
  const first = source.keys
  source.keys = {
    ...keysOf(SECRET),
    find(...args) {
      source.keys = keysOf(SECRET)
      return first.find(...args)
    },
  }
  await by.verify(other)
  assert(by.verify(other) instanceof Promise)
})

function keysOf(secret: Uint8Array): Keys {
  return secretKeys(secret).keys ?? assert.fail()
}

test('token cache: whatever comes again, the oldest is evicted first', (t) => {
  const { random } = seeded(t)
  const cache = new TokenCache()
  const model = new Map<string, Caller>()
  let evicted = 0
  for (let step = 0; step < 8 * MAX_ENTRIES; step++) {
    const text = String(Math.floor(random() * 1.5 * MAX_ENTRIES))
    const caller: Caller = { ...NOBODY, owner: String(step) }
    assert.equal(cache.get(text, 0), model.get(text))
    assert.equal(cache.get(text, NOW), undefined, 'it has expired')
    cache.add(text, NOW, caller)
    model.delete(text)
    model.set(text, caller)
    const [oldest = ''] = model.size > MAX_ENTRIES ? model.keys() : []
    if (model.delete(oldest)) evicted++
  }
  assert.ok(evicted > MAX_ENTRIES / 2, `${evicted} were evicted`)
  assert.equal(cache.size, model.size)
  for (const [text, caller] of model) assert.equal(cache.get(text, 0), caller)
})

test('token cache: bounded in entries and bytes, evicts the oldest first', () => {
  const caller: Caller = { ...NOBODY, owner: 'alice' }
  const many = new TokenCache()
  many.add('first', NOW, caller)
  many.add('second', NOW, caller)
  // The same token again is the newest.
  many.add('first', NOW, caller)
  for (let n = 0; n < MAX_ENTRIES - 1; n++) many.add(String(n), NOW, caller)
  const found = ['second', 'first', '0'].map((text) => many.get(text, 0))
  assert.deepEqual(found, [undefined, caller, caller])
  assert.equal(many.size, MAX_ENTRIES)

  // Each entry counts its owner, too, at two bytes a character, and each scope 64 bytes.
  const long = new TokenCache()
  const rest = { ...NOBODY, owner: 'bob', scopes: new Set(['read', 'write']) }
  const half = MAX_CACHED_BYTES / 2
  long.add('x'.repeat(half - 2 * 5), NOW, caller)
  long.add('y'.repeat(half - 2 * 3 - 2 * 64), NOW, rest)
  assert.equal(long.size, 2)
  long.add('z', NOW, NOBODY)
  assert.equal(long.size, 2)
  assert.equal(long.get('x'.repeat(half - 2 * 5), 0), undefined)
  long.add('x'.repeat(MAX_CACHED_BYTES + 1), NOW, caller)
  assert.equal(long.size, 0)
  long.add('expires', NOW, caller)
  assert.equal(long.get('expires', NOW - 1), caller)
  assert.equal(long.get('expires', NOW), undefined)
})

test('form: a header that is too long is refused', async () => {
  const members = Object.fromEntries(Array.from({ length: 900 }, (_, i) => [`k${i}`, 1]))
  const long = hs256(claims(), members)
  assert.ok(long.length < 12_288)
  await refused(long, 'tokenInvalid')
})
