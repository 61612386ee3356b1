import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Caller } from '../../dist/auth/caller.js'
import type { KeySource } from '../../dist/auth/keys.js'
import { TokenCache } from '../../dist/auth/token-cache.js'
import type { TokenRules } from '../../dist/auth/verifier.js'
import type { KeyPair } from '../support/keys.ts'
import {
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
  refusedAs,
  rsa,
  rsa2,
  RULES,
  SECRET,
  secretKeys,
  signature,
  token,
  verifier,
  without,
} from './tokens.ts'

/** async, so that a throw and a rejection are the same to it. */
async function verify(text: string, by: PatientVerifier = verifier()): Promise<Caller> {
  return by.verify(text)
}

async function refused(text: string, condition: string, by = verifier()): Promise<void> {
  await assert.rejects(verify(text, by), refusedAs(condition))
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
  test(`a token signed ${alg} is accepted, and refused once its payload is another`, async () => {
    const by = verifier(fileKeys(jwk(publicKey, { kid: 'one' })))
    const good = token({ alg, kid: 'one' }, claims(), privateKey, alg)
    assert.equal((await verify(good, by)).owner, 'alice')
    const [header, , signed] = good.split('.')
    await refused(`${header}.${base64url(claims({ sub: 'bob' }))}.${signed}`, 'tokenInvalid', by)
  })
}

test('a token signed HS256 with the secret is accepted, whatever its kid; with another secret it is refused', async () => {
  assert.equal((await verify(hs256())).owner, 'alice')
  assert.equal((await verify(hs256(claims(), { kid: 'whatever' }))).owner, 'alice')
  await refused(token({ alg: 'HS256' }, claims(), Buffer.alloc(32, 8), 'HS256'), 'tokenInvalid')
})

test('a token signed HS384 or HS512 with the secret is refused', async () => {
  for (const alg of ['HS384', 'HS512'])
    await refused(token({ alg }, claims(), SECRET, alg), 'tokenInvalid')
})

test("a token signed HS256 with the public key's text is refused", async () => {
  const by = verifier(fileKeys(jwk(rsa.publicKey, { kid: 'one' })))
  const pem = rsa.publicKey.export({ type: 'spki', format: 'pem' })
  const der = rsa.publicKey.export({ type: 'spki', format: 'der' })
  for (const text of [pem, String(pem).trim(), der, JSON.stringify(jwk(rsa.publicKey))]) {
    await refused(
      token({ alg: 'HS256', kid: 'one' }, claims(), Buffer.from(text), 'HS256'),
      'tokenInvalid',
      by,
    )
  }
})

