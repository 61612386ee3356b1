import assert from 'node:assert/strict'
import { generateKeyPairSync, type KeyObject } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { readKeySet } from '../../dist/auth/key-set.js'
import { readSecrets } from '../../dist/auth/secrets.js'
import { signDevToken } from '../../dist/cli/token.js'
import { readOptions } from '../../dist/settings/program.js'
import { readConfig } from '../../dist/settings/read.js'
import { type KeyPair, PEM, readPair } from '../support/keys.ts'
import { accepted, AUDIENCE, claims, ed25519, fileKeys, fixed, hs256, ISSUER } from './tokens.ts'
import { jwk, type Members, NOW, p256, p384, refused, rsa, RULES, SECRET } from './tokens.ts'
import { secretKeys, signed, token, verifier, weak } from './tokens.ts'

// Tokens and keys as issuers make them, where one rule would be too narrow.

type Rules = Parameters<typeof verifier>[1]

const invalid = (message: string) => ({ refusal: 'tokenInvalid', message })
const callerOf = async (payload: Members, rules: Rules) =>
  verifier(secretKeys(), rules).verify(hs256(claims(payload)))

const SOME: readonly KeyPair[] = Array.from({ length: 5 }, () =>
  readPair(generateKeyPairSync('ec', { namedCurve: 'P-256', ...PEM })),
)
const publicOf = (pairs: readonly KeyPair[], more: Members = {}): readonly Members[] =>
  pairs.map(({ publicKey }) => jwk(publicKey, more))
const es256 = (key: KeyObject | undefined, header: Members = {}, payload = claims()): string =>
  signed('ES256', key ?? assert.fail(), header, payload)

/** Counts the signatures that are verified, and the most at one time. */
function countSignatures(t: TestContext) {
  const { subtle } = globalThis.crypto
  const verify = subtle.verify.bind(subtle)
  const counts = { all: 0, running: 0, most: 0 }
  t.mock.method(subtle, 'verify', async (...args: Parameters<typeof verify>) => {
    counts.all++
    counts.most = Math.max(counts.most, ++counts.running)
    return verify(...args).finally(() => counts.running--)
  })
  return counts
}

for (const count of [1, 2, 3, 4]) {
  test(`no kid: ${count} keys of one algorithm are tried, each once`, async (t) => {
    const pairs = SOME.slice(0, count)
    const source = fileKeys(...publicOf(pairs), jwk(ed25519.publicKey), jwk(p384.publicKey))
    for (const { privateKey } of pairs) await accepted(es256(privateKey), verifier(source))
    const counts = countSignatures(t)
    const failed = invalid('signature verification failed')
    const by = verifier(source)
    await assert.rejects(async () => by.verify(es256(SOME[4]?.privateKey)), failed)
    assert.equal(counts.all, count)
  })
}

test('no kid: with five keys that token is refused, and no signature is verified', async (t) => {
  const named = SOME.map(({ publicKey }, kid) => jwk(publicKey, { kid: String(kid) }))
  const by = verifier(fileKeys(...named, jwk(ed25519.publicKey)))
  const counts = countSignatures(t)
  for (const { privateKey } of SOME)
    await assert.rejects(
      async () => by.verify(es256(privateKey)),
      invalid('no kid, and more than 4 keys fit'),
    )
  assert.equal(counts.all, 0)
  // The set is used all the same.
  await accepted(es256(SOME[4]?.privateKey, { kid: '4' }), by)
  await accepted(signed('EdDSA', ed25519.privateKey), by)
})

test('no kid: a token with a kid is verified with the key of that name alone', async (t) => {
  const [one, two] = SOME
  assert.ok(one && two)
  const by = verifier(fileKeys(jwk(one.publicKey, { kid: 'one' }), jwk(two.publicKey)))
  const counts = countSignatures(t)
  for (const kid of ['one', 'two', '', 2, null, ['one']])
    await refused(es256(two.privateKey, { kid }), 'tokenInvalid', by)
  assert.equal(counts.all, 1)
  await accepted(es256(two.privateKey), by)
  // Two keys of one name are no rotation.
  const twins = verifier(fileKeys(...publicOf([one, two], { kid: 'one' })))
  const several = invalid('multiple matching keys found in the JSON Web Key Set')
  await assert.rejects(async () => twins.verify(es256(one.privateKey, { kid: 'one' })), several)
})

