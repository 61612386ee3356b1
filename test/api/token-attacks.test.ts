import assert from 'node:assert/strict'
import { type KeyObject, randomBytes } from 'node:crypto'
import { type TestContext, test } from 'node:test'
import { deflateRawSync } from 'node:zlib'
import {
  AUDIENCE,
  base64url,
  claims,
  ed25519,
  ISSUER,
  jwk,
  type Members,
  other256,
  p256,
  p384,
  p521,
  rsa,
  SECRET,
  signature,
  token,
} from '../auth/tokens.ts'
import { call } from '../support/http.ts'
import { scrape } from '../support/metrics.ts'
import { sampled, THOROUGH } from '../support/scale.ts'
import { startService } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { stopClock } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, postBytes, Wire, type WireAnswer } from '../support/wire.ts'

const INVALID = 'Bearer realm="plants", error="invalid_token"'
const MALFORMED = 'Bearer realm="plants", error="invalid_request"'
const BATCH = 8

const now = Math.floor(Date.now() / 1000)
const CLAIMS = claims({ iat: now, exp: now + 600 })
const PUBLIC = { rsa, p256, p384, p521, ed25519 }
type Kid = keyof typeof PUBLIC

const SIGNED_BY: Readonly<Record<string, Kid>> = {
  RS256: 'rsa',
  RS384: 'rsa',
  RS512: 'rsa',
  PS256: 'rsa',
  PS384: 'rsa',
  PS512: 'rsa',
  ES256: 'p256',
  ES384: 'p384',
  ES512: 'p521',
  EdDSA: 'ed25519',
  Ed25519: 'ed25519',
}

interface Target {
  readonly port: number
  readonly adminPort: number
  readonly issuerUrl: string
  /** Every request that the issuer saw. */
  readonly asked: readonly string[]
  /** A good token. */
  readonly good: string
}

/** A service that fetches its keys from this issuer, which also sees any other fetch. */
async function withKeySet(t: TestContext): Promise<Target> {
  // The bucket of fetches for unknown keys is not filled again during the test.
  stopClock(t)
  const asked: string[] = []
  const keys = Object.entries(PUBLIC).map(([kid, { publicKey }]) => jwk(publicKey, { kid }))
  const issuerUrl = await serving(t, (req, res) => {
    asked.push(req.url ?? '')
    res.end(
      JSON.stringify({
        keys: req.url === '/keys' ? keys : [jwk(other256.publicKey, { kid: 'evil' })],
      }),
    )
  })
  const { port, adminPort } = await startService(t, {
    issuer: ISSUER,
    audience: AUDIENCE,
    keys: { kind: 'url', url: `${issuerUrl}/keys` },
    logLevel: 'silent',
  })
  return {
    port,
    adminPort,
    issuerUrl,
    asked,
    good: token({ alg: 'ES256', kid: 'p256' }, CLAIMS, p256.privateKey, 'ES256'),
  }
}

