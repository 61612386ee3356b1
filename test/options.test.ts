import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { test } from 'node:test'
import { readOptions } from '../dist/config.js'
import { ConfigError, createPlantService, type PlantServiceConfig } from '../dist/index.js'
import { createLog } from '../dist/ops/log.js'
import { createService } from '../dist/service.js'
import { call } from './support/http.ts'
import { PEM } from './support/keys.ts'
import { temporaryDirectory } from './support/service.ts'
import { AUDIENCE, ISSUER, SECRET } from './support/tokens.ts'

const GOOD = { issuer: ISSUER, audience: AUDIENCE, keys: { kind: 'secret', secret: SECRET } }
/** A certificate that nothing but this file trusts, and its key. */
const CERTIFICATE = `-----BEGIN CERTIFICATE-----
MIIBVzCB/aADAgECAhRuUumMd13uQ5gkfjkSsu2LU24ZKzAKBggqhkjOPQQDAjAA
MCAXDTI2MTEyMjA2NTAzNloYDzIxMjYxMDI5MDY1MDM2WjAAMFkwEwYHKoZIzj0C
AQYIKoZIzj0DAQcDQgAEIagOWuIIEUZO4CfHBo4fXgMsP68MjvU1jihR2/3lJ2jC
leVqJFNMkiJWGJXH5+I81JwNWfp5oeVgzaaF8gWvkqNTMFEwHQYDVR0OBBYEFKGa
wPmGbzw4FUiDUuRx6rXspSikMB8GA1UdIwQYMBaAFKGawPmGbzw4FUiDUuRx6rXs
pSikMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhANkv4iIOTcjw
lGi3vOulNWxRtwGorJTHKkAmV0qgYzWrAiEAkbtqu/S7qXPOTT0fO8GUmKqyxn8v
c2px5NgxA1BlQU4=
-----END CERTIFICATE-----
`
const KEY = `-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgnvBgQ3BichIwwdpb
AeXBe/jo4Y3NfRdQlZma1ySGJa6hRANCAAQhqA5a4ggRRk7gJ8cGjh9eAyw/rwyO
9TWOKFHb/eUnaMKV5WokU0ySIlYYlcfn4jzUnA1Z+nmh5WDNpoXyBa+S
-----END PRIVATE KEY-----
`
const OTHER_KEY = generateKeyPairSync('ed25519', PEM).privateKey
const ORIGIN = 'must be http:// or https:// with a host, a port and no more'
const ETCD = { endpoints: ['http://127.0.0.1:1'] }

/** The problems of options that JavaScript may pass, whatever the types say. */
function problemsOf(options: unknown, onFatal?: unknown): readonly string[] {
  try {
    createPlantService(options as PlantServiceConfig, onFatal as () => void)
  } catch (error) {
    assert.ok(error instanceof ConfigError, String(error))
    return error.problems
  }
  return []
}

const NUMBERS = [
  ['maxDataBytes', 65_536, 1_073_741_824],
  ['clockToleranceSeconds', 0, 3600],
  ['maxBodyBytes', 1, 16_777_216],
  ['maxConnections', 1, 1_000_000],
  ['rateLimit', 1, 1_000_000],
  ['drainDelaySeconds', 0, 3600],
  ['shutdownTimeoutSeconds', 0, 3600],
] as const

