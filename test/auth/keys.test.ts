import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import type { KeyConfig } from '../../dist/auth/keys.js'
import { MAX_KEYS, readKeySet } from '../../dist/auth/key-set.js'
import { TIMING } from '../../dist/auth/key-source.js'
import { ConfigError } from '../../dist/errors.js'
import { PEM, readPair } from '../support/keys.ts'
import { logOf, silent } from '../support/log.ts'
import { until } from '../support/time.ts'
import {
  accepted,
  createKeySource,
  ed25519,
  fileKeys,
  ISSUER,
  jwk,
  keyFile,
  type Members,
  p256,
  p384,
  p521,
  pause,
  refused,
  rsa,
  rsa2,
  signed,
  temporaryDirectory,
  verifier,
} from './tokens.ts'

const FAST = { ...TIMING, poll: 10 }
const weak = readPair(generateKeyPairSync('rsa', { modulusLength: 1024, ...PEM }))

function configRefused(config: KeyConfig, issuer: string, ...words: readonly string[]): void {
  assert.throws(
    () => createKeySource(config, issuer, silent),
    (error) => {
      assert(error instanceof ConfigError)
      for (const word of words)
        assert(error.message.includes(word), `${error.message} lacks ${word}`)
      return true
    },
    JSON.stringify(config),
  )
}

function fileRefused(keys: readonly Members[], ...words: readonly string[]): void {
  const path = keyFile(...keys)
  configRefused({ kind: 'file', path }, ISSUER, path, ...words)
}

test('secret: 32 bytes are accepted, 31 refused', () => {
  const { keys } = createKeySource({ kind: 'secret', secret: Buffer.alloc(32) }, ISSUER, silent)
  assert.deepEqual(keys?.algorithms, ['HS256'])
  configRefused({ kind: 'secret', secret: Buffer.alloc(31) }, ISSUER, '32 bytes')
})

test('secret: a public key or a key set is refused, since anyone could sign with it', () => {
  const jwks = JSON.stringify({ keys: [jwk(p256.publicKey)] }, undefined, 2)
  const pem = String(rsa.publicKey.export(PEM.publicKeyEncoding))
  const texts = { PEM: pem, 'a key set': jwks }
  for (const [what, text] of Object.entries(texts))
    configRefused(
      { kind: 'secret', secret: Buffer.from(`\n${text}`) },
      ISSUER,
      `must be a secret, and is ${what}: public keys are for JWKS settings`,
    )
  // Random bytes may begin like a page of HTML.
  const secret = Buffer.from('<'.repeat(32))
  assert.ok(createKeySource({ kind: 'secret', secret }, ISSUER, silent))
})

test('key URL: https, or http on loopback, and nothing else', () => {
  const urls = [
    'http://issuer.example/jwks',
    'http://127.0.0.1.example/',
    'http://localhost.example/',
    'http://128.0.0.1/',
    'http://[::2]/',
    'http://0.0.0.0/',
    'ftp://127.0.0.1/',
    'file:///etc/jwks',
    'data:,{}',
    '//127.0.0.1/',
    'jwks',
    '',
    'https://user:word@issuer.example/',
    'https://user@issuer.example/',
    'https://:word@issuer.example/',
    'http://127.0.0.1@evil.example/',
  ]
  for (const url of urls) {
    configRefused({ kind: 'url', url }, ISSUER, 'must be an https URL')
    configRefused({ kind: 'discovery' }, url, 'must be an https URL')
  }
  const good = [
    'https://issuer.example/',
    'http://127.9.8.7:1/',
    'http://[::1]/',
    'http://localhost:8080/',
    'http://127.1/',
  ]
  for (const url of good) {
    createKeySource({ kind: 'url', url }, 'no url at all', silent)
    createKeySource({ kind: 'discovery' }, url, silent)
  }
})

test('key URL: a password is not shown', () => {
  const show = (): unknown =>
    createKeySource({ kind: 'url', url: 'https://user:word@issuer.example/' }, ISSUER, silent)
  assert.throws(show, (error: Error) => !error.message.includes('word'))
})

test('key file: missing, a directory or no key set, it stops the start', () => {
  const directory = temporaryDirectory()
  const path = join(directory, 'jwks.json')
  configRefused({ kind: 'file', path }, ISSUER, 'cannot be read: ENOENT: no such file')
  configRefused({ kind: 'file', path: directory }, ISSUER, 'cannot be read: EISDIR')
  for (const text of [
    '',
    '{',
    '[]',
    '{}',
    '{"keys":{}}',
    'null',
    JSON.stringify(jwk(rsa.publicKey)),
  ]) {
    writeFileSync(path, text)
    configRefused({ kind: 'file', path }, ISSUER, path)
  }
  writeFileSync(path, Buffer.from('{"keys":[],"x":"\xff"}', 'latin1'))
  configRefused({ kind: 'file', path }, ISSUER, path)
})

