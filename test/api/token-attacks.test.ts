import assert from 'node:assert/strict'
import { type KeyObject, randomBytes } from 'node:crypto'
import { type TestContext, test } from 'node:test'
import { deflateRawSync } from 'node:zlib'
import type { Config } from '../../dist/settings/read.js'
import { AUDIENCE, base64url, claims, ed25519, ISSUER, jwk, type Members } from '../auth/tokens.ts'
import { other256, p256, p384, p521, rsa, SECRET, signature, token } from '../auth/tokens.ts'
import { call, post } from '../support/http.ts'
import { scrape } from '../support/metrics.ts'
import { sampled, THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { stopClock } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, postBytes, Wire, type WireAnswer } from '../support/wire.ts'

const INVALID = 'Bearer realm="plants", error="invalid_token"'
const MALFORMED = 'Bearer realm="plants", error="invalid_request"'
const BATCH = 4

const now = Math.floor(Date.now() / 1000)
const CLAIMS = claims({ iat: now, exp: now + 600 })
const PUBLIC = { rsa, p256, p384, p521, ed25519 }
type Kid = keyof typeof PUBLIC

const SIGNED_BY: Readonly<Record<string, Kid>> = {
  ...{ RS256: 'rsa', RS384: 'rsa', RS512: 'rsa', PS256: 'rsa', PS384: 'rsa', PS512: 'rsa' },
  ...{ ES256: 'p256', ES384: 'p384', ES512: 'p521', EdDSA: 'ed25519', Ed25519: 'ed25519' },
}

type Target = Awaited<ReturnType<typeof withKeySet>>

const start = (t: TestContext, keys: Pick<Partial<Config>, 'jwksUrl' | 'jwtSecret'>) =>
  startService(t, { issuer: ISSUER, audience: [AUDIENCE], ...keys, logLevel: 'silent' })

/** A service that fetches its keys from this issuer, which also sees any other fetch. */
async function withKeySet(t: TestContext) {
  // The bucket of fetches for unknown keys is not filled again during the test.
  stopClock(t)
  /** Every request that the issuer saw. */
  const asked: string[] = []
  const own = Object.entries(PUBLIC).map(([kid, { publicKey }]) => jwk(publicKey, { kid }))
  const evil = [jwk(other256.publicKey, { kid: 'evil' })]
  const issuerUrl = await serving(t, (req, res) => {
    asked.push(req.url ?? '')
    res.end(JSON.stringify({ keys: req.url === '/keys' ? own : evil }))
  })
  const { port, adminPort } = await start(t, { jwksUrl: `${issuerUrl}/keys` })
  /** A token that is accepted. */
  const good = signedBy('ES256', { kid: 'p256' })
  return { port, adminPort, issuerUrl, asked, good }
}

async function withSecret(t: TestContext): Promise<Target> {
  const { port, adminPort } = await start(t, { jwtSecret: SECRET })
  return { port, adminPort, issuerUrl: '', asked: [], good: hmac(SECRET) }
}

/**
 * Each token tries to create a plant and to read the list. All must be refused with an `expected`
 * condition, none is cached, nothing is stored, and the issuer is asked for its keys once, and
 * three times at most for kids that it does not have.
 */
async function attack(
  t: TestContext,
  { port, adminPort, asked, good }: Target,
  attacks: readonly string[],
  expected: readonly string[] = ['tokenInvalid'],
): Promise<void> {
  for (let at = 0; at < attacks.length; at += BATCH) {
    const batch = attacks.slice(at, at + BATCH)
    const wire = await Wire.to(port)
    wire.write(batch.map((each, i) => both(at + i, 'stolen', each)).join(''))
    const answers = await wire.answers(2 * batch.length)
    answers.forEach((answer, i) => refused(answer, expected, batch[i >> 1] ?? ''))
    wire.destroy()
  }
  assert.ok(asked.length <= 1 + 3 && asked.every((path) => path === '/keys'), String(asked))
  assert.deepEqual((await call(port, { token: good })).json(), [])
  const { value } = await scrape(adminPort)
  const accepted = 'plant_store_tokens_verified_total{result="accepted"}'
  assert.deepEqual([value('plant_store_plants'), value(accepted)], [0, 1])
  t.diagnostic(`${attacks.length} tokens`)
}