test('an unsigned token is refused in every spelling of alg', async () => {
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

test('a key that the token brings along never helps it', async () => {
  const by = verifier(fileKeys(jwk(rsa.publicKey, { kid: 'one' })))
  const more = {
    jwk: jwk(rsa2.publicKey),
    jku: 'https://evil.example/',
    x5u: 'https://evil.example/',
    x5c: ['AA=='],
  }
  await refused(
    token({ alg: 'RS256', ...more }, claims(), rsa2.privateKey, 'RS256'),
    'tokenInvalid',
    by,
  )
  await refused(
    token({ alg: 'RS256', kid: 'one', ...more }, claims(), rsa2.privateKey, 'RS256'),
    'tokenInvalid',
    by,
  )
})

test('the kid chooses the key: an unknown one and one that is no string are refused', async () => {
  const by = verifier(
    fileKeys(jwk(rsa.publicKey, { kid: 'one' }), jwk(rsa2.publicKey, { kid: 'two' })),
  )
  assert.equal(
    (await verify(token({ alg: 'RS256', kid: 'two' }, claims(), rsa2.privateKey, 'RS256'), by))
      .owner,
    'alice',
  )
  for (const kid of ['one', 'three', '', null, 2, ['two'], { kid: 'two' }]) {
    await refused(
      token({ alg: 'RS256', kid }, claims(), rsa2.privateKey, 'RS256'),
      'tokenInvalid',
      by,
    )
  }
})

test('a token without a kid passes where exactly one key fits its algorithm', async () => {
  const bare = token({ alg: 'RS256' }, claims(), rsa.privateKey, 'RS256')
  const [one, two] = [jwk(rsa.publicKey, { kid: 'one' }), jwk(rsa2.publicKey, { kid: 'two' })]
  const others = [jwk(p256.publicKey, { kid: 'three' }), { ...two, alg: 'PS256' }]
  assert.equal((await verify(bare, verifier(fileKeys(one, ...others)))).owner, 'alice')
  await refused(bare, 'tokenInvalid', verifier(fileKeys(jwk(p256.publicKey))))
  await refused(bare, 'tokenInvalid', verifier(fileKeys(one, two)))
  assert.equal(
    (await verify(bare, verifier(fileKeys(jwk(rsa.publicKey), jwk(rsa.publicKey))))).owner,
    'alice',
  )
})

test('a key verifies only the algorithm that it names', async () => {
  const by = verifier(fileKeys(jwk(rsa.publicKey, { kid: 'one', alg: 'PS256' })))
  assert.equal(
    (await verify(token({ alg: 'PS256', kid: 'one' }, claims(), rsa.privateKey, 'PS256'), by))
      .owner,
    'alice',
  )
  await refused(
    token({ alg: 'RS256', kid: 'one' }, claims(), rsa.privateKey, 'RS256'),
    'tokenInvalid',
    by,
  )
})

test('exp: required, a finite number, and past once the tolerance is', async () => {
  await refused(hs256(claims({ exp: NOW - 5 })), 'tokenExpired')
  assert.equal(await ownerOf(claims({ exp: NOW - 4 })), 'alice')
  await refused(
    hs256(claims({ exp: NOW })),
    'tokenExpired',
    verifier(secretKeys(), { clockToleranceSeconds: 0 }),
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

test('nbf: not ahead by more than the tolerance, and a number; so is iat', async () => {
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

test('the audience is looked for in the configured claim alone', async () => {
  const rules = { audienceClaim: 'client_id' }
  const by = verifier(secretKeys(), rules)
  assert.equal(await ownerOf({ ...without('aud'), client_id: AUDIENCE }, rules), 'alice')
  assert.equal(await ownerOf(claims({ aud: 'other', client_id: ['x', AUDIENCE] }), rules), 'alice')
  await refused(hs256(), 'tokenUnacceptable', by)
  for (const id of ['other', null, ['other'], [[AUDIENCE]], { [AUDIENCE]: 1 }]) {
    await refused(hs256(claims({ client_id: id })), 'tokenUnacceptable', by)
  }
})

test('the owner is a non-empty string that UTF-8 can carry', async () => {
  assert.equal(await ownerOf(claims({ sub: 'ä\u0000😀' })), 'ä\u0000😀')
  await refused(hs256(without('sub')), 'tokenUnacceptable')
  for (const sub of ['', 7, null, true, ['alice'], { a: 1 }, '\ud800', 'a\udc00b']) {
    await refused(hs256(claims({ sub })), 'tokenUnacceptable')
  }
})

test('the owner is read from the configured claim', async () => {
  assert.equal(await ownerOf(claims({ tenant: 'acme' }), { ownerClaim: 'tenant' }), 'acme')
  await refused(hs256(), 'tokenUnacceptable', verifier(secretKeys(), { ownerClaim: 'tenant' }))
})

for (const name of ['constructor', '__proto__', 'toString', 'hasOwnProperty']) {
  test(`a claim named ${name} is the token's own or is missing`, async () => {
    const own = JSON.stringify(claims()).replace('}', `,"${name}":"${AUDIENCE}"}`)
    assert.equal(await ownerOf(own, { ownerClaim: name, audienceClaim: name }), AUDIENCE)
    await refused(hs256(), 'tokenUnacceptable', verifier(secretKeys(), { ownerClaim: name }))
    await refused(hs256(), 'tokenUnacceptable', verifier(secretKeys(), { audienceClaim: name }))
    const { scopes } = await verify(hs256(), verifier(secretKeys(), { scopeClaim: name }))
    assert.deepEqual(scopes, new Set())
  })
}

test('a crit of any kind that is not understood is refused', async () => {
  for (const crit of [['x'], [], 'exp', ['exp'], null, ['__proto__'], [''], ['alg']]) {
    await refused(hs256(claims(), { crit, x: 1, exp: NOW + 60 }), 'tokenInvalid')
  }
})

test('an unencoded payload is refused, listed in crit or not', async () => {
  await refused(hs256(claims(), { b64: false, crit: ['b64'] }), 'tokenInvalid')
  await refused(hs256(claims(), { b64: false }), 'tokenInvalid')
  await refused(hs256(claims(), { b64: 'false' }), 'tokenInvalid')
  const head = base64url({ alg: 'HS256', b64: false, crit: ['b64'] })
  const input = `${head}.${JSON.stringify(claims())}`
  await refused(`${input}.${signature('HS256', input, SECRET)}`, 'tokenInvalid')
})

test('base64url with padding, space, other alphabet or unused bits is refused in each part', async () => {
  // Payloads of all lengths mod 3, so that each kind of last character is met.
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

test('unused bits are refused where the signature would still verify', async () => {
  // 32 bytes end in a character of which two bits are unused; the header is signed as text, the
  // signature is not.
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

test('other than three parts are refused', async () => {
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

test('a token of 12288 bytes passes, and one past is refused', async () => {
  const head = base64url({ alg: 'HS256' })
  const bare = Buffer.byteLength(JSON.stringify(claims({ pad: '' })))
  for (const [length, passes] of [
    [12_288, true],
    [12_289, false],
  ] as const) {
    // Header and signature may be padded too, to reach a length that base64url alone would jump
    // over.
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

test('typ: absent or that of an access token, in any case; every other kind is refused', async () => {
  for (const typ of [
    'JWT',
    'jwt',
    'at+jwt',
    'AT+JWT',
    'application/at+jwt',
    'Application/At+JWT',
  ]) {
    assert.equal((await verify(hs256(claims(), { typ }))).owner, 'alice')
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

test('a header or payload that is not UTF-8 or no JSON object is refused', async () => {
  const brokenPayload = Buffer.from(
    JSON.stringify(claims({ sub: 'al\u0000ce' })).replace('\\u0000', '\u0001'),
    'latin1',
  )
  brokenPayload[brokenPayload.indexOf(1)] = 0xff
  const brokenHeader = Buffer.from('{"alg":"HS256","x":"\u0001"}', 'latin1')
  brokenHeader[brokenHeader.indexOf(1)] = 0xff
  await refused(token({ alg: 'HS256' }, brokenPayload, SECRET, 'HS256'), 'tokenInvalid')
  await refused(token(brokenHeader, claims(), SECRET, 'HS256'), 'tokenInvalid')
  for (const part of ['[]', 'null', '1', '"x"', '{', 'x', '{}{}', '[{"alg":"HS256"}]']) {
    await refused(token({ alg: 'HS256' }, part, SECRET, 'HS256'), 'tokenInvalid')
    await refused(token(part, claims(), SECRET, 'HS256'), 'tokenInvalid')
  }
})

test('scopes: a space-separated string or an array of strings, from scope, else scp, or the configured claim', async () => {
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

test('why a token is refused does not carry its claims', async () => {
  await assert.rejects(
    verify(hs256(claims({ iss: 'other', private: 'matter' }))),
    (error: Error) => {
      assert.equal(error.cause, 'unexpected "iss" claim value')
      return true
    },
  )
})

test('why a token is refused quotes nothing of its header or payload', async () => {
  for (const part of ['xyzzy', '{"xyzzy":}', '"xyzzy"', '{"alg":"HS256"} xyzzy']) {
    for (const text of [
      token(part, claims(), SECRET, 'HS256'),
      token({ alg: 'HS256' }, part, SECRET, 'HS256'),
    ]) {
      await assert.rejects(
        verify(text),
        (error: Error) => typeof error.cause === 'string' && !error.cause.includes('xyz'),
      )
    }
  }
})

test('a verified token is remembered and answered without a promise', async () => {
  const by = verifier()
  const text = hs256()
  assert(by.verify(text) instanceof Promise)
  const first = await by.verify(text)
  assert.equal(by.verify(text), first)
  assert.equal(by.cacheSize, 1)
})

test('a token that was refused is not remembered, nor does one help another', async () => {
  const by = verifier()
  await refused(hs256(claims({ exp: NOW - 60 })), 'tokenExpired', by)
  await refused(`${hs256().slice(0, -4)}AAAA`, 'tokenInvalid', by)
  assert.equal(by.cacheSize, 0)
  await verify(hs256(), by)
  await refused(`${hs256().slice(0, -4)}AAAA`, 'tokenInvalid', by)
})

test('a remembered token is expired at the same second as one that was never seen', async () => {
  let now = NOW
  const by = new PatientVerifier(secretKeys(), RULES, () => now * 1000 + 999)
  const text = hs256(claims({ exp: NOW + 10 }))
  await verify(text, by)
  now = NOW + 9
  assert(!(by.verify(text) instanceof Promise))
  now = NOW + 14
  assert.equal((await verify(text, by)).owner, 'alice')
  now = NOW + 15
  await refused(text, 'tokenExpired', by)
  await refused(text, 'tokenExpired', by)
})

test('a remembered token is forgotten when the keys change, while it is being verified included', async () => {
  const source = secretKeys()
  let duringVerification = (): void => {}
  const keys: KeySource & { generation: number } = {
    ...source,
    generation: 0,
    key(header, wait) {
      duringVerification()
      return source.key(header, wait)
    },
  }
  const by = verifier(keys)
  const text = hs256()
  await verify(text, by)
  keys.generation++
  assert(by.verify(text) instanceof Promise)
  assert.equal(by.cacheSize, 0)
  await verify(text, by)
  assert(!(by.verify(text) instanceof Promise))

  const other = hs256(claims({ sub: 'bob' }))
  duringVerification = () => {
    duringVerification = () => {}
    keys.generation++
    // Another request notices the change before this one is done.
    assert(by.verify(text) instanceof Promise)
  }
  await by.verify(other)
  assert(by.verify(other) instanceof Promise)
})

test('as many tokens are remembered as entries and bytes allow, and the oldest go first', () => {
  const caller: Caller = { owner: 'alice', scopes: new Set() }
  const few = new TokenCache({ entries: 2, tokenBytes: 1000 })
  for (const text of ['a', 'b', 'b', 'c']) few.add(text, 0, NOW, caller)
  assert.deepEqual(
    ['a', 'b', 'c'].map((text) => few.get(text, 0, 0)),
    [undefined, caller, caller],
  )
  assert.equal(few.size, 2)

  // Each entry counts its owner, too, at two bytes a character.
  const small = new TokenCache({ entries: 1000, tokenBytes: 10 + 2 * 10 })
  for (const text of ['1234', '567890', '1234', 'x']) small.add(text, 0, NOW, caller)
  assert.deepEqual(
    ['567890', '1234', 'x'].map((text) => small.get(text, 0, 0)),
    [undefined, caller, caller],
  )
  small.add('x'.repeat(21), 0, NOW, caller)
  assert.equal(small.size, 0)
  small.add('12345678901234567890', 0, NOW, caller)
  assert.equal(small.get('12345678901234567890', 0, NOW), undefined)
  small.add('01234567890123456789', 0, NOW, caller)
  assert.equal(small.size, 1)
  assert.equal(small.get('x', 1, 0), undefined)
  small.add('after them', 1, NOW, caller)
  assert.equal(small.get('after them', 1, 0), caller)
})

test('a header of a token that is too long is refused before it is parsed', async () => {
  const members = Object.fromEntries(Array.from({ length: 900 }, (_, i) => [`k${i}`, 1]))
  const long = token({ alg: 'HS256', ...members }, claims(), SECRET, 'HS256')
  assert.ok(long.length < 12_288)
  await assert.rejects(
    async () => new PatientVerifier(secretKeys(SECRET), RULES).verify(long),
    refusedAs('tokenInvalid'),
  )
})
