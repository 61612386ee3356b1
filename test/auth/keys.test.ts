import assert from 'node:assert/strict'
import { createHash, createPublicKey, generateKeyPairSync, verify } from 'node:crypto'
import { renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import type { KeySettings } from '../../dist/auth/keys.js'
import { readKeySet } from '../../dist/auth/key-set.js'
import { TIMING } from '../../dist/auth/key-source.js'
import { PEM, readPair } from '../support/keys.ts'
import { logOf, silent } from '../support/log.ts'
import { until } from '../support/time.ts'
import { accepted, base64url, claims, createKeySource, ed25519, fileKeys, jwk } from './tokens.ts'
import { keyFile, type Members, p256, refused, rsa, rsa2, signed } from './tokens.ts'
import { temporaryDirectory, verifier, weak } from './tokens.ts'

function configRefused(config: Partial<KeySettings>, ...words: readonly string[]): void {
  assert.throws(
    () => createKeySource(config, silent),
    (error) => {
      assert(error instanceof Error)
      for (const word of words)
        assert(error.message.includes(word), `${error.message} lacks ${word}`)
      // It may be part of a password or a secret.
      assert(!error.message.includes('xyz'), error.message)
      return true
    },
    JSON.stringify(config),
  )
}

function fileRefused(keys: readonly Members[], ...words: readonly string[]): void {
  const path = keyFile(...keys)
  configRefused({ jwksFile: path }, 'cannot be used: ', ...words)
}

test('secret: a public key or a key set is refused, since anyone could sign with it', () => {
  const jwks = JSON.stringify({ keys: [jwk(p256.publicKey)] }, undefined, 2)
  const pem = String(rsa.publicKey.export(PEM.publicKeyEncoding))
  for (const [what, text] of Object.entries({ PEM: pem, 'a key set': jwks })) {
    const says = `must be a secret, and is ${what}: public keys are for JWKS settings`
    configRefused({ jwtSecret: Buffer.from(`\n${text}`) }, says)
  }
  // Random bytes may begin like a page of HTML.
  const secret = Buffer.from('<'.repeat(32))
  assert.ok(createKeySource({ jwtSecret: secret }, silent))
})

const URLS: readonly (readonly [url: string, trusted: 'always' | 'if anywhere' | 'never'])[] = [
  ['https://issuer.example/', 'always'],
  ['http://127.9.8.7:1/', 'always'],
  ['http://[::1]/', 'always'],
  ['http://localhost:8080/', 'always'],
  ['http://127.1/', 'always'],
  ['http://issuer.example/jwks', 'if anywhere'],
  ['http://127.0.0.1.example/', 'if anywhere'],
  ['http://localhost.example/', 'if anywhere'],
  ['http://128.0.0.1/', 'if anywhere'],
  ['http://[::2]/', 'if anywhere'],
  ['http://0.0.0.0/', 'if anywhere'],
  ['ftp://127.0.0.1/', 'never'],
  ['//127.0.0.1/', 'never'],
  ['jwks', 'never'],
  ['', 'never'],
  ['https://xyzzy@issuer.example/', 'never'],
  ['https://:xyzzy@issuer.example/', 'never'],
  ['http://127.0.0.1@evil.example/', 'never'],
]

for (const [url, trusted] of URLS) {
  test(`key URL: "${url}" is trusted ${trusted}`, () => {
    const open = (): unknown => [
      createKeySource({ jwksUrl: url, issuer: 'no url at all' }, silent),
      createKeySource({ issuer: url }, silent),
    ]
    const anywhere = { jwksUrl: url, keysOverHttp: 'anywhere' } as const
    const openAnywhere = (): unknown => createKeySource(anywhere, silent)
    if (trusted === 'always') open()
    else {
      configRefused({ jwksUrl: url }, 'must be an https URL')
      configRefused({ issuer: url }, 'must be an https URL')
    }
    if (trusted === 'never') assert.throws(openAnywhere, /must be an https URL/)
    else openAnywhere()
  })
}

const NO_SETS: readonly (readonly [content: string, what: string])[] = [
  ['', 'is no JSON object in UTF-8'],
  ['null', 'is no JSON object in UTF-8'],
  ['{"x":"\xff","keys":[]}', 'is no JSON object in UTF-8'],
  ['xyzzy', 'is no JSON object in UTF-8'],
  ['"xyzzy', 'is no JSON object in UTF-8'],
  ['{"xyzzy":}', 'is no JSON object in UTF-8'],
  ['{"keys":[]} xyzzy', 'and is broken JSON'],
  ['\n-----BEGIN PUBLIC KEY-----\nxyzzy', 'is PEM'],
  ['<!doctype html><title>xyzzy</title>', 'is HTML or XML'],
  ['{"keys":{}}', 'has no list of keys'],
  ['{"kty":"OKP"}', 'has no list of keys'],
]

for (const [content, what] of NO_SETS) {
  test(`key file: ${JSON.stringify(content)} stops the start and is not quoted`, () => {
    const path = join(temporaryDirectory(), 'jwks.json')
    writeFileSync(path, Buffer.from(content, 'latin1'))
    const wanted = 'cannot be used: must be a JSON Web Key Set, {"keys": [...]}, and'
    configRefused({ jwksFile: path }, wanted, what)
  })
}

test('key file: 1 MiB is read, one byte more is refused', () => {
  const path = keyFile()
  const text = JSON.stringify({ keys: [jwk(rsa.publicKey)] })
  writeFileSync(path, text.padEnd(1024 * 1024))
  createKeySource({ jwksFile: path }, silent)
  writeFileSync(path, text.padEnd(1024 * 1024 + 1))
  configRefused({ jwksFile: path }, 'more than 1048576 bytes')
})

test('key file: a symmetric or private key stops the start', () => {
  const good = jwk(rsa.publicKey, { kid: 'good' })
  const secret = 'key "bad" is symmetric or private'
  fileRefused([good, { kty: 'oct', use: 'enc' }], 'key 1 is symmetric or private')
  for (const { privateKey } of [rsa, p256, ed25519])
    fileRefused([good, jwk(privateKey, { kid: 'bad', use: 'enc' })], secret)
  for (const name of ['p', 'q', 'dp', 'dq', 'qi', 'oth', 'priv', 'k'])
    fileRefused([good, jwk(rsa.publicKey, { kid: 'bad', [name]: 'AAAA' })], secret)
})

test('key set: with a weak or broken key, a token is refused', async () => {
  const broken = jwk(p256.publicKey, { kid: 'broken', y: jwk(p256.publicKey)['x'] })
  const { n: _, ...lacking } = jwk(rsa.publicKey, { kid: 'lacking' })
  const keys = [jwk(weak.publicKey, { kid: 'weak' }), broken, lacking, null, 7, {}]
  const by = verifier(fileKeys(...(keys as Members[])))
  for (const alg of ['RS256', 'PS256'])
    await refused(signed(alg, weak.privateKey, { kid: 'weak' }), 'tokenInvalid', by)
  await refused(signed('ES256', p256.privateKey, { kid: 'broken' }), 'tokenInvalid', by)
  await refused(signed('RS256', rsa.privateKey, { kid: 'lacking' }), 'tokenInvalid', by)
})

test('key set: an RSA key with an exponent of 1 verifies nothing', async () => {
  for (const e of ['AQ', 'AAE']) {
    const key = jwk(rsa.publicKey, { kid: 'one', e })
    const input = `${base64url({ alg: 'RS256', kid: 'one' })}.${base64url(claims())}`
    const hash = createHash('sha256').update(input).digest('hex')
    // The encoded message of RFC 8017 §9.2 is its own signature.
    const end = `003031300d060960864801650304020105000420${hash}`
    const message = Buffer.from(`0001${end.padStart(508, 'f')}`, 'hex')
    const publicKey = createPublicKey({ key, format: 'jwk' })
    assert.ok(verify('sha256', Buffer.from(input), publicKey, message), 'it is forged well')
    const forged = `${input}.${message.toString('base64url')}`
    await refused(forged, 'tokenInvalid', verifier(fileKeys(key)))
  }
})

function read(...keys: readonly unknown[]): ReturnType<typeof readKeySet> {
  return readKeySet(Buffer.from(JSON.stringify({ keys })))
}

const OTHER = jwk(rsa2.publicKey, { kid: 'one' })
/** Keys that no token may use. */
const UNUSABLE: readonly Members[] = [
  { ...OTHER, use: 'enc' },
  { ...OTHER, use: 7 },
  { ...OTHER, key_ops: ['encrypt'] },
  { ...OTHER, key_ops: 'verify' },
  { kty: 'AKP', kid: 'one', pub: 'AAAA' },
  { kty: 'whatever', kid: 'one' },
  { kid: 'one' },
]
/** Keys that jose takes for no algorithm of ours. */
const UNFIT: readonly Members[] = [
  { ...OTHER, alg: 'RSA-OAEP' },
  { ...OTHER, alg: 'HS256' },
  ...[
    generateKeyPairSync('ec', { namedCurve: 'secp256k1', ...PEM }),
    generateKeyPairSync('x25519', PEM),
    generateKeyPairSync('ed448', PEM),
  ].map((pair) => jwk(readPair(pair).publicKey, { kid: 'one' })),
]

test('key set: ignores keys for another purpose, and needs one other key', async () => {
  const operations = { use: 'sig', key_ops: ['verify', 'encrypt'], ext: 'x' }
  const good = jwk(rsa.publicKey, { kid: 'one', ...operations })
  const by = verifier(fileKeys(...UNUSABLE, ...UNFIT, good))
  await accepted(signed('RS256', rsa.privateKey, { kid: 'one' }), by)
  for (const unusable of UNUSABLE) fileRefused([unusable], 'no key')
})

test('key set: the same keys have the same text in any order, and count once', () => {
  const textOf = (...keys: readonly Members[]): string => read(...keys).text
  const [one, two] = [jwk(rsa.publicKey, { kid: 'one' }), jwk(p256.publicKey, { kid: 'two' })]
  const text = textOf(one, two)
  assert.equal(textOf(two, one, ...UNUSABLE, one), text)
  assert.equal(read(one, one).size, 1)
  assert.notEqual(textOf(one), text)
  assert.notEqual(textOf({ ...one, kid: 'three' }, two), text)
  assert.notEqual(textOf({ ...one, alg: 'RS256' }, two), text)
})

test('key file: a new version is used; a broken one is logged once and ignored', async (t) => {
  const path = keyFile(jwk(rsa.publicKey, { kid: 'one' }))
  const errors: string[] = []
  const log = logOf((level, _, fields) => {
    if (level === 'error') errors.push(String(fields?.['reason']))
  })
  const keys = createKeySource({ jwksFile: path }, log, { ...TIMING, poll: 10 })
  const { keys: first } = keys
  keys.start()
  t.after(() => keys.close())
  const by = verifier(keys)
  const one = signed('RS256', rsa.privateKey, { kid: 'one' })
  const two = signed('RS256', rsa2.privateKey, { kid: 'two' })
  await by.verify(one)
  await refused(two, 'tokenInvalid', by)

  const write = (...set: readonly Members[]): void => {
    writeFileSync(`${path}.new`, JSON.stringify({ x: Math.random(), keys: set }))
    renameSync(`${path}.new`, path)
  }
  assert.equal(keys.isStale, false)
  writeFileSync(path, '{')
  await until('a broken file is logged', () => errors.length === 1)
  rmSync(path)
  await until('a missing file is logged', () => errors.length === 2)
  write(jwk(rsa2.publicKey, { kid: 'two' }), jwk(p256.privateKey, { kid: 'bad' }))
  await until('a private key is logged', () => errors.at(-1)?.includes('key "bad"') === true)
  const logged = errors.length
  await delay(60)
  assert.equal(errors.length, logged)
  assert.equal(keys.keys, first)
  assert.equal(keys.isStale, true)
  // It has no age, or an alert would call it too old.
  assert.equal(keys.ageSeconds, undefined)
  await accepted(one, by)

  write(jwk(rsa.publicKey, { kid: 'one' }))
  await until('the same keys are read again', () => keys.isStale === false)
  assert.equal(keys.keys, first)
  assert(!(by.verify(one) instanceof Promise))

  write(jwk(rsa2.publicKey, { kid: 'two' }))
  await until('the new keys count', () => keys.keys !== first)
  await accepted(two, by)
  await refused(one, 'tokenInvalid', by)
})

test('key file: an unknown kid reads the file at once, and known keys stay', async () => {
  const [one, two] = [jwk(rsa.publicKey, { kid: 'one' }), jwk(rsa2.publicKey, { kid: 'two' })]
  const path = keyFile(one)
  const timing = { ...TIMING, poll: 600_000 }
  const by = verifier(createKeySource({ jwksFile: path }, silent, timing))
  const ofTwo = signed('RS256', rsa2.privateKey, { kid: 'two' })
  await refused(ofTwo, 'tokenInvalid', by)
  writeFileSync(path, JSON.stringify({ keys: [one, two] }))
  await accepted(ofTwo, by)
  await accepted(signed('RS256', rsa.privateKey, { kid: 'one' }), by)
})