/** A create and a list. */
function both(id: number, name: string, token: string): string {
  return postBytes({ id, name }, { token }) + head('GET', '/plants', { token })
}

function refused(answer: WireAnswer, expected: readonly string[], what: string): void {
  const found = verdict(answer)
  assert.ok(expected.includes(String(found)), `${found}: ${what.slice(0, 200)}`)
  const challenge = answer.status === 400 ? MALFORMED : INVALID
  assert.deepEqual(headerLines(answer, 'www-authenticate'), [challenge], what)
}

/** A token signed by `alg`; members of a header may name another. */
function signedBy(
  alg: string,
  header: Members | string,
  payload: Members | string = CLAIMS,
  key: KeyObject | Uint8Array = PUBLIC[SIGNED_BY[alg] ?? 'rsa'].privateKey,
): string {
  return token(typeof header === 'string' ? header : { alg, ...header }, payload, key, alg)
}

function hmac(
  secret: string | Uint8Array,
  header: Members = {},
  payload: Members | string = CLAIMS,
  alg = 'HS256',
): string {
  return signedBy(alg, { alg: 'HS256', ...header }, payload, Buffer.from(secret))
}

const PUBLIC_ALGORITHMS = Object.keys(SIGNED_BY)
const HMACS = ['HS256', 'HS384', 'HS512']
/** Two names of the same signature. */
const same = (one: string, other: string): boolean =>
  one === other || (one.startsWith('Ed') && other.startsWith('Ed'))

test('token attacks: with public keys, no algorithm passes for another', async (t) => {
  // Each is signed only if it is tried.
  const attacks: (() => string)[] = []
  const others = ['ES256K', 'ML-DSA-44', 'RSA-OAEP', 'dir', 'A256KW', 'rs256', 'RS256 ', 'RSA']
  for (const alg of [...PUBLIC_ALGORITHMS, ...HMACS, ...others, 'toString', '__proto__'])
    for (const used of PUBLIC_ALGORITHMS)
      for (const kid of new Set([SIGNED_BY[alg], SIGNED_BY[used], undefined]))
        if (!same(alg, used)) attacks.push(() => signedBy(used, { alg, kid }))
  // The public keys, in all forms that a careless verifier would take for a secret.
  const usual: string[] = []
  for (const [kid, { publicKey }] of Object.entries(PUBLIC)) {
    const pem = String(publicKey.export({ type: 'spki', format: 'pem' }))
    const der = publicKey.export({ type: 'spki', format: 'der' })
    const texts = [jwk(publicKey), jwk(publicKey, { kid })].map((key) => JSON.stringify(key))
    for (const secret of [pem, pem.trim(), der, ...texts, '', kid])
      for (const alg of [...HMACS, ...PUBLIC_ALGORITHMS])
        for (const used of HMACS) {
          const attack = () => hmac(secret, { alg, kid }, CLAIMS, used)
          if (alg === 'HS256' && used === alg) usual.push(attack())
          else attacks.push(attack)
        }
  }
  // A number that divides none of the numbers of algorithms, keys and forms.
  const tried = sampled(attacks, 59, t).map((attack) => attack())
  await attack(t, await withKeySet(t), [...usual, ...tried])
})

test('token attacks: with a secret, no algorithm passes but HS256', async (t) => {
  const named: (() => string)[] = []
  for (const alg of [...PUBLIC_ALGORITHMS, ...HMACS, 'hs256', 'HS256 ', 'HS1', 'A256KW', 'dir']) {
    for (const used of HMACS)
      if (alg !== 'HS256' || used !== alg) named.push(() => hmac(SECRET, { alg }, CLAIMS, used))
    for (const used of PUBLIC_ALGORITHMS) {
      const own = jwk(PUBLIC[SIGNED_BY[used] ?? 'rsa'].publicKey)
      named.push(() => signedBy(used, { alg, jwk: own }))
    }
  }
  const attacks = sampled(named, 11, t).map((attack) => attack())
  const twice = Buffer.concat([SECRET, SECRET])
  const texts = ['', '\0', '\0'.repeat(32), 'secret', SECRET.toString('hex')]
  for (const secret of [...texts, SECRET.toString('base64'), SECRET.subarray(0, 31), twice])
    attacks.push(hmac(secret))
  await attack(t, await withSecret(t), attacks)
})