test('key file: PEM or a page says what is wanted, and what it is', () => {
  const path = join(temporaryDirectory(), 'jwks.json')
  const wanted = `${path}: must be a JSON Web Key Set, {"keys": [...]}, and`
  for (const [text, what] of [
    [`\n${rsa.publicKey.export({ type: 'spki', format: 'pem' })}`, 'is PEM'],
    ['<!doctype html><title>Sign in</title>', 'is HTML or XML'],
    ['[]', 'is no JSON object in UTF-8'],
    [JSON.stringify(jwk(rsa.publicKey)), 'has no list of keys'],
  ] as const) {
    writeFileSync(path, text)
    configRefused({ kind: 'file', path }, ISSUER, `${wanted} ${what}`)
  }
})

test('key file: an error quotes nothing of it, as it may be the secret', () => {
  const path = join(temporaryDirectory(), 'jwks.json')
  for (const text of ['xyzzy', 'xyzzy'.repeat(20), '"xyzzy', '{"xyzzy":}', '{"keys":[]} xyzzy']) {
    writeFileSync(path, text)
    assert.throws(
      () => createKeySource({ kind: 'file', path }, ISSUER, silent),
      (error) => error instanceof ConfigError && !error.message.includes('xyz'),
      text,
    )
  }
})

test('key file: 1 MiB is read, one byte more is refused', () => {
  const path = keyFile(jwk(rsa.publicKey))
  const text = JSON.stringify({ keys: [jwk(rsa.publicKey)] })
  writeFileSync(path, text.padEnd(1024 * 1024))
  createKeySource({ kind: 'file', path }, ISSUER, silent)
  writeFileSync(path, text.padEnd(1024 * 1024 + 1))
  configRefused({ kind: 'file', path }, ISSUER, path, 'has more than')
})

test('key file: a symmetric, private, weak or invalid key stops the start', () => {
  const good = jwk(rsa.publicKey, { kid: 'good' })
  fileRefused([good, { kty: 'oct', k: 'AAAA', kid: 'bad' }], 'key "bad"', 'symmetric')
  fileRefused([good, { kty: 'oct', k: 'AAAA', use: 'enc' }], 'key 1', 'symmetric')
  for (const pair of [rsa, p256, ed25519])
    fileRefused([good, jwk(pair.privateKey, { kid: 'bad' })], 'key "bad"', 'private')
  fileRefused([good, jwk(rsa.privateKey, { use: 'enc' })], 'key 1', 'private')
  fileRefused([jwk(weak.publicKey, { kid: 'bad' })], 'key "bad"', '1024')
  for (const e of ['AQ', 'Ag', 'BA', 'AA', ''])
    fileRefused([jwk(rsa.publicKey, { kid: 'bad', e })], 'key "bad"', 'exponent')
  fileRefused(
    [jwk(p256.publicKey, { kid: 'bad', x: jwk(p384.publicKey)['x'] })],
    'key "bad"',
    'is rejected: ',
  )
  fileRefused(
    [jwk(p256.publicKey, { kid: 'bad', y: jwk(p256.publicKey)['x'] })],
    'key "bad"',
    'is rejected: ',
  )
  fileRefused([jwk(ed25519.publicKey, { kid: 'bad', x: 'AAAA' })], 'key "bad"', 'is rejected: ')
  fileRefused([jwk(rsa.publicKey, { kid: 'bad', n: 7 })], 'key "bad"', 'is rejected: ')
  fileRefused([jwk(rsa.publicKey, { kid: 7 })], 'key 0', 'kid')
  const path = join(temporaryDirectory(), 'jwks.json')
  writeFileSync(path, JSON.stringify({ keys: [good, null] }))
  configRefused({ kind: 'file', path }, ISSUER, path, 'key 1')
  fileRefused(
    [{ kty: 'oct', kid: 'one' }, jwk(weak.publicKey, { kid: 'two' })],
    'key "one"',
    'key "two"',
  )
})

test('key set: RSA with 2048 bits and an exponent of 3 is strong enough', () => {
  const { publicKey } = readPair(
    generateKeyPairSync('rsa', { modulusLength: 2048, publicExponent: 3, ...PEM }),
  )
  assert.equal(read(jwk(publicKey)).size, 1)
})

function read(...keys: readonly unknown[]): ReturnType<typeof readKeySet> {
  return readKeySet(Buffer.from(JSON.stringify({ keys })))
}