/** Wrong options, each with its one problem. */
const WRONG: readonly (readonly [options: Readonly<Record<string, unknown>>, problem: string])[] = [
  [{ issuer: '' }, 'issuer must be a text that is not empty, and is empty'],
  [{ issuer: null }, 'issuer must be a text that is not empty, and is null'],
  [{ issuer: undefined }, 'issuer is required: the iss that tokens have'],
  [{ audience: ['plants'] }, 'audience must be a text that is not empty, and is a list'],
  [{ audience: '\ud800' }, 'audience must be a text that is not empty, and is not valid Unicode'],
  [{ ownerClaim: '' }, 'ownerClaim must be a text that is not empty, and is empty'],
  [{ audienceClaim: null }, 'audienceClaim must be a text that is not empty, and is null'],
  [{ scopeClaim: 7 }, 'scopeClaim must be a text that is not empty, and is 7'],
  [{ readScope: ['a'] }, 'readScope must be one scope, and is a list'],
  [{ writeScope: 'a b' }, 'writeScope must be one scope, and is a text of length 3'],
  [{ writeScope: null }, 'writeScope must be one scope, and is null'],
  [
    { logLevel: 'verbose' },
    'logLevel must be one of silent, error, info, debug, and is a text of length 7',
  ],
  [{ logLevel: null }, 'logLevel must be one of silent, error, info, debug, and is null'],
  [{ dataDirectory: '' }, 'dataDirectory must be a path, and is empty'],
  [{ dataDirectory: null }, 'dataDirectory must be a path, and is null'],
  [{ dataDirectory: 'a\0b' }, 'dataDirectory must be a path, and is a text of length 3'],
  [{ dataDirectory: new URL('file:///x') }, 'dataDirectory must be a path, and is an object'],
  [{ listen: 8080 }, 'listen must be host:port, [IPv6]:port or unix:/path, and is 8080'],
  [
    { listen: '8080' },
    'listen must be host:port, [IPv6]:port or unix:/path, and is a text of length 4',
  ],
  [{ listen: null }, 'listen must be host:port, [IPv6]:port or unix:/path, and is null'],
  [
    { listen: 'off' },
    'listen must be host:port, [IPv6]:port or unix:/path, and is a text of length 3',
  ],
  [{ listen: ['x'] }, 'listen must be an object'],
  [
    { listen: { host: '127.0.0.1', port: 70_000 } },
    'listen.port must be an integer from 0 to 65535, and is 70000',
  ],
  [
    { listen: { host: '127.0.0.1', port: '80' } },
    'listen.port must be an integer from 0 to 65535, and is a text of length 2',
  ],
  [{ listen: { port: 80 } }, 'listen.host must be a text that is not empty, and is undefined'],
  [{ listen: { path: '' } }, 'listen.path must be a path, and is empty'],
  [{ listen: { path: '/x', port: 80 } }, 'listen.port is not known'],
  [{ adminListen: null }, 'adminListen must be host:port, [IPv6]:port or unix:/path, and is null'],
  [
    { adminListen: false },
    'adminListen must be host:port, [IPv6]:port or unix:/path, and is false',
  ],
  [{ keys: undefined }, 'keys is required: where keys come from'],
  [{ keys: null }, 'keys must be an object whose kind is secret, file, url or discovery'],
  [{ keys: SECRET }, 'keys must be an object whose kind is secret, file, url or discovery'],
  [{ keys: {} }, 'keys must be an object whose kind is secret, file, url or discovery'],
  [
    { keys: { kind: 'jwks' } },
    'keys must be an object whose kind is secret, file, url or discovery',
  ],
  [{ keys: { kind: 'secret' } }, 'keys.secret is required: 32 bytes or more, or a text'],
  [{ keys: { kind: 'secret', secret: 7 } }, 'keys.secret must be bytes or a text'],
  [{ keys: { kind: 'secret', secret: `${SECRET}\ud800` } }, 'keys.secret must be bytes or a text'],
  [
    { keys: { kind: 'secret', secret: 'short' } },
    'keys.secret must have at least 32 bytes, and has 5',
  ],
  [
    { keys: { kind: 'secret', secret: Buffer.alloc(31) } },
    'keys.secret must have at least 32 bytes, and has 31',
  ],
  [{ keys: { kind: 'secret', secret: SECRET, path: '/x' } }, 'keys.path is not known'],
  [{ keys: { kind: 'file', path: null } }, 'keys.path must be a path, and is null'],
  [
    { keys: { kind: 'file', path: '/dev/null' } },
    'keys.path cannot be read: /dev/null is not a regular file',
  ],
  [{ keys: { kind: 'url', url: '' } }, 'keys.url must be a text that is not empty, and is empty'],
  [
    { keys: { kind: 'url', url: 'http://issuer.test/keys' } },
    'keys.url must be an https URL, or http on 127.0.0.0/8, [::1] or localhost, without user info',
  ],
  [
    { keys: { kind: 'discovery' }, issuer: 'no URL' },
    'issuer must be an https URL, or http on 127.0.0.0/8, [::1] or localhost, without user info',
  ],
  [{ etcd: null }, 'etcd must be an object'],
  [{ etcd: 'http://127.0.0.1:1' }, 'etcd must be an object'],
  [{ etcd: { endpoints: '' } }, `etcd.endpoints ${ORIGIN}, and URL 1 is not`],
  [{ etcd: { endpoints: 'a:1' } }, `etcd.endpoints ${ORIGIN}, and URL 1 is not`],
  [{ etcd: {} }, 'etcd.endpoints must be a list of one URL or more'],
  [{ etcd: { endpoints: [] } }, 'etcd.endpoints must be a list of one URL or more'],
  [
    { etcd: { endpoints: ['http://root:secret@etcd:1'] } },
    `etcd.endpoints ${ORIGIN}, and URL 1 is not`,
  ],
  [
    { etcd: { endpoints: ['http://a:1', 'https://a:2'] } },
    'etcd.endpoints must be all http or all https',
  ],
  [{ etcd: { endpoints: [Object.create(null)] } }, `etcd.endpoints ${ORIGIN}, and URL 1 is not`],
  [{ etcd: { ...ETCD, prefix: 'plants' } }, 'etcd.prefix must end in /, and is a text of length 6'],
  [{ etcd: { ...ETCD, prefix: null } }, 'etcd.prefix must end in /, and is null'],
  [{ etcd: { ...ETCD, user: null } }, 'etcd.user must be an object'],
  [
    { etcd: { ...ETCD, user: { name: 'p' } } },
    'etcd.user.password is required: the password of that user',
  ],
  [
    { etcd: { ...ETCD, user: { password: 'p' } } },
    'etcd.user.name is required: the user whose password it is',
  ],
  [{ etcd: { ...ETCD, user: { name: 'p', password: null } } }, 'etcd.user.password must be a text'],
  [{ etcd: { ...ETCD, tls: null } }, 'etcd.tls must be an object'],
  [{ etcd: { ...ETCD, timing: {} } }, 'etcd.timing is not known'],
  [
    { etcd: { endpoints: ['https://a:1'], tls: { ca: null } } },
    'etcd.tls.ca must be bytes or a text',
  ],
  [{ readscope: 'a' }, 'readscope is not known: did you mean readScope?'],
  [{ writeScop: 'a' }, 'writeScop is not known: did you mean writeScope?'],
  [{ isuser: 'a' }, 'isuser is not known: did you mean issuer?'],
  [{ dataDir: '/x' }, 'dataDir is not known: did you mean dataDirectory?'],
  [{ clockTolerance: 5 }, 'clockTolerance is not known: did you mean clockToleranceSeconds?'],
  [{ ownersClaims: 'a' }, 'ownersClaims is not known: did you mean ownerClaim?'],
  [{ hownersClaims: 'a' }, 'hownersClaims is not known'],
  [{ ['x'.repeat(1e6)]: 1 }, `${'x'.repeat(1e6)} is not known`],
  [{ etcd: { ...ETCD, prefx: 'p/' } }, 'etcd.prefx is not known: did you mean etcd.prefix?'],
  [{ onLog: console }, 'onLog must be a function, and is an object'],
  [{ onLog: null }, 'onLog must be a function, and is null'],
  [{ port: 80 }, 'port is not known'],
  [JSON.parse('{"__proto__": 1}') as Record<string, unknown>, '__proto__ is not known'],
]