test('no kid: a key for another algorithm is not tried', async (t) => {
  const by = verifier(fileKeys(jwk(rsa.publicKey, { alg: 'PS256' }), jwk(p384.publicKey)))
  const counts = countSignatures(t)
  for (const [alg, key] of [
    ['RS256', rsa.privateKey],
    ['ES256', p256.privateKey],
    ['HS256', Buffer.from(JSON.stringify(jwk(rsa.publicKey)))],
  ] as const)
    await refused(signed(alg, key), 'tokenInvalid', by)
  await refused(token({ alg: 'PS256' }, claims(), rsa.privateKey, 'RS256'), 'tokenInvalid', by)
  assert.equal(counts.all, 1)
})

/** Only its length counts: nothing is signed with it. */
const rsa3072 = { kty: 'RSA', e: 'AQAB', n: Buffer.alloc(384, 0xff).toString('base64url') }

test('no kid: a weak key, one of another length and a broken one are passed over', async (t) => {
  const { n: _, ...broken } = jwk(rsa.publicKey)
  const bad = [broken, jwk(weak.publicKey), rsa3072]
  const counts = countSignatures(t)
  for (const alg of ['RS256', 'PS256']) {
    for (const keys of [
      [...bad, jwk(rsa.publicKey)],
      [jwk(rsa.publicKey), ...bad],
    ])
      await accepted(signed(alg, rsa.privateKey), verifier(fileKeys(...keys)))
    await refused(signed(alg, weak.privateKey), 'tokenInvalid', verifier(fileKeys(...bad)))
  }
  assert.equal(counts.all, 4)
  // That a key is broken is not told as if there were none.
  const unusable = [broken, { ...broken, alg: 'RS256' }]
  await assert.rejects(
    async () => verifier(fileKeys(...unusable)).verify(signed('RS256', rsa.privateKey)),
    invalid('its key cannot be used'),
  )
})

const FINAL: readonly (readonly [condition: string, payload: Members, header?: Members])[] = [
  ['tokenExpired', claims({ exp: NOW - 60 })],
  ['tokenUnacceptable', claims({ nbf: NOW + 60 })],
  ['tokenUnacceptable', claims({ iss: 'https://other.example/' })],
  ['tokenUnacceptable', claims({ aud: 'other' })],
  ['tokenUnacceptable', claims({ sub: undefined })],
  ['tokenUnacceptable', claims({ sub: 7 })],
  ['tokenInvalid', claims(), { typ: 'logout+jwt' }],
]

for (const [at, [condition, payload, header]] of FINAL.entries()) {
  const what = `${JSON.stringify(header ?? {})} ${condition}`
  test(`no kid: the key that signed it decides: ${what} (${at})`, async (t) => {
    const pairs = SOME.slice(0, 3)
    const secrets = pairs.map((_, n) => Buffer.alloc(32, n))
    const cases = [
      ...pairs.map(({ privateKey }) => es256(privateKey, header, payload)),
      ...secrets.map((secret) => signed('HS256', secret, header, payload)),
    ]
    const [publicKeys, secretOnes] = [fileKeys(...publicOf(pairs)), fixed(readSecrets(secrets))]
    const counts = countSignatures(t)
    for (const [n, text] of cases.entries()) {
      counts.all = 0
      await refused(text, condition, verifier(n < 3 ? publicKeys : secretOnes))
      // No key after the one that has signed it.
      assert.equal(counts.all, (n % 3) + 1)
    }
  })
}

test('no kid: at most 16 signatures are verified at one time, whatever the keys', async (t) => {
  const by = verifier(fileKeys(...publicOf(SOME.slice(0, 4))))
  const bad = Array.from({ length: 60 }, (_, n) =>
    es256(SOME[4]?.privateKey, {}, claims({ jti: n })),
  )
  const counts = countSignatures(t)
  await Promise.all(bad.map((text) => refused(text, 'tokenInvalid', by)))
  assert.deepEqual(counts, { all: 4 * 60, running: 0, most: 16 })
})

test('SPIFFE: keys of use jwt-svid verify a token of type JOSE, those for X.509 none', async () => {
  const svid = jwk(p256.publicKey, { kid: 'one', use: 'jwt-svid' })
  const x509 = jwk(p256.publicKey, { kid: 'two', use: 'x509-svid' })
  const by = verifier(fileKeys(x509, svid))
  for (const typ of ['JOSE', 'jose', 'JWT', undefined])
    await accepted(es256(p256.privateKey, { kid: 'one', typ }), by)
  await refused(es256(p256.privateKey, { kid: 'two' }), 'tokenInvalid', by)
  // SPIRE without jwt_issuer.
  const bare = claims({ iss: undefined, sub: 'spiffe://example.org/web' })
  await refused(es256(p256.privateKey, { kid: 'one' }, bare), 'tokenUnacceptable', by)
  const bytesOf = (use: unknown) => Buffer.from(JSON.stringify({ keys: [{ ...svid, use }] }))
  for (const use of ['x509-svid', 'jwt-svid2', ['jwt-svid'], null])
    assert.throws(() => readKeySet(bytesOf(use)), /holds no key/)
  assert.throws(() => fileKeys(jwk(p256.privateKey, { use: 'jwt-svid' })), /symmetric or private/)
})