/** A public RSA key of this size. No private key belongs to it. */
function rsaOf(bits: number, exponent: bigint, kid = 'big'): Members {
  const number = (value: bigint): string => {
    const hex = value.toString(16)
    const even = hex.padStart(hex.length + (hex.length % 2), '0')
    return Buffer.from(even, 'hex').toString('base64url')
  }
  return { kty: 'RSA', kid, n: number((1n << BigInt(bits - 1)) + 1n), e: number(exponent) }
}

test('key set: RSA up to 16,384 bits, with exponents below 2^64', () => {
  const longest = 2n ** 64n - 1n
  for (const [bits, exponent] of [
    [16_384, 65_537n],
    [2048, longest],
    [16_384, longest],
  ] as const) {
    assert.deepEqual(read(rsaOf(bits, exponent)).rejectedKeys, [])
    assert.equal(read(rsaOf(bits, exponent)).size, 1)
  }
  const refused = 'key "big" is rejected: oversized:'
  fileRefused([rsaOf(16_385, 65_537n)], `${refused} "n" has 2732 characters, more than 2731`)
  fileRefused([rsaOf(2048, 2n ** 64n + 1n)], `${refused} "e" has 12 characters, more than 11`)
})

test('key set: a key member that is too long is refused by its length', () => {
  const long = Buffer.alloc(20_000, 1).toString('base64url')
  const pairs = [
    [rsa, 'n'],
    [rsa, 'e'],
    [p256, 'x'],
    [p256, 'y'],
    [ed25519, 'x'],
  ] as const
  for (const [{ publicKey }, name] of pairs) {
    fileRefused([jwk(publicKey, { kid: 'bad', [name]: long })], 'key "bad"', `"${name}" has 26667`)
  }
  assert.equal(read(jwk(p521.publicKey)).size, 1)
})

test('key set: uses the first 100 keys, and counts the others', () => {
  const numbered = (count: number): readonly Members[] => {
    return Array.from({ length: count }, (_, i) => jwk(p256.publicKey, { kid: `k${i}` }))
  }
  assert.equal(MAX_KEYS, 100)
  const whole = read(...OTHERS, ...numbered(100), ...OTHERS)
  assert.deepEqual([whole.size, whole.rejectedKeys], [100, []])
  const { size, rejectedKeys, text } = read(...OTHERS, ...numbered(3000))
  assert.deepEqual([size, rejectedKeys], [100, ['keys after the first 100: 2900']])
  assert(text.includes('"k99"') && !text.includes('"k100"'))
  fileRefused(numbered(101), 'keys after the first 100: 1')
  createKeySource({ kind: 'file', path: keyFile(...numbered(100)) }, ISSUER, silent)
})

test('key set: rejected keys are reported in 101 short lines at most', () => {
  const sets: readonly (readonly unknown[])[] = [
    Array.from({ length: 5000 }, () => ({ kty: 'oct', kid: 'x'.repeat(100) })),
    Array.from({ length: 50_000 }, () => 0),
    [{ kty: 'oct', kid: '\u0000'.repeat(500_000) }],
  ]
  for (const set of sets) {
    const { rejectedKeys } = read(...set)
    assert(rejectedKeys.length <= 101 && rejectedKeys.every((line) => line.length < 500))
  }
  assert.deepEqual(read(...Array.from({ length: 102 }, () => 0)).rejectedKeys.slice(99), [
    'key 99 is rejected: not a JSON object',
    'keys after the first 100: 2',
  ])
  const { rejectedKeys } = read({ kty: 'oct', kid: 'x'.repeat(65) })
  assert.deepEqual(rejectedKeys, [`key "${'x'.repeat(64)}" is rejected: symmetric`])
})