test('token attacks: alg none is refused, in any spelling, with any signature', async (t) => {
  const cases = Array.from({ length: 16 }, (_, bits) =>
    [...'none'].map((letter, at) => (bits & (1 << at) ? letter.toUpperCase() : letter)).join(''),
  )
  const spellings: readonly unknown[] = [
    [' none', 'none ', 'none\0', 'n\u043ene', '\uff4eone', 'no\u200bne', 'None;', '', 'null'],
    ['undefined', null, false, 0, [], ['none'], ['RS256'], ['HS256'], {}, { alg: 'HS256' }],
  ].flat()
  const attacks = [...cases, ...spellings].flatMap((alg) => {
    const input = `${base64url({ alg, kid: 'rsa' })}.${base64url(CLAIMS)}`
    const signatures = [
      signature('HS256', input, SECRET),
      signature('RS256', input, rsa.privateKey),
    ]
    return ['', 'AA', 'bm9uZQ', ...signatures].map((end) => `${input}.${end}`)
  })
  // No alg at all; two of them, of which every reader here takes the last.
  for (const header of [
    ['{}', '{"kid":"rsa"}', '{"Alg":"RS256"}', '{"__proto__":{"alg":"RS256"},"kid":"rsa"}'],
    ['{"alg":"RS256","alg":"none","kid":"rsa"}', '{"alg":"HS256","\\u0061lg":"none"}'],
  ].flat()) {
    for (const end of ['', 'AA']) attacks.push(`${base64url(header)}.${base64url(CLAIMS)}.${end}`)
    attacks.push(signedBy('RS256', header), signedBy('HS256', header, CLAIMS, SECRET))
  }
  for (const target of [await withKeySet(t), await withSecret(t)])
    await attack(t, target, sampled(attacks, 9, t))
})

test('token attacks: a kid is a name to look up and nothing else', async (t) => {
  const target = await withKeySet(t)
  const rows: readonly unknown[][] = [
    ['../../../../../../dev/null', '/dev/null', '/proc/self/environ', 'file:///dev/null'],
    ['./dev.key', 'C:\\windows\\win.ini', `${target.issuerUrl}/evil`, '//127.0.0.1/evil'],
    ['http://[::1]/', 'data:,{}', "' OR '1'='1", "x' UNION SELECT 'AAAA'; --"],
    ['"; DROP TABLE plants; --', '$(id)', '`id`', '| id', '\r\nX-Evil: 1', '%00', '%2e%2e%2f'],
    ['\0', 'p256\0', 'p256 ', ' p256', 'P256', 'p\u200b256', '*', '.*', 'p25', 'p2566', 'evil'],
    ['__proto__', 'constructor', 'prototype', 'toString', 'hasOwnProperty', 'valueOf', 'length'],
    ['keys', 'then', 'k'.repeat(8192), '\u{1f490}'.repeat(1000), '', '0', '-1', null, 0, 1, -0.5],
    [true, [], ['p256'], {}, { kid: 'p256' }, { toString: 'p256' }, { __proto__: null, length: 1 }],
  ]
  const kids = rows.flat()
  const attacks = kids.flatMap((kid) => [
    signedBy('ES256', { kid }, CLAIMS, other256.privateKey),
    // The right key under a wrong name.
    signedBy('ES256', { kid }),
  ])
  const unsigned = kids.map((kid) => hmac('', { kid }))
  await attack(t, target, sampled([...attacks, ...unsigned], 4, t))
  await attack(t, await withSecret(t), sampled(unsigned, 4, t))
})