const PATHS: readonly (readonly [found: unknown, name: string, from: Members])[] = [
  // What was read before names could have dots stays what is read.
  ['near', 'a.b.c', { a: { b: { c: 'near' }, 'b.c': 'far' }, 'a.b': { c: 'far' } }],
  ['near', 'a.b.c', { 'a.b.c': 'near', a: { b: { c: 'far' } } }],
  // What leads to nothing gives way to the next.
  ['far', 'a.b.c', { a: { b: { d: 1 }, 'b.c': 'far' } }],
  ['far', 'a.b.c', { a: { b: 'x' }, 'a.b': { c: 'far' } }],
  ['near', 'a.b.c', { a: { 'b.c': 'near' }, 'a.b': { c: 'far' } }],
  ['far', 'a.b.c.d', { a: { b: {}, 'b.c': [] }, 'a.b': { 'c.d': 'far' } }],
  ['far', 'a.b.c.d', { 'a.b.c': { d: 'far' } }],
  ['far', 'a..b.', { 'a.': { 'b.': 'far' } }],
  [undefined, 'a.b.c', { a: ['b.c'], 'a.b': 'c', b: { c: 'x' }, c: 'x' }],
  [undefined, 'a.b', { a: { 'a.b': 'x' }, b: 'x' }],
  // A value that is null is what is read.
  [undefined, 'a.b', { a: { b: null }, x: 'y' }],
  [undefined, 'a.b.c', { a: { b: { c: null }, 'b.c': 'far' } }],
  [undefined, 'a.b', { 'a.b': null, a: { b: 'far' } }],
  // Inherited members are none.
  [undefined, 'a.constructor.name', { a: {} }],
  [undefined, 'constructor.name', {}],
  ...['constructor', '__proto__', 'toString'].map((name) => [undefined, name, {}] as const),
  ['own', '__proto__', JSON.parse('{"__proto__":"own"}') as Members],
  [undefined, 'tenant.list.0', { tenant: { list: ['x'] } }],
  [undefined, 'a.toString.length', { a: 'x' }],
  ['own', 'a.__proto__.b', JSON.parse('{"a":{"__proto__":{"b":"own"}}}') as Members],
]

for (const [found, name, from] of PATHS) {
  test(`claims: ${name} of ${JSON.stringify(from)} is ${String(found)}`, async () => {
    const owner = callerOf({ ...from, aud: AUDIENCE }, { ownerClaim: name })
    if (found === undefined) await assert.rejects(owner, { refusal: 'tokenUnacceptable' })
    else assert.equal((await owner).owner, found)
    const audience = callerOf(from, { audienceClaim: name, audience: ['near', 'far', 'own'] })
    if (found === undefined) await assert.rejects(audience, { refusal: 'tokenUnacceptable' })
    else await audience
    const { scopes } = await callerOf(from, { scopeClaim: name })
    assert.deepEqual([...scopes], found === undefined ? [] : [found])
  })
}

const OWN = '{"__proto__":{"a":1},"constructor":true}'
const ROLES: Members = { realm_access: { roles: ['reader'] }, 'https://x.test/roles': ['a'] }
const SCOPES: readonly (readonly [found: string, name: string | undefined, from: Members])[] = [
  ['a:b|c', undefined, { scope: ' a:b  c ' }],
  ['a|c d', undefined, { scope: ['a', 'c d'] }],
  ['a|c', undefined, { scp: 'a c' }],
  ['a', undefined, { scope: 'a', scp: 'c' }],
  ...[null, 1, ['a', 1], ''].map((scope) => ['', undefined, { scope, scp: 'c' }] as const),
  ['a', 'roles', { roles: ['a'], scope: 'c' }],
  ['', 'roles', { scope: 'c' }],
  ['a', 'https://x.test/roles', ROLES],
  ...['realm_access', 'realm_access.roles.0', 'sub.length', 'realm_access.constructor.name'].map(
    (name) => ['', name, ROLES] as const,
  ),
  // Zitadel: a role, and the organizations that grant it.
  ['reader|a b', 'roles', { roles: { reader: { 293: 'org.example' }, 'a b': { 1: '' } } }],
  ['yes', 'roles', { roles: { yes: true, no: false, null: null, one: 1, text: 'true', '': '' } }],
  ['', 'roles', { roles: { empty: {}, list: ['x'], none: [], nested: [true] } }],
  ['__proto__|constructor', 'roles', { roles: JSON.parse(OWN) as Members }],
  ['', 'roles', { roles: [{ reader: true }] }],
  ['', 'roles', { roles: [true] }],
] as const