test('key set: key members may be nested to any depth', () => {
  const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`
  for (const name of ['kty', 'crv', 'kid', 'n']) {
    const shallow = JSON.stringify(jwk(rsa.publicKey, { [name]: 'deep' }))
    const members = shallow.replace('"deep"', deep)
    const { size, rejectedKeys } = readKeySet(Buffer.from(`{"keys":[${members}]}`))
    // crv has no meaning for RSA.
    assert.equal(size, name === 'crv' ? 1 : 0)
    assert(!rejectedKeys.join().includes('call stack'), rejectedKeys.join())
  }
})

const OTHERS: readonly Members[] = [
  jwk(rsa2.publicKey, { kid: 'one', use: 'enc' }),
  jwk(rsa2.publicKey, { kid: 'one', use: 7 }),
  jwk(rsa2.publicKey, { kid: 'one', key_ops: ['encrypt'] }),
  jwk(rsa2.publicKey, { kid: 'one', key_ops: 'verify' }),
  jwk(rsa2.publicKey, { kid: 'one', alg: 'RSA-OAEP' }),
  jwk(rsa2.publicKey, { kid: 'one', alg: 'HS256' }),
  { kty: 'AKP', kid: 'one', pub: 'AAAA' },
  { kty: 'whatever', kid: 'one' },
  { kid: 'one' },
  {
    ...jwk(readPair(generateKeyPairSync('ec', { namedCurve: 'secp256k1', ...PEM })).publicKey),
    kid: 'one',
  },
  { ...jwk(readPair(generateKeyPairSync('x25519', PEM)).publicKey), kid: 'one' },
  { ...jwk(readPair(generateKeyPairSync('ed448', PEM)).publicKey), kid: 'one' },
]

test('key set: ignores keys for another purpose, and needs one other key', async () => {
  const good = jwk(rsa.publicKey, {
    kid: 'one',
    use: 'sig',
    key_ops: ['verify', 'encrypt'],
    ext: 'x',
  })
  const by = verifier(fileKeys(...OTHERS, good))
  await accepted(signed('RS256', rsa.privateKey, { kid: 'one' }), by)
  for (const other of OTHERS) fileRefused([other], 'no key')
})

test('key set: the same keys have the same text in any order and spelling', () => {
  const textOf = (...keys: readonly Members[]): string => read(...keys).text
  const [one, two] = [jwk(rsa.publicKey, { kid: 'one' }), jwk(p256.publicKey, { kid: 'two' })]
  const text = textOf(one, two)
  assert.equal(textOf({ x5c: ['AA=='], ...two, use: 'sig' }, one, OTHERS[0] ?? {}, one), text)
  assert.notEqual(textOf(one), text)
  assert.notEqual(textOf({ ...one, kid: 'three' }, two), text)
  assert.notEqual(textOf({ ...one, alg: 'RS256' }, two), text)
})

test('key file: a new version is used; a broken one is logged once and ignored', async () => {
  const path = keyFile(jwk(rsa.publicKey, { kid: 'one' }))
  const errors: string[] = []
  const log = logOf((level, _, fields) => {
    if (level === 'error') errors.push(`${String(fields?.['path'])}: ${String(fields?.['reason'])}`)
  })
  const keys = createKeySource({ kind: 'file', path }, ISSUER, log, FAST)
  const { keys: first } = keys
  keys.start?.()
  try {
    const by = verifier(keys)
    const one = signed('RS256', rsa.privateKey, { kid: 'one' })
    const two = signed('RS256', rsa2.privateKey, { kid: 'two' })
    await by.verify(one)
    await refused(two, 'tokenInvalid', by)

    const write = (text: string): void => {
      writeFileSync(`${path}.new`, text)
      renameSync(`${path}.new`, path)
    }
    write('{')
    assert.equal(keys.isStale, false)
    await until('a broken file is logged', () => errors.length === 1)
    assert.equal(keys.isStale, true)
    rmSync(path)
    await until('a missing file is logged', () => errors.length === 2)
    assert.equal(keys.isStale, true)
    mkdirSync(path)
    await until('a directory is logged', () => errors.length === 3)
    rmSync(path, { recursive: true })
    write(
      JSON.stringify({
        keys: [jwk(rsa2.publicKey, { kid: 'two' }), jwk(weak.publicKey, { kid: 'bad' })],
      }),
    )
    await until('a weak key is logged', () => errors.at(-1)?.includes('key "bad"') === true)
    const logged = errors.length
    await pause(60)
    assert.equal(errors.length, logged)
    assert(errors.every((error) => error.includes(path)))
    assert.equal(keys.keys, first)
    assert.equal(keys.isStale, true)
    await accepted(one, by)

    write(JSON.stringify({ keys: [jwk(rsa.publicKey, { kid: 'one', x: 1 })] }))
    await until('the same keys are read again', () => keys.isStale === false)
    assert.equal(keys.keys, first)
    assert(!(by.verify(one) instanceof Promise))

    write(JSON.stringify({ keys: [jwk(rsa2.publicKey, { kid: 'two' })] }))
    await until('the new keys count', () => keys.keys !== first)
    await accepted(two, by)
    await refused(one, 'tokenInvalid', by)
  } finally {
    keys.close?.()
  }
})

test('key file: polling keeps no process alive, and ends with close', async () => {
  const path = keyFile(jwk(rsa.publicKey))
  const logged: string[] = []
  const timers = (): number =>
    process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  const before = timers()
  const keys = createKeySource(
    { kind: 'file', path },
    ISSUER,
    logOf((_, message) => logged.push(message)),
    FAST,
  )
  keys.start?.()
  keys.start?.()
  assert(timers() <= before)
  keys.close?.()
  writeFileSync(path, '{')
  await pause(60)
  assert.deepEqual(logged, [])
})
