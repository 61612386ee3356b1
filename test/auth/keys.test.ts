import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import type { KeyConfig } from '../../dist/auth/keys.js'
import { readKeySet } from '../../dist/auth/key-set.js'
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
  pause,
  refused,
  rsa,
  rsa2,
  signed,
  temporaryDirectory,
  verifier,
  weak,
} from './tokens.ts'

const FAST = { ...TIMING, poll: 10 }

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
  configRefused({ kind: 'file', path }, ISSUER, 'cannot be used: ', ...words)
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

test('key URL: with http anywhere, any host, but no other scheme and no user info', () => {
  const http = { isAnywhere: true, setting: 'x' }
  const open = (url: string) =>
    createKeySource({ kind: 'url', url }, ISSUER, silent, undefined, http)
  assert.ok(open('http://keycloak:8080/jwks'))
  for (const url of ['ftp://keycloak/', 'http://user@keycloak/', 'data:,{}', ''])
    assert.throws(() => open(url), ConfigError)
})

test('key URL: a password is not shown', () => {
  const show = (): unknown =>
    createKeySource({ kind: 'url', url: 'https://user:word@issuer.example/' }, ISSUER, silent)
  assert.throws(show, (error: Error) => !error.message.includes('word'))
})

test('key file: missing, a directory or no key set, it stops the start', () => {
  const directory = temporaryDirectory()
  const path = join(directory, 'jwks.json')
  configRefused({ kind: 'file', path }, ISSUER, 'cannot be used: ENOENT: no such file')
  configRefused({ kind: 'file', path: directory }, ISSUER, 'cannot be used: EISDIR')
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
    configRefused({ kind: 'file', path }, ISSUER, 'must be a JSON Web Key Set')
  }
  writeFileSync(path, Buffer.from('{"keys":[],"x":"\xff"}', 'latin1'))
  configRefused({ kind: 'file', path }, ISSUER, 'must be a JSON Web Key Set')
})

test('key file: PEM or a page says what is wanted, and what it is', () => {
  const path = join(temporaryDirectory(), 'jwks.json')
  const wanted = 'cannot be used: must be a JSON Web Key Set, {"keys": [...]}, and'
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
  configRefused({ kind: 'file', path }, ISSUER, 'more than 1048576 bytes')
})

test('key file: a symmetric or private key stops the start', () => {
  const good = jwk(rsa.publicKey, { kid: 'good' })
  const secret = 'key "bad" is symmetric or private'
  fileRefused([good, { kty: 'oct', k: 'AAAA', kid: 'bad' }], secret)
  fileRefused([good, { kty: 'oct', use: 'enc' }], 'key 1 is symmetric or private')
  for (const { privateKey } of [rsa, p256, ed25519])
    fileRefused([good, jwk(privateKey, { kid: 'bad' })], secret)
  fileRefused([good, jwk(rsa.privateKey, { kid: 'bad', use: 'enc' })], secret)
  for (const name of ['p', 'q', 'dp', 'dq', 'qi', 'oth', 'priv', 'k'])
    fileRefused([good, jwk(rsa.publicKey, { kid: 'bad', [name]: 'AAAA' })], secret)
})

test('key set: symmetric and private keys are never used', async () => {
  const hidden = [jwk(p256.privateKey, { kid: 'one' }), { kty: 'oct', k: 'A'.repeat(64) }]
  const { size, secretKey } = read(...hidden, jwk(p256.publicKey, { kid: 'one' }))
  assert.deepEqual([size, secretKey], [1, 'key "one"'])
  assert.deepEqual([read(...hidden).size, read(...hidden.slice(1)).secretKey], [0, 'key 0'])
})

test('key set: with a weak or broken key, a token is refused', async () => {
  const broken = jwk(p256.publicKey, { kid: 'broken', y: jwk(p256.publicKey)['x'] })
  const { n: _, ...lacking } = jwk(rsa.publicKey, { kid: 'lacking' })
  const keys = [jwk(weak.publicKey, { kid: 'weak' }), broken, lacking, null, 7, {}]
  const path = keyFile(...(keys as Members[]))
  const by = verifier(createKeySource({ kind: 'file', path }, ISSUER, silent))
  for (const alg of ['RS256', 'PS256'])
    await refused(signed(alg, weak.privateKey, { kid: 'weak' }), 'tokenInvalid', by)
  await refused(signed('ES256', p256.privateKey, { kid: 'broken' }), 'tokenInvalid', by)
  await refused(signed('RS256', rsa.privateKey, { kid: 'lacking' }), 'tokenInvalid', by)
})

function read(...keys: readonly unknown[]): ReturnType<typeof readKeySet> {
  return readKeySet(Buffer.from(JSON.stringify({ keys })))
}

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
  const isKnown = ({ kty, use, key_ops: operations }: Members): boolean =>
    /^(RSA|EC|OKP)$/.test(String(kty)) && use === undefined && operations === undefined
  for (const other of OTHERS) if (!isKnown(other)) fileRefused([other], 'no key')
})

test('key set: the same keys have the same text in any order, and count once', () => {
  const textOf = (...keys: readonly Members[]): string => read(...keys).text
  const [one, two] = [jwk(rsa.publicKey, { kid: 'one' }), jwk(p256.publicKey, { kid: 'two' })]
  const text = textOf(one, two)
  assert.equal(textOf(two, one, OTHERS[0] ?? {}, one), text)
  assert.equal(read(one, one).size, 1)
  assert.notEqual(textOf(one), text)
  assert.notEqual(textOf({ ...one, kid: 'three' }, two), text)
  assert.notEqual(textOf({ ...one, alg: 'RS256' }, two), text)
})

test('key file: a new version is used; a broken one is logged once and ignored', async () => {
  const path = keyFile(jwk(rsa.publicKey, { kid: 'one' }))
  const errors: string[] = []
  const log = logOf((level, _, fields) => {
    if (level === 'error') errors.push(String(fields?.['reason']))
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
        keys: [jwk(rsa2.publicKey, { kid: 'two' }), jwk(p256.privateKey, { kid: 'bad' })],
      }),
    )
    await until('a private key is logged', () => errors.at(-1)?.includes('key "bad"') === true)
    const logged = errors.length
    await pause(60)
    assert.equal(errors.length, logged)
    assert.equal(keys.keys, first)
    assert.equal(keys.isStale, true)
    // It has no age, or an alert would call it too old.
    assert.equal(keys.ageMs, undefined)
    await accepted(one, by)

    write(JSON.stringify({ x: 1, keys: [jwk(rsa.publicKey, { kid: 'one' })] }))
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

test('key file: an unknown kid reads the file at once, and known keys stay', async () => {
  const path = keyFile(jwk(rsa.publicKey, { kid: 'one' }))
  const timing = { ...TIMING, poll: 600_000 }
  const by = verifier(createKeySource({ kind: 'file', path }, ISSUER, silent, timing))
  const two = signed('RS256', rsa2.privateKey, { kid: 'two' })
  await refused(two, 'tokenInvalid', by)
  const keys = [jwk(rsa.publicKey, { kid: 'one' }), jwk(rsa2.publicKey, { kid: 'two' })]
  writeFileSync(path, JSON.stringify({ keys }))
  await accepted(two, by)
  await accepted(signed('RS256', rsa.privateKey, { kid: 'one' }), by)
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