test('options: each problem is a ConfigError that names the option', () => {
  for (const [options, problem] of WRONG) {
    assert.deepEqual(problemsOf({ ...GOOD, ...options }), [problem])
    assert.doesNotMatch(problem, /PLANTS_/)
  }
})

test('options: a number is an integer within its bounds, and nothing else', () => {
  for (const [name, min, max] of NUMBERS) {
    for (const good of [min, max]) assert.deepEqual(problemsOf({ ...GOOD, [name]: good }), [])
    const noIntegers = [null, NaN, Infinity, min + 0.5, String(min), [min], BigInt(min), true, {}]
    for (const wrong of [min - 1, max + 1, ...noIntegers]) {
      const [problem = '', ...more] = problemsOf({ ...GOOD, [name]: wrong })
      assert.deepEqual(more, [])
      const bounds = `${name} must be an integer from ${min} to ${max}, and is `
      assert.ok(problem.startsWith(bounds), `${String(wrong)}: ${problem}`)
    }
  }
})

test('options: all problems are reported at once, one line each', () => {
  const options = {
    audience: '',
    listen: 1,
    adminListen: 2,
    dataDirectory: 3,
    maxDataBytes: '4',
    logLevel: 5,
    typo: 6,
    etcd: { endpoints: ['x'], prefix: 'y', user: {}, tls: { key: 'no PEM' } },
    keys: { kind: 'secret', secret: 'short' },
  }
  const named = problemsOf(options).map((line) => line.split(' ', 1)[0])
  assert.deepEqual(named.sort(), [
    'adminListen',
    'audience',
    'dataDirectory',
    'etcd.endpoints',
    'etcd.prefix',
    'etcd.tls.key',
    'etcd.user.name',
    'etcd.user.password',
    'issuer',
    'keys.secret',
    'listen',
    'logLevel',
    'maxDataBytes',
    'typo',
  ])
})