test('token attacks: keys in or named by a token, crit, b64, zip and typ', async (t) => {
  const target = await withKeySet(t)
  const evil = `${target.issuerUrl}/evil`
  const own = jwk(other256.publicKey, { kid: 'evil' })
  const x5c = [other256.publicKey.export({ type: 'spki', format: 'der' }).toString('base64')]
  const brought: readonly Members[] = [
    ...[{ jwk: own }, { jku: evil }, { x5u: evil }, { x5c }, { key: own }, { iss: evil }],
    ...[{ url: evil }, { x5t: 'AAAA' }, { 'x5t#S256': 'AAAA' }],
    { jwks: { keys: [own] } },
    { jwk: own, jku: evil, x5u: evil, x5c },
  ]
  const attacks = brought.flatMap((more) =>
    ['evil', 'p256', undefined].map((kid) =>
      signedBy('ES256', { kid, ...more }, CLAIMS, other256.privateKey),
    ),
  )
  // The following are signed by the right key.
  const header = (more: Members): Members => ({ kid: 'rsa', ...more })
  const crits: readonly unknown[] = [
    [['x'], [], 'exp', ['exp'], null, ['__proto__'], ['constructor'], [''], ['alg'], ['kid']],
    [[['b64']], [null], {}, true, 0, ['b64', 'x'], ['B64']],
  ].flat()
  const others = 'logout id dpop secevent token-introspection'.split(' ').map((of) => `${of}+jwt`)
  const typs: readonly unknown[] = [
    ...[...others, 'JOSE+JSON', 'JWE'],
    ...['', 'jwt ', ' JWT', 'at+jwt;x=1', 'at jwt', null, 0, [], ['at+jwt'], {}],
  ]
  const zipped = deflateRawSync(JSON.stringify(CLAIMS))
  attacks.push(
    ...crits.map((crit) => signedBy('RS256', header({ crit, x: 1, exp: now + 60, b64: true }))),
    ...[false, 'false', 0, null, 'true', []].flatMap((b64) => [
      signedBy('RS256', header({ b64 })),
      signedBy('RS256', header({ b64, crit: ['b64'] })),
    ]),
    token({ alg: 'RS256', kid: 'rsa', zip: 'DEF' }, zipped, rsa.privateKey, 'RS256'),
    signedBy('RS256', header({ zip: 'DEF', crit: ['zip'] })),
    ...typs.map((typ) => signedBy('RS256', header({ typ }))),
    signedBy('RS256', '{"alg":"RS256","kid":"rsa","typ":"at+jwt","typ":"logout+jwt"}'),
  )
  await attack(t, target, sampled(attacks, 4, t))
})

test('token attacks: anything but one compact JWS is refused', async (t) => {
  const target = await withKeySet(t)
  const { good } = target
  const [first = '', payload = '', last = ''] = good.split('.')
  const flattened = JSON.stringify({ payload, protected: first, signature: last })
  const general = JSON.stringify({ payload, signatures: [{ protected: first, signature: last }] })
  const random = (bytes: number) => randomBytes(bytes).toString('base64url')
  const direct = base64url({ alg: 'dir', enc: 'A256GCM' })
  const wrapped = base64url({ alg: 'RSA-OAEP-256', enc: 'A256GCM', kid: 'rsa' })
  const claimsText = JSON.stringify(CLAIMS)
  // A token in a token; text, arrays and two documents instead of claims.
  const payloads = [
    [good, JSON.stringify(good), `[${claimsText}]`, claimsText + claimsText],
    ['null', '1', '""', ''],
  ].flat()
  const attacks = [
    // JWE.
    `${direct}..${random(12)}.${base64url(CLAIMS)}.${random(16)}`,
    `${wrapped}.${random(256)}.AAAA.AAAA.AAAA`,
    ...[base64url(flattened), base64url(general), `${base64url(flattened)}..`],
    ...[`${first}..${last}`, `${first}.${payload}`, `${good}.`, `.${good}`, `${good}.${last}`],
    ...[`${good}~`, `${good}~${payload}~`, good.replaceAll('.', '..')],
    [...good].reverse().join(''),
    ...[good.toUpperCase(), good.toLowerCase(), 'a', '.', '..', '-', '_', 'null', 'undefined', '0'],
    ...payloads.flatMap((each) => [
      signedBy('RS256', { kid: 'rsa' }, each),
      signedBy('RS256', { kid: 'rsa', cty: 'JWT' }, each),
    ]),
  ]
  await attack(t, target, attacks)
  const malformed = [
    ...[flattened, general, `${good} ${good}`, `${good},${good}`, `"${good}"`, `${good};a=b`],
    ...[`<${good}>`, '{}', `${good}%20`, `=${good}`],
  ]
  await attack(t, target, malformed, ['authorizationMalformed'])
})