async function withSecret(t: TestContext): Promise<Target> {
  const { port, adminPort } = await startService(t, {
    issuer: ISSUER,
    audience: AUDIENCE,
    keys: { kind: 'secret', secret: SECRET },
    logLevel: 'silent',
  })
  return {
    port,
    adminPort,
    issuerUrl: '',
    asked: [],
    good: token({ alg: 'HS256' }, CLAIMS, SECRET, 'HS256'),
  }
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
  expected: readonly string[],
): Promise<void> {
  assert.equal(new Set(attacks).size, attacks.length, 'an attack appears twice')
  for (let at = 0; at < attacks.length; at += BATCH) {
    const batch = attacks.slice(at, at + BATCH)
    const wire = await Wire.to(port)
    wire.write(
      batch
        .map(
          (each, i) =>
            postBytes({ id: at + i, name: 'stolen' }, { token: each }) +
            head('GET', '/plants', { token: each }),
        )
        .join(''),
    )
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

function refused(answer: WireAnswer, expected: readonly string[], what: string): void {
  const found = verdict(answer)
  assert.ok(expected.includes(String(found)), `${found}: ${what.slice(0, 200)}`)
  assert.deepEqual(
    headerLines(answer, 'www-authenticate'),
    [answer.status === 400 ? MALFORMED : INVALID],
    what,
  )
}

function signedBy(
  alg: string,
  header: unknown,
  payload: Members | string = CLAIMS,
  key: KeyObject | Uint8Array = PUBLIC[SIGNED_BY[alg] ?? 'rsa'].privateKey,
): string {
  return token(typeof header === 'string' ? header : JSON.stringify(header), payload, key, alg)
}

const PUBLIC_ALGORITHMS = Object.keys(SIGNED_BY)
const HMACS = ['HS256', 'HS384', 'HS512']
/** Two names of the same signature. */
const same = (one: string, other: string): boolean =>
  one === other || (one.startsWith('Ed') && other.startsWith('Ed'))

test('token attacks: with public keys, no algorithm passes for another', async (t) => {
  // Each is signed only if it is tried.
  const attacks: (() => string)[] = []
  for (const named of [
    ...PUBLIC_ALGORITHMS,
    ...HMACS,
    'ES256K',
    'ML-DSA-44',
    'RSA-OAEP',
    'dir',
    'A256KW',
    'rs256',
    'RS256 ',
    'RSA',
    'toString',
    '__proto__',
  ]) {
    for (const used of PUBLIC_ALGORITHMS) {
      const kids = [...new Set([SIGNED_BY[named], SIGNED_BY[used], undefined])]
      for (const kid of kids)
        if (!same(named, used)) attacks.push(() => signedBy(used, { alg: named, kid }))
    }
  }
  // The public keys, in all forms that a careless verifier would take for a secret.
  const secrets = Object.entries(PUBLIC).flatMap(([kid, { publicKey }]) => {
    const pem = String(publicKey.export({ type: 'spki', format: 'pem' }))
    return [
      pem,
      pem.trim(),
      publicKey.export({ type: 'spki', format: 'der' }),
      JSON.stringify(jwk(publicKey)),
      JSON.stringify(jwk(publicKey, { kid })),
      '',
      kid,
    ].map((secret) => [kid, Buffer.from(secret)] as const)
  })
  const usual: string[] = []
  for (const alg of [...HMACS, ...PUBLIC_ALGORITHMS]) {
    for (const hmac of HMACS) {
      for (const [kid, secret] of secrets) {
        const attack = (): string => token({ alg, kid }, CLAIMS, secret, hmac)
        if (alg === 'HS256' && hmac === alg) usual.push(attack())
        else attacks.push(attack)
      }
    }
  }
  // A number that divides none of the numbers of algorithms, keys and forms.
  const tried = sampled(attacks, 13).map((attack) => attack())
  await attack(t, await withKeySet(t), [...new Set([...usual, ...tried])], ['tokenInvalid'])
})

test('token attacks: with a secret, no algorithm passes but HS256', async (t) => {
  const attacks: string[] = []
  for (const named of [...PUBLIC_ALGORITHMS, ...HMACS, 'hs256', 'HS256 ', 'HS1', 'A256KW', 'dir']) {
    for (const used of HMACS)
      if (!(named === 'HS256' && used === 'HS256'))
        attacks.push(token({ alg: named }, CLAIMS, SECRET, used))
    for (const used of PUBLIC_ALGORITHMS)
      attacks.push(
        signedBy(used, { alg: named, jwk: jwk(PUBLIC[SIGNED_BY[used] ?? 'rsa'].publicKey) }),
      )
  }
  for (const secret of [
    '',
    '\0',
    '\0'.repeat(32),
    'secret',
    SECRET.toString('hex'),
    SECRET.toString('base64'),
    SECRET.subarray(0, 31),
    Buffer.concat([SECRET, SECRET]),
  ])
    attacks.push(token({ alg: 'HS256' }, CLAIMS, Buffer.from(secret), 'HS256'))
  await attack(t, await withSecret(t), [...new Set(attacks)], ['tokenInvalid'])
})

test('token attacks: alg none is refused, in any spelling, with any signature', async (t) => {
  const cases = Array.from({ length: 16 }, (_, bits) =>
    [...'none'].map((letter, at) => (bits & (1 << at) ? letter.toUpperCase() : letter)).join(''),
  )
  const spellings = [
    ...cases,
    ' none',
    'none ',
    'none\0',
    'n\u043ene',
    '\uff4eone',
    'no\u200bne',
    'None;',
    '',
    'null',
    'undefined',
    null,
    false,
    0,
    [],
    ['none'],
    ['RS256'],
    ['HS256'],
    {},
    { alg: 'HS256' },
  ]
  const attacks = spellings.flatMap((alg) => {
    const input = `${base64url({ alg, kid: 'rsa' })}.${base64url(CLAIMS)}`
    return [
      '',
      'AA',
      'bm9uZQ',
      signature('HS256', input, SECRET),
      signature('RS256', input, rsa.privateKey),
    ].map((end) => `${input}.${end}`)
  })
  // No alg at all; two of them, of which every reader here takes the last.
  for (const header of [
    '{}',
    '{"kid":"rsa"}',
    '{"alg":"RS256","alg":"none","kid":"rsa"}',
    '{"alg":"HS256","\\u0061lg":"none"}',
    '{"Alg":"RS256"}',
    '{"__proto__":{"alg":"RS256"},"kid":"rsa"}',
  ]) {
    for (const end of ['', 'AA']) attacks.push(`${base64url(header)}.${base64url(CLAIMS)}.${end}`)
    attacks.push(
      token(header, CLAIMS, rsa.privateKey, 'RS256'),
      token(header, CLAIMS, SECRET, 'HS256'),
    )
  }
  for (const target of [await withKeySet(t), await withSecret(t)])
    await attack(t, target, attacks, ['tokenInvalid'])
})

test('token attacks: a kid is a name to look up and nothing else', async (t) => {
  const target = await withKeySet(t)
  const kids: readonly unknown[] = [
    '../../../../../../dev/null',
    '/dev/null',
    '/proc/self/environ',
    'file:///dev/null',
    './dev.key',
    'C:\\windows\\win.ini',
    `${target.issuerUrl}/evil`,
    '//127.0.0.1/evil',
    'http://[::1]/',
    'data:,{}',
    "' OR '1'='1",
    "x' UNION SELECT 'AAAA'; --",
    '"; DROP TABLE plants; --',
    '$(id)',
    '`id`',
    '| id',
    '\r\nX-Evil: 1',
    '%00',
    '%2e%2e%2f',
    '\0',
    'p256\0',
    'p256 ',
    ' p256',
    'P256',
    'p\u200b256',
    '*',
    '.*',
    'p25',
    'p2566',
    'evil',
    '0',
    '-1',
    '__proto__',
    'constructor',
    'prototype',
    'toString',
    'hasOwnProperty',
    'valueOf',
    'length',
    'keys',
    'then',
    'k'.repeat(8192),
    '\u{1f490}'.repeat(1000),
    '',
    null,
    0,
    1,
    -0.5,
    true,
    [],
    ['p256'],
    {},
    { kid: 'p256' },
    { toString: 'p256' },
    { __proto__: null, length: 1 },
  ]
  const attacks = kids.flatMap((kid) => [
    signedBy('ES256', { alg: 'ES256', kid }, CLAIMS, other256.privateKey),
    // The right key under a wrong name.
    signedBy('ES256', { alg: 'ES256', kid }),
    token({ alg: 'HS256', kid }, CLAIMS, Buffer.alloc(0), 'HS256'),
  ])
  await attack(t, target, attacks, ['tokenInvalid'])
  const secret = await withSecret(t)
  await attack(
    t,
    secret,
    kids.map((kid) => token({ alg: 'HS256', kid }, CLAIMS, Buffer.alloc(0), 'HS256')),
    ['tokenInvalid'],
  )
})

test('token attacks: a flood of unknown kids causes three fetches', async (t) => {
  const target = await withKeySet(t)
  const perClient = THOROUGH ? 500 : 100
  const attacks = Array.from({ length: 4 * perClient }, () => {
    const header = base64url({ alg: 'RS256', kid: randomBytes(8).toString('hex') })
    return `${header}.${base64url(CLAIMS)}.${randomBytes(256).toString('base64url')}`
  })
  await Promise.all(
    [0, 1, 2, 3].map(async (client) => {
      const at = client * perClient
      const wire = await Wire.to(target.port)
      for (let i = at; i < at + perClient; i += 10) {
        wire.write(
          attacks
            .slice(i, i + 10)
            .map((each) => head('GET', '/plants', { token: each }))
            .join(''),
        )
        for (const answer of (await wire.answers(i - at + 10)).slice(i - at))
          refused(answer, ['tokenInvalid'], '')
      }
      wire.destroy()
    }),
  )
  // The fetch at the start, and the bucket.
  assert.deepEqual(target.asked, Array(1 + 3).fill('/keys'))
  assert.deepEqual((await call(target.port, { token: target.good })).json(), [])
})

test('token attacks: keys in or named by a token, crit, b64, zip and typ', async (t) => {
  const target = await withKeySet(t)
  const evil = `${target.issuerUrl}/evil`
  const own = jwk(other256.publicKey, { kid: 'evil' })
  const certificate = other256.publicKey.export({ type: 'spki', format: 'der' }).toString('base64')
  const brought: readonly Members[] = [
    { jwk: own },
    { jku: evil },
    { x5u: evil },
    { x5c: [certificate] },
    { x5t: 'AAAA' },
    { 'x5t#S256': 'AAAA' },
    { jwk: own, jku: evil, x5u: evil, x5c: [certificate] },
    { jwks: { keys: [own] } },
    { key: own },
    { iss: evil },
    { url: evil },
  ]
  const attacks = brought.flatMap((more) =>
    ['evil', 'p256', undefined].map((kid) =>
      signedBy('ES256', { alg: 'ES256', kid, ...more }, CLAIMS, other256.privateKey),
    ),
  )
  // The following are signed by the right key.
  const crits: readonly unknown[] = [
    ['x'],
    [],
    'exp',
    ['exp'],
    null,
    ['__proto__'],
    ['constructor'],
    [''],
    ['alg'],
    ['kid'],
    [['b64']],
    [null],
    {},
    true,
    0,
    ['b64', 'x'],
    ['B64'],
  ]
  for (const crit of crits)
    attacks.push(
      signedBy('RS256', { alg: 'RS256', kid: 'rsa', crit, x: 1, exp: now + 60, b64: true }),
    )
  for (const b64 of [false, 'false', 0, null, 'true', []]) {
    attacks.push(
      signedBy('RS256', { alg: 'RS256', kid: 'rsa', b64 }),
      signedBy('RS256', { alg: 'RS256', kid: 'rsa', b64, crit: ['b64'] }),
    )
  }
  const zipped = deflateRawSync(JSON.stringify(CLAIMS))
  attacks.push(
    token({ alg: 'RS256', kid: 'rsa', zip: 'DEF' }, zipped, rsa.privateKey, 'RS256'),
    token({ alg: 'RS256', kid: 'rsa', zip: 'DEF', crit: ['zip'] }, CLAIMS, rsa.privateKey, 'RS256'),
  )
  for (const typ of [
    'logout+jwt',
    'id+jwt',
    'dpop+jwt',
    'secevent+jwt',
    'token-introspection+jwt',
    'JOSE',
    'JWE',
    '',
    'jwt ',
    ' JWT',
    'at+jwt;x=1',
    'at jwt',
    null,
    0,
    [],
    ['at+jwt'],
    {},
  ])
    attacks.push(signedBy('RS256', { alg: 'RS256', kid: 'rsa', typ }))
  attacks.push(signedBy('RS256', '{"alg":"RS256","kid":"rsa","typ":"at+jwt","typ":"logout+jwt"}'))
  await attack(t, target, attacks, ['tokenInvalid'])
})

test('token attacks: anything but one compact JWS is refused', async (t) => {
  const target = await withKeySet(t)
  const { good } = target
  const [protectedHeader = '', payload = '', signed = ''] = good.split('.')
  const flattened = JSON.stringify({ payload, protected: protectedHeader, signature: signed })
  const general = JSON.stringify({
    payload,
    signatures: [{ protected: protectedHeader, signature: signed }],
  })
  const jwe = [
    base64url({ alg: 'dir', enc: 'A256GCM' }),
    '',
    randomBytes(12).toString('base64url'),
    base64url(CLAIMS),
    randomBytes(16).toString('base64url'),
  ].join('.')
  const attacks = [
    jwe,
    [
      base64url({ alg: 'RSA-OAEP-256', enc: 'A256GCM', kid: 'rsa' }),
      randomBytes(256).toString('base64url'),
      'AAAA',
      'AAAA',
      'AAAA',
    ].join('.'),
    base64url(flattened),
    base64url(general),
    `${base64url(flattened)}..`,
    `${protectedHeader}..${signed}`,
    `${protectedHeader}.${payload}`,
    `${good}.`,
    `.${good}`,
    `${good}.${signed}`,
    `${good}~`,
    `${good}~${payload}~`,
    // A token in a token; text, arrays and two documents instead of claims.
    ...[
      good,
      JSON.stringify(good),
      `[${JSON.stringify(CLAIMS)}]`,
      `${JSON.stringify(CLAIMS)}${JSON.stringify(CLAIMS)}`,
      'null',
      '1',
      '""',
      '',
    ].flatMap((each) => [
      signedBy('RS256', { alg: 'RS256', kid: 'rsa' }, each),
      signedBy('RS256', { alg: 'RS256', kid: 'rsa', cty: 'JWT' }, each),
    ]),
    good.replaceAll('.', '..'),
    good.toUpperCase(),
    good.toLowerCase(),
    [...good].reverse().join(''),
    'a',
    '.',
    '..',
    '-',
    '_',
    'null',
    'undefined',
    '0',
  ]
  await attack(t, target, attacks, ['tokenInvalid'])
  const malformed = [
    flattened,
    general,
    `${good} ${good}`,
    `${good},${good}`,
    `"${good}"`,
    `${good};a=b`,
    `<${good}>`,
    '{}',
    `${good}%20`,
    `=${good}`,
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

function number(bytes: Uint8Array): bigint {
  return BigInt(`0x${Buffer.from(bytes).toString('hex')}`)
}

function bytesOf(value: bigint, length: number): Buffer {
  return Buffer.from(value.toString(16).padStart(2 * length, '0'), 'hex')
}

function withSignature(text: string, signed: Uint8Array): string {
  return text.replace(/[^.]*$/, Buffer.from(signed).toString('base64url'))
}

test('token attacks: signatures cut, extended, zero, out of range or re-encoded', async (t) => {
  const attacks: string[] = []
  for (const alg of PUBLIC_ALGORITHMS) {
    // Without the zero at its start a PS signature is the same number, which OpenSSL takes.
    let [good, bytes] = ['', Buffer.alloc(1)]
    do {
      good = signedBy(alg, { alg, kid: SIGNED_BY[alg] })
      bytes = Buffer.from(good.split('.')[2] ?? '', 'base64url')
    } while (alg === 'PS256' && bytes[0] !== 0)
    const { length } = bytes
    const zero = Buffer.alloc(1)
    const changed = [
      Buffer.alloc(length),
      Buffer.alloc(length, 0xff),
      Buffer.alloc(1),
      Buffer.concat([zero, bytes]),
      Buffer.concat([zero, zero, bytes]),
      Buffer.concat([bytes, zero]),
      Buffer.concat([bytes, bytes]),
      Buffer.from(bytes).reverse(),
      ...[0, 1, Math.floor(length / 2), length - 1].map((at) => {
        const flipped = Buffer.from(bytes)
        flipped[at] = (flipped[at] ?? 0) ^ 1
        return flipped
      }),
      ...[1, 2, Math.floor(length / 2), length - 2, length - 1].map((kept) =>
        bytes.subarray(0, kept),
      ),
      ...[1, 2, Math.floor(length / 2)].map((from) => bytes.subarray(from)),
    ]
    attacks.push(...changed.map((each) => withSignature(good, each)), good.replace(/[^.]*$/, ''))
    if (!alg.startsWith('ES')) continue
    const half = length / 2
    const [r, s] = [bytes.subarray(0, half), bytes.subarray(half)]
    const none = Buffer.alloc(half)
    const one = bytesOf(1n, half)
    const n = bytesOf(ORDER[alg] ?? 1n, half)
    // r and s of zero: CVE-2022-21449. JOSE does not use ASN.1.
    const integer = (value: Buffer): Buffer =>
      Buffer.concat([Buffer.from([2, value.length + 1, 0]), value])
    const sequence = Buffer.concat([integer(r), integer(s)])
    const asn1 = Buffer.concat([
      sequence.length < 128
        ? Buffer.from([0x30, sequence.length])
        : Buffer.from([0x30, 0x81, sequence.length]),
      sequence,
    ])
    const pairs = [
      [none, none],
      [none, s],
      [r, none],
      [s, r],
      [n, n],
      [n, s],
      [r, n],
      [one, one],
      [none, one],
      [one, none],
    ]
    attacks.push(
      ...pairs.map((pair) => withSignature(good, Buffer.concat(pair))),
      withSignature(good, asn1),
    )
  }
  await attack(t, await withKeySet(t), [...new Set(attacks)], ['tokenInvalid'])
})

test('token attacks: the twin of an ECDSA signature (n - s) is the same caller', async (t) => {
  const { port, adminPort } = await withKeySet(t)
  for (const alg of Object.keys(ORDER)) {
    const good = signedBy(alg, { alg, kid: SIGNED_BY[alg] }, { ...CLAIMS, sub: alg })
    const bytes = Buffer.from(good.split('.')[2] ?? '', 'base64url')
    const half = bytes.length / 2
    const twin = withSignature(
      good,
      Buffer.concat([
        bytes.subarray(0, half),
        bytesOf((ORDER[alg] ?? 0n) - number(bytes.subarray(half)), half),
      ]),
    )
    assert.notEqual(twin, good)
    for (const [id, each] of [good, twin, good, twin].entries()) {
      const wire = await Wire.to(port)
      const [, answer] = await wire
        .write(
          postBytes({ id, name: alg }, { token: each }) + head('GET', '/plants', { token: each }),
        )
        .answers(2)
      assert.deepEqual(
        JSON.parse(answer?.body ?? ''),
        Array.from({ length: id + 1 }, () => ({ name: alg })),
      )
      wire.destroy()
    }
  }
  assert.equal(
    (await scrape(adminPort)).value('plant_store_tokens_verified_total{result="accepted"}'),
    2 * Object.keys(ORDER).length,
  )
})

test('token attacks: claims of wrong types and values are refused', async (t) => {
  const numbers: readonly string[] = [
    '"1e10"',
    `"${now + 600}"`,
    `[${now + 600}]`,
    '{}',
    'null',
    'true',
    '""',
    '[]',
  ]
  const text = JSON.stringify(CLAIMS)
  const put = (name: string, value: string): string =>
    text.includes(`"${name}":`)
      ? text.replace(new RegExp(`"${name}":("[^"]*"|[^,}]*)`), () => `"${name}":${value}`)
      : text.replace('}', () => `,"${name}":${value}}`)
  const leave = (name: string): string =>
    JSON.stringify(Object.fromEntries(Object.entries(CLAIMS).filter(([key]) => key !== name)))
  const bad = [
    ...numbers.flatMap((value) => ['exp', 'nbf', 'iat'].map((name) => put(name, value))),
    ...['1e400', '-1e400', '0', '-1', '1', String(now - 6), '1e-400'].map((value) =>
      put('exp', value),
    ),
    ...[String(now + 600), '1e400', '1e300'].map((value) => put('nbf', value)),
    ...[
      `"${ISSUER}x"`,
      `" ${ISSUER}"`,
      `"${ISSUER.toUpperCase()}"`,
      `["${ISSUER}"]`,
      '{}',
      'null',
      '""',
      '0',
      'true',
      `{"0":"${ISSUER}"}`,
    ].map((value) => put('iss', value)),
    ...[
      '"other"',
      `"${AUDIENCE} "`,
      `"${AUDIENCE}\\u0000"`,
      `"${AUDIENCE},other"`,
      '""',
      'null',
      '0',
      'true',
      '[]',
      '[null]',
      `[["${AUDIENCE}"]]`,
      `{"0":"${AUDIENCE}"}`,
      `{"${AUDIENCE}":true}`,
      `[{"a":"${AUDIENCE}"}]`,
    ].map((value) => put('aud', value)),
    ...[
      '""',
      'null',
      '0',
      '7',
      'true',
      '[]',
      '["alice"]',
      '{}',
      '{"toString":"alice"}',
      '"\\ud800"',
      '"a\\udc00b"',
      '"\\udc00\\ud800"',
    ].map((value) => put('sub', value)),
    ...['exp', 'iss', 'aud', 'sub'].map(leave),
    '{}',
    ...['sub', 'exp', 'iss', 'aud'].map((name) =>
      leave(name).replace('{', `{"__proto__":${text},`),
    ),
    // The last of two counts, however it is escaped.
    text.replace('}', ',"exp":1}'),
    text.replace('}', ',"s\\u0075b":""}'),
    text.replace('}', ',"iss":"https://evil.example"}'),
    text.replace('}', ',"aud":[]}'),
  ]
  for (const target of [await withKeySet(t), await withSecret(t)]) {
    const attacks = [...new Set(bad)].map((payload) =>
      target.issuerUrl === ''
        ? token({ alg: 'HS256' }, payload, SECRET, 'HS256')
        : signedBy('ES256', { alg: 'ES256', kid: 'p256' }, payload),
    )
    await attack(t, target, attacks, ['tokenUnacceptable', 'tokenExpired'])
  }
})

test('token attacks: the last of two claims or headers counts, cached or not', async (t) => {
  const { port } = await withKeySet(t)
  const text = JSON.stringify(CLAIMS)
  const names = [
    ['"sub"', '"sub"'],
    ['"s\\u0075b"', '"sub"'],
    ['"sub"', '"\\u0073ub"'],
  ] as const
  const tokens = [
    ...names.map(([first, second]) =>
      signedBy(
        'RS256',
        { alg: 'RS256', kid: 'rsa' },
        text.replace('"sub":"alice"', `${first}:"alice",${second}:"bob"`),
      ),
    ),
    signedBy(
      'RS256',
      '{"alg":"none","alg":"RS256","kid":"evil","kid":"rsa"}',
      text.replace('"sub":"alice"', '"sub":"bob"'),
    ),
  ]
  for (const [at, each] of [...tokens, ...tokens].entries()) {
    const wire = await Wire.to(port)
    const [created] = await wire
      .write(postBytes({ id: at % tokens.length, name: 'of bob' }, { token: each }))
      .answers(1)
    assert.equal(created?.status, 200)
    wire.destroy()
  }
  const of = async (sub: string) =>
    (
      await call(port, {
        token: signedBy('ES256', { alg: 'ES256', kid: 'p256' }, { ...CLAIMS, sub }),
      })
    ).json()
  assert.deepEqual(await of('alice'), [])
  assert.deepEqual(
    await of('bob'),
    tokens.map(() => ({ name: 'of bob' })),
  )
})

test('token attacks: a token too long for a header is refused unread', async (t) => {
  const { port } = await withKeySet(t)
  for (const length of [17_000, 2 ** 20]) {
    const wire = await Wire.to(port)
    const [answer] = await wire
      .write(head('GET', '/plants', { token: `a.${'a'.repeat(length)}.a` }))
      .answers(1)
    assert.ok(answer)
    assert.equal(verdict(answer), 'headersTooLarge')
    wire.destroy()
  }
})