test('options: no object, and an onFatal that is no function, are ConfigErrors', () => {
  for (const options of [undefined, null, 'https://issuer.test', 7, () => {}]) {
    assert.deepEqual(problemsOf(options), ['the options must be an object'])
  }
  for (const onFatal of [null, 'exit', {}]) {
    assert.deepEqual(problemsOf(GOOD, onFatal), ['onFatal must be a function'])
  }
  assert.deepEqual(problemsOf(GOOD, undefined), [])
})

test('options: a message never shows a secret, also not a misplaced one', () => {
  const hidden = 'hidden secret of more than thirty-two bytes'
  const misplaced = [
    { keys: hidden },
    { keys: { kind: hidden } },
    { keys: { kind: 'secret', secret: [hidden] } },
    { keys: { kind: 'file', path: hidden } },
    { keys: { kind: 'url', url: hidden } },
    { listen: hidden },
    { listen: { path: hidden.repeat(3) } },
    { adminListen: hidden },
    { dataDirectory: `${hidden}\0` },
    { maxBodyBytes: hidden },
    { readScope: hidden },
    { logLevel: hidden },
    { etcd: { ...ETCD, prefix: hidden } },
    { etcd: { endpoints: [hidden] } },
    { keys: { kind: 'url', url: `https://user:${hidden}@issuer.test/` } },
    { etcd: { ...ETCD, user: hidden } },
    { etcd: { ...ETCD, tls: hidden } },
    { etcd: { ...ETCD, user: { name: 'p', password: [hidden] } } },
    { etcd: { endpoints: [`https://root:${hidden}@etcd:1`] } },
    { etcd: { endpoints: ['https://etcd:1'], tls: { key: hidden, cert: hidden, ca: hidden } } },
  ]
  for (const options of misplaced) {
    const told = problemsOf({ ...GOOD, ...options }).join()
    assert.notEqual(told, '')
    assert.doesNotMatch(told, /hidden/)
  }
})

test('options: an address is text as in the environment, or an object', () => {
  const read = (listen: unknown) => readOptions({ ...GOOD, listen, adminListen: listen })
  const forms = [
    ['127.0.0.1:0', { host: '127.0.0.1', port: 0 }],
    ['[::1]:80', { host: '::1', port: 80 }],
    ['unix:x.sock', { path: resolve('x.sock') }],
    [
      { host: 'localhost', port: 65_535 },
      { host: 'localhost', port: 65_535 },
    ],
    [{ path: 'x.sock' }, { path: resolve('x.sock') }],
  ] as const
  for (const [given, address] of forms) {
    const { listen, adminListen } = read(given)
    assert.deepEqual([listen, adminListen], [address, address])
  }
  assert.equal(readOptions({ ...GOOD, adminListen: 'off' }).adminListen, 'off')
})

test('options: endpoints of etcd are text as in the environment, or a list', () => {
  const [a, b] = ['http://a:1', 'http://b:2']
  for (const [given, endpoints] of [
    [a, [a]],
    [`${a}/, ${b}`, [a, b]],
    [
      [a, b],
      [a, b],
    ],
  ] as const)
    assert.deepEqual(
      readOptions({ ...GOOD, etcd: { endpoints: given } }).etcd?.endpoints,
      endpoints,
    )
})