/** The orders of the curves: FIPS 186-5, SP 800-186 §3.2.1. */
const ORDER: Readonly<Record<string, bigint>> = {
  ES256: 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n,
  ES384: BigInt(
    '0xffffffffffffffffffffffffffffffffffffffffffffffff' +
      'c7634d81f4372ddf581a0db248b0a77aecec196accc52973',
  ),
}

function bytesOf(value: bigint, length: number): Buffer {
  return Buffer.from(value.toString(16).padStart(2 * length, '0'), 'hex')
}

function signatureOf(text: string): Buffer {
  return Buffer.from(text.split('.')[2] ?? '', 'base64url')
}

function withSignature(text: string, ...parts: readonly Uint8Array[]): string {
  return text.replace(/[^.]*$/, Buffer.concat(parts).toString('base64url'))
}

test('token attacks: signatures cut, extended, zero, out of range or re-encoded', async (t) => {
  const attacks: string[] = []
  for (const alg of PUBLIC_ALGORITHMS) {
    // Without the zero at its start a PS signature is the same number, which OpenSSL takes. One of
    // 256 begins so.
    let good: string
    let bytes: Buffer
    do {
      good = signedBy(alg, { kid: SIGNED_BY[alg] })
      bytes = signatureOf(good)
    } while (THOROUGH && alg === 'PS256' && bytes[0] !== 0)
    const { length } = bytes
    const half = Math.floor(length / 2)
    const zero = Buffer.alloc(1)
    const [header, , signed] = good.split('.')
    attacks.push(`${header}.${base64url({ ...CLAIMS, sub: 'bob' })}.${signed}`)
    const flipped = [0, 1, half, length - 1].map((at) => bytes.map((byte, i) => byte ^ +(i === at)))
    const cut = [0, 1, 2, half, length - 2, length - 1].map((kept) => bytes.subarray(0, kept))
    for (const parts of [
      ...[[Buffer.alloc(length)], [Buffer.alloc(length, 0xff)], [zero], [bytes, zero]],
      ...[[zero, bytes], [zero, zero, bytes], [bytes, bytes], [Buffer.from(bytes).reverse()]],
      ...[...flipped, ...cut, ...[1, 2, half].map((from) => bytes.subarray(from))].map((all) => [
        all,
      ]),
    ])
      attacks.push(withSignature(good, ...parts))
    if (!alg.startsWith('ES')) continue
    const [r, s] = [bytes.subarray(0, half), bytes.subarray(half)]
    const [none, one, n] = [0n, 1n, ORDER[alg] ?? 1n].map((value) => bytesOf(value, half))
    assert.ok(none && one && n)
    // r and s of zero: CVE-2022-21449. JOSE does not use ASN.1.
    const integer = (value: Buffer) => [Buffer.from([2, value.length + 1, 0]), value]
    const sequence = Buffer.concat([...integer(r), ...integer(s)])
    const long = sequence.length < 128 ? [] : [0x81]
    for (const parts of [
      ...[none, one, n, s].flatMap((first) => [none, one, n, r].map((last) => [first, last])),
      ...[none, one, n].flatMap((wrong) => [[wrong, s], [r, wrong]]),
      [Buffer.from([0x30, ...long, sequence.length]), sequence],
    ])
      attacks.push(withSignature(good, ...parts))
  }
  await attack(t, await withKeySet(t), sampled(attacks, 8, t))
})

test('token attacks: the twin of an ECDSA signature (n - s) is the same caller', async (t) => {
  const { port, adminPort } = await withKeySet(t)
  for (const [alg, order] of Object.entries(ORDER)) {
    const good = signedBy(alg, { kid: SIGNED_BY[alg] }, { ...CLAIMS, sub: alg })
    const bytes = signatureOf(good)
    const half = bytes.length / 2
    const s = BigInt(`0x${bytes.subarray(half).toString('hex')}`)
    const twin = withSignature(good, bytes.subarray(0, half), bytesOf(order - s, half))
    assert.notEqual(twin, good)
    for (const [id, each] of [good, twin, good, twin].entries()) {
      const wire = await Wire.to(port)
      const [, answer] = await wire.write(both(id, alg, each)).answers(2)
      const plants = Array.from({ length: id + 1 }, () => ({ name: alg }))
      assert.deepEqual(JSON.parse(answer?.body ?? ''), plants)
    }
  }
  const { value } = await scrape(adminPort)
  assert.equal(value('plant_store_tokens_verified_total{result="accepted"}'), 2 * 2)
})