for (const [found, name, from] of SCOPES) {
  test(`scopes: "${found}" from ${name} of ${JSON.stringify(from)}`, async () => {
    const { scopes } = await callerOf(from, { scopeClaim: name })
    assert.equal([...scopes].join('|'), found)
    // No scope is inherited.
    for (const inherited of ['toString', 'valueOf']) assert(!scopes.has(inherited))
  })
}

test('claims: a setting of many dots takes no longer for any token', async () => {
  const name = Array(40).fill('a').join('.')
  let nested: Members = {}
  // Every beginning of the rest is a member, and none leads anywhere.
  for (let depth = 0; depth < 7; depth++) nested = { a: nested, 'a.a': nested, 'a.a.a': 1 }
  const before = performance.now()
  await assert.rejects(callerOf(nested, { ownerClaim: name }), { refusal: 'tokenUnacceptable' })
  await assert.rejects(callerOf({}, { ownerClaim: name }), { refusal: 'tokenUnacceptable' })
  assert.ok(performance.now() - before < 1000)
})

test('audiences: a token for any of them passes, and for none else', async () => {
  const rules = { audience: ['web', 'mobile', 'a,b'] }
  for (const aud of ['web', 'mobile', ['x', 'mobile'], 'a,b'])
    assert.equal((await callerOf({ aud }, rules)).owner, 'alice')
  const other = ['', 'a', 'b', 'web,mobile', 'we', 'Web', ['web,mobile'], [], [['web']], { web: 1 }]
  for (const aud of [...other, null, undefined, 7, true])
    await assert.rejects(callerOf({ aud }, rules), { refusal: 'tokenUnacceptable' })
  const ofClient = { ...rules, audienceClaim: 'client_id' }
  for (const id of ['web', 'mobile'])
    assert.equal((await callerOf({ aud: undefined, client_id: id }, ofClient)).owner, 'alice')
  for (const id of [...other, null, undefined])
    await assert.rejects(callerOf({ aud: 'web', client_id: id }, ofClient), {
      refusal: 'tokenUnacceptable',
    })
})

test('audiences: a text is split at commas, the entries of a list are whole', () => {
  const env = { PLANTS_ISSUER: ISSUER, PLANTS_JWT_SECRET: 'x'.repeat(32) }
  const rest = { issuer: ISSUER, jwtSecret: 'x'.repeat(32) }
  for (const [given, found] of [
    ['plants', ['plants']],
    ['web,mobile', ['web', 'mobile']],
    ['web , mobile,\tapi', ['web', 'mobile', 'api']],
    ['a,b,c,d,e,f,g,h', [...'abcdefgh']],
    ['https://a.example,https://b.example', ['https://a.example', 'https://b.example']],
  ] as const) {
    assert.deepEqual(readConfig({ ...env, PLANTS_AUDIENCE: given }).audience, found)
    assert.deepEqual(readOptions({ ...rest, audience: given }).audience, found)
  }
  const list = ['a,b', ' c ', 'd']
  const { audience } = readOptions({ ...rest, audience: list })
  list.push('added later')
  assert.deepEqual(audience, ['a,b', 'c', 'd'])
})

test('audiences: a development token is for the first, in every claim', async () => {
  const rules = { ...RULES, audience: ['web', 'mobile'], audienceClaim: 'client_id' }
  const [, payload = ''] = signDevToken(SECRET, rules, { sub: 'bob' }).split('.')
  const { aud, client_id } = JSON.parse(Buffer.from(payload, 'base64url').toString()) as Members
  assert.deepEqual([aud, client_id], ['web', 'web'])
})

/** Of the clock, and of a minute before it. */
const TIMES = [
  ['1.8E9', '1.79999994e+9'],
  ['1800000000.5', '1799999940.5'],
  ['18000000000e-1', '179999994e1'],
] as const

for (const [now, before] of TIMES) {
  test(`times: exp, nbf and iat may be written as ${now}`, async () => {
    const text = (exp: string): string =>
      `{"iss":"${ISSUER}","aud":"plants","sub":"alice","iat":${now},"nbf":${now},"exp":${exp}}`
    await accepted(hs256(text('1.9E9')))
    await refused(hs256(text(before)), 'tokenExpired')
  })
}