test('options: a missing or undefined option has its default, also within etcd', () => {
  const {
    keys,
    openKeys: _,
    ...defaults
  } = readOptions({ ...GOOD, listen: undefined, rateLimit: undefined })
  assert.deepEqual(keys, { kind: 'secret', secret: Buffer.from(SECRET) })
  assert.deepEqual(defaults.listen, { host: '127.0.0.1', port: 8080 })
  assert.equal(defaults.rateLimit, undefined)
  assert.deepEqual(readOptions({ ...GOOD, etcd: ETCD }).etcd, {
    ...ETCD,
    prefix: 'plants/',
    user: undefined,
    tls: { ca: undefined, cert: undefined, key: undefined },
  })
})

test('options: a certificate for etcd is text or bytes, and must fit its key', () => {
  const secure = { endpoints: ['https://127.0.0.1:1'] }
  const read = (tls: unknown) => readOptions({ ...GOOD, etcd: { ...secure, tls } }).etcd?.tls
  const pem = [CERTIFICATE, CERTIFICATE, KEY] as const
  const [ca, cert, key] = pem
  const expected = { ca: Buffer.from(ca), cert: Buffer.from(cert), key: Buffer.from(key) }
  assert.deepEqual(read({ ca, cert, key }), expected)
  assert.deepEqual(read(expected), expected)
  const wrong = (tls: unknown) => problemsOf({ ...GOOD, etcd: { ...secure, tls } })
  assert.deepEqual(wrong({ cert, key: OTHER_KEY }), [
    'etcd.tls.key is not the key of the first certificate',
  ])
  assert.deepEqual(wrong({ cert }), ['etcd.tls.key is required by the certificate'])
  assert.deepEqual(wrong({ key }), ['etcd.tls.cert is required by the key'])
  assert.match(wrong({ ca: key }).join(), /^etcd\.tls\.ca holds no PEM that can be used: /)
  const plain = problemsOf({ ...GOOD, etcd: { ...ETCD, tls: { ca } } })
  assert.deepEqual(plain, ['etcd.tls.ca is of no use without https'])
})

for (const form of ['text', 'bytes'] as const) {
  test(`options: a secret as ${form} is copied when it is read, and verifies tokens`, async (t) => {
    const bytes = Buffer.from(SECRET)
    const service = createPlantService({
      issuer: ISSUER,
      audience: AUDIENCE,
      keys: { kind: 'secret', secret: form === 'text' ? SECRET : bytes },
      dataDirectory: join(await temporaryDirectory(), 'data'),
      listen: '127.0.0.1:0',
      adminListen: 'off',
      logLevel: 'silent',
    })
    t.after(() => service.close())
    bytes.fill(0)
    const { plants } = await service.listen()
    assert.equal((await call(Number(new URL(plants).port))).status, 200)
  })
}

test('options: a key file is read once, and the service uses what was checked', async (t) => {
  const directory = await temporaryDirectory()
  const path = join(directory, 'jwks.json')
  // RFC 8037, appendix A.2.
  const key = { kty: 'OKP', crv: 'Ed25519', x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo' }
  writeFileSync(path, JSON.stringify({ keys: [key] }))
  const dataDirectory = join(directory, 'data')
  const config = readOptions({ ...GOOD, keys: { kind: 'file', path }, dataDirectory })
  rmSync(path)
  const service = createService(config, { log: createLog('silent'), onFatal: () => assert.fail() })
  t.after(() => service.close())
  await service.open()
})

test('options: a socket path that is too long after it is resolved is refused', async (t) => {
  const directory = join(await temporaryDirectory(), 'd'.repeat(60))
  mkdirSync(directory)
  const before = process.cwd()
  process.chdir(directory)
  t.after(() => process.chdir(before))
  const nameOf = (bytes: number): string => 'é'.padEnd(bytes - directory.length - 2, 's')
  assert.deepEqual(problemsOf({ ...GOOD, listen: `unix:${nameOf(98)}` }), [])
  const [name, whole] = [nameOf(99), join(directory, nameOf(99))]
  const bound = "has 99 bytes, and a socket's path has 98 at most"
  const long = `is too long: as an absolute path it ${bound}`
  assert.deepEqual(problemsOf({ ...GOOD, listen: { path: name } }), [`listen.path ${long}`])
  assert.deepEqual(problemsOf({ ...GOOD, adminListen: `unix:${name}` }), [`adminListen ${long}`])
  assert.deepEqual(problemsOf({ ...GOOD, listen: `unix:${whole}` }), [`listen ${long}`])
})