test('token attacks: claims of wrong types and values are refused', async (t) => {
  const text = JSON.stringify(CLAIMS)
  const put = (name: string, value: string): string =>
    text.includes(`"${name}":`)
      ? text.replace(new RegExp(`"${name}":("[^"]*"|[^,}]*)`), () => `"${name}":${value}`)
      : text.replace('}', () => `,"${name}":${value}}`)
  const required = ['exp', 'iss', 'aud', 'sub']
  const without = required.map((name) => JSON.stringify({ ...CLAIMS, [name]: undefined }))
  const numbers = ['"1e10"', `"${now + 600}"`, `[${now + 600}]`, '{}', 'null', 'true', '""', '[]']
  const values: Readonly<Record<string, readonly string[]>> = {
    exp: [...numbers, '1e400', '-1e400', '0', '-1', '1', String(now - 6), '1e-400'],
    nbf: [...numbers, String(now + 600), '1e400', '1e300'],
    iat: numbers,
    iss: [
      ...[`"${ISSUER}x"`, `" ${ISSUER}"`, `"${ISSUER.toUpperCase()}"`, `["${ISSUER}"]`, '{}'],
      ...['null', '""', '0', 'true', `{"0":"${ISSUER}"}`],
    ],
    aud: [
      ...['"other"', `"${AUDIENCE} "`, `"${AUDIENCE}\\u0000"`, `"${AUDIENCE},other"`, '""', 'null'],
      ...['0', 'true', '[]', '[null]', `[["${AUDIENCE}"]]`, `{"0":"${AUDIENCE}"}`],
      ...[`{"${AUDIENCE}":true}`, `[{"a":"${AUDIENCE}"}]`],
    ],
    sub: [
      ...['""', 'null', '0', '7', 'true', '[]', '["alice"]', '{}', '{"toString":"alice"}'],
      ...['"\\ud800"', '"a\\udc00b"', '"\\udc00\\ud800"'],
    ],
  }
  const bad = [
    ...Object.entries(values).flatMap(([name, all]) => all.map((value) => put(name, value))),
    ...['{}', ...without, ...without.map((rest) => rest.replace('{', `{"__proto__":${text},`))],
    // The last of two counts, however it is escaped.
    ...['"exp":1', '"s\\u0075b":""', '"iss":"https://evil.example"', '"aud":[]'].map((last) =>
      text.replace('}', `,${last}}`),
    ),
  ]
  const expected = ['tokenUnacceptable', 'tokenExpired']
  const asymmetric = bad.map((payload) => signedBy('ES256', { kid: 'p256' }, payload))
  await attack(t, await withKeySet(t), sampled(asymmetric, 4, t), expected)
  const symmetric = bad.map((payload) => hmac(SECRET, {}, payload))
  await attack(t, await withSecret(t), sampled(symmetric, 4, t), expected)
})

test('token attacks: the last of two claims or headers counts, cached or not', async (t) => {
  const { port } = await withKeySet(t)
  const withSub = (members: string): string =>
    JSON.stringify(CLAIMS).replace('"sub":"alice"', members)
  const tokens = [
    ...['"sub":"alice","sub":"bob"', '"s\\u0075b":"alice","sub":"bob"'],
    '"sub":"alice","\\u0073ub":"bob"',
  ].map((members) => signedBy('RS256', { kid: 'rsa' }, withSub(members)))
  const twoHeaders = '{"alg":"none","alg":"RS256","kid":"evil","kid":"rsa"}'
  tokens.push(signedBy('RS256', twoHeaders, withSub('"sub":"bob"')))
  for (const [at, each] of [...tokens, ...tokens].entries()) {
    const plant = { id: at % tokens.length, name: 'of bob' }
    assert.equal((await post(port, plant, { token: each })).status, 200)
  }
  const of = async (sub: string) =>
    (await call(port, { token: signedBy('ES256', { kid: 'p256' }, { ...CLAIMS, sub }) })).json()
  assert.deepEqual(await of('alice'), [])
  assert.deepEqual(await of('bob'), Array(4).fill({ name: 'of bob' }))
})
