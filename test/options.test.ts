import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { readConfig, readOptions } from '../dist/settings/read.js'
import { VARIABLES } from '../dist/settings/table.js'
import { ConfigError, createPlantService, type PlantServiceConfig } from '../dist/index.js'
import { createLog } from '../dist/telemetry/log.js'
import { call } from './support/http.ts'
import { PEM } from './support/keys.ts'
import { mountedService, problems, temporaryDirectory } from './support/service.ts'
import { AUDIENCE, ISSUER, SECRET } from './support/tokens.ts'

const REQUIRED = { issuer: ISSUER, audience: AUDIENCE }
const GOOD = { ...REQUIRED, jwtSecret: SECRET }
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
const SECRET_BYTES = Buffer.from(SECRET)
const ETCD = { etcdEndpoints: 'http://127.0.0.1:1' }
const ADDRESS = 'must be host:port, [IPv6]:port or unix:/path'

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
  ['maxDataBytes', 65_536, 536_870_912],
  ['clockTolerance', 0, 3600],
  ['maxBodyBytes', 1, 16_777_216],
  ['maxConnections', 1, 1_000_000],
  ['keepAlive', 1, 3600],
  ['rateLimit', 1, 1_000_000],
  ['drainDelay', 0, 3600],
  ['shutdownTimeout', 0, 3600],
] as const

const ONE = 'must be one: run a service for each issuer'
const KEY_URL =
  'must be an https URL, or http on 127.0.0.0/8, [::1] or localhost ' +
  '(with keysOverHttp=anywhere on any host), without user info'

/** Wrong options, each with its one problem. */
const WRONG: readonly (readonly [options: Readonly<Record<string, unknown>>, problem: string])[] = [
  [{ issuer: '' }, 'issuer must be a text that is not empty, and is empty'],
  [{ issuer: null }, 'issuer must be a text that is not empty, and is null'],
  [{ issuer: undefined }, 'issuer is required: the iss that a token must have'],
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
  [
    { logRequests: 'none' },
    'logRequests must be one of all, errors, off, and is a text of length 4',
  ],
  [{ data: '' }, 'data must be a path, and is empty'],
  [{ data: null }, 'data must be a path, and is null'],
  [{ data: 'a\0b' }, 'data must be a path, and is a text of length 3'],
  [{ data: new URL('file:///x') }, 'data must be a path, and is an object'],
  [{ listen: 8080 }, `listen ${ADDRESS}, and is 8080`],
  [{ listen: '8080' }, `listen ${ADDRESS}, and is a text of length 4`],
  [{ listen: '127.0.0.1:65536' }, 'listen must have a port of at most 65535'],
  [{ listen: null }, `listen ${ADDRESS}, and is null`],
  [{ listen: 'off' }, `listen ${ADDRESS}, and is a text of length 3`],
  [{ listen: { host: '127.0.0.1', port: 80 } }, `listen ${ADDRESS}, and is an object`],
  [{ listen: 'unix:a\0b' }, 'listen must be a path, and is a text of length 3'],
  [{ adminListen: null }, `adminListen ${ADDRESS}, or off, and is null`],
  [{ adminListen: false }, `adminListen ${ADDRESS}, or off, and is false`],
  [{ jwtSecret: null }, 'jwtSecret must be bytes or a text'],
  [{ jwtSecret: 7 }, 'jwtSecret must be bytes or a text'],
  [{ jwtSecret: `${SECRET}\ud800` }, 'jwtSecret must be bytes or a text'],
  [{ jwtSecret: 'short' }, 'jwtSecret must have at least 32 bytes, and has 5'],
  [{ jwtSecret: Buffer.alloc(31) }, 'jwtSecret must have at least 32 bytes, and has 31'],
  [
    { jwtSecret: undefined, jwtSecretFile: Buffer.alloc(32, '\n') },
    'jwtSecretFile must have at least 32 bytes, and has 31',
  ],
  [{ jwksFile: '/x' }, 'jwtSecret, jwksFile are set: keys come from one place only'],
  [{ jwtSecret: undefined, jwksFile: null }, 'jwksFile must be a path, and is null'],
  [
    { jwtSecret: undefined, jwksFile: '/dev/null' },
    'jwksFile cannot be used: must be a JSON Web Key Set, {"keys": [...]}, ' +
      'and is no JSON object in UTF-8',
  ],
  [{ jwtSecret: undefined, jwksUrl: '' }, 'jwksUrl must be a text that is not empty, and is empty'],
  [
    { jwtSecret: undefined, jwksUrl: 'http://issuer.test/keys' },
    `jwksUrl ${KEY_URL}`,
  ],
  [
    { jwtSecret: undefined, issuer: 'no URL' },
    `issuer ${KEY_URL}; or set one of jwtSecretFile, jwtSecret, jwksFile, jwksUrl: ` +
      'it says where the keys are',
  ],
  [
    { keysOverHttp: 'all' },
    'keysOverHttp must be one of loopback, anywhere, and is a text of length 3',
  ],
  [{ issuer: 'https://a,https://b' }, `issuer ${ONE}`],
  [{ audience: 'http://a, https://b' }, `audience ${ONE}`],
  [{ jwtSecret: undefined, jwksUrl: 'https://a/k,https://b/k' }, `jwksUrl ${ONE}`],
  [{ etcdEndpoints: null }, 'etcdEndpoints must be a text that is not empty, and is null'],
  [
    { etcdEndpoints: ['http://a:1'] },
    'etcdEndpoints must be a text that is not empty, and is a list',
  ],
  [{ etcdEndpoints: '' }, 'etcdEndpoints must be a text that is not empty, and is empty'],
  [{ etcdEndpoints: 'a:1' }, `etcdEndpoints ${ORIGIN}, and URL 1 is not`],
  [{ etcdEndpoints: 'http://a:1,' }, `etcdEndpoints ${ORIGIN}, and URL 2 is not`],
  [{ etcdEndpoints: 'http://root:secret@etcd:1' }, `etcdEndpoints ${ORIGIN}, and URL 1 is not`],
  [{ etcdEndpoints: 'http://a:1,https://a:2' }, 'etcdEndpoints must be all http or all https'],
  [{ ...ETCD, etcdPrefix: 'plants' }, 'etcdPrefix must end in /, and is a text of length 6'],
  [{ ...ETCD, etcdPrefix: null }, 'etcdPrefix must end in /, and is null'],
  [{ ...ETCD, etcdUsername: 'p' }, 'etcdPasswordFile is required by etcdUsername'],
  [{ ...ETCD, etcdPasswordFile: Buffer.from('p') }, 'etcdUsername is required by etcdPasswordFile'],
  [
    { ...ETCD, etcdUsername: 'p', etcdPasswordFile: null },
    'etcdPasswordFile must be a path, and is null',
  ],
  [{ etcdPrefix: 'p/' }, 'etcdPrefix is of no use without etcdEndpoints'],
  [{ etcdEndpoints: 'https://a:1', etcdCaFile: null }, 'etcdCaFile must be a path, and is null'],
  [{ keys: { kind: 'secret', secret: SECRET } }, 'keys is not known'],
  [{ etcd: { endpoints: ['http://127.0.0.1:1'] } }, 'etcd is not known'],
  [{ dataDirectory: '/x' }, 'dataDirectory is not known'],
  [{ ['x'.repeat(1e6)]: 1 }, `${'x'.repeat(1e6)} is not known`],
  [{ onLog: console }, 'onLog must be a function, and is an object'],
  [{ onLog: null }, 'onLog must be a function, and is null'],
  [JSON.parse('{"__proto__": 1}') as Record<string, unknown>, '__proto__ is not known'],
]

test('options: each problem is a ConfigError that names the option', () => {
  for (const [options, problem] of WRONG) {
    assert.deepEqual(problemsOf({ ...GOOD, ...options }), [problem])
    assert.doesNotMatch(problem, /PLANTS_/)
  }
})

test('options: a text has the same problems in a program as in the environment', () => {
  const { issuer: PLANTS_ISSUER, audience: PLANTS_AUDIENCE } = REQUIRED
  const env = { PLANTS_ISSUER, PLANTS_AUDIENCE, PLANTS_ETCD_ENDPOINTS: 'https://a:1' }
  const options = { ...REQUIRED, etcdEndpoints: 'https://a:1' }
  for (const { name, option } of VARIABLES) {
    for (const text of ['x', 'x y', '-1', '1.5', '7', 'off', 'unix:', '/dev/null', 'a\0b']) {
      const inEnvironment = problems({ ...env, [name]: text }).join()
      const names = new RegExp(`${VARIABLES.map((each) => each.name).join('|')}`, 'g')
      const optionOf = (found: string) =>
        VARIABLES.find((each) => each.name === found)?.option ?? ''
      const inProgram = problemsOf({ ...options, [option]: text }).join()
      assert.equal(inProgram, inEnvironment.replace(names, optionOf))
    }
  }
})

test('options: a number is an integer within its bounds, or a text of digits', () => {
  for (const [name, min, max] of NUMBERS) {
    for (const good of [min, max, String(min)])
      assert.deepEqual(problemsOf({ ...GOOD, [name]: good }), [])
    const noIntegers = [null, NaN, Infinity, min + 0.5, '1mb', [min], BigInt(min), true, {}]
    for (const wrong of [min - 1, 2 * max + 1, ...noIntegers]) {
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
    data: 3,
    maxDataBytes: '4',
    logLevel: 5,
    typo: 6,
    etcdEndpoints: 'https:x',
    etcdPrefix: 'y',
    etcdUsername: 'p',
    etcdKeyFile: Buffer.from('no PEM'),
    jwtSecret: 'short',
  }
  const named = problemsOf(options).map((line) => line.split(' ', 1)[0])
  assert.deepEqual(named.sort(), [
    'adminListen',
    'audience',
    'data',
    'etcdCertFile',
    'etcdEndpoints',
    'etcdKeyFile',
    'etcdPasswordFile',
    'etcdPrefix',
    'issuer',
    'jwtSecret',
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
  const https = { etcdEndpoints: 'https://etcd:1' }
  const misplaced = [
    { jwtSecret: [hidden] },
    { jwtSecret: undefined, jwtSecretFile: hidden },
    { jwtSecret: undefined, jwksFile: hidden },
    { jwtSecret: undefined, jwksUrl: hidden },
    { jwtSecret: undefined, jwksUrl: `https://user:${hidden}@issuer.test/` },
    { listen: hidden },
    { listen: `unix:${hidden.repeat(3)}` },
    { adminListen: hidden },
    { data: `${hidden}\0` },
    { maxBodyBytes: hidden },
    { readScope: hidden },
    { logLevel: hidden },
    { ...ETCD, etcdPrefix: hidden },
    { etcdEndpoints: hidden },
    { etcdEndpoints: `https://root:${hidden}@etcd:1` },
    { ...ETCD, etcdUsername: 'p', etcdPasswordFile: hidden },
    { ...ETCD, etcdUsername: 'p', etcdPasswordFile: [hidden] },
    { ...https, etcdKeyFile: hidden, etcdCertFile: hidden, etcdCaFile: hidden },
    { ...https, etcdCaFile: Buffer.from(hidden) },
  ]
  for (const options of misplaced) {
    const told = problemsOf({ ...GOOD, ...options }).join()
    assert.notEqual(told, '')
    assert.doesNotMatch(told, /hidden/)
  }
})

test('options: a missing or undefined option has its default, also of etcd', () => {
  const keys = { kind: 'secret', secret: SECRET_BYTES }
  const ofEnvironment = { ...readConfig({}, 'storage'), ...REQUIRED, jwtSecret: SECRET_BYTES, keys }
  const { openKeys, ...config } = readOptions({ ...GOOD, listen: undefined })
  assert.deepEqual(config, ofEnvironment)
  assert.equal(typeof openKeys, 'function')
  assert.deepEqual(readOptions({ ...GOOD, ...ETCD }).etcd, {
    endpoints: ['http://127.0.0.1:1'],
    prefix: 'plants/',
    user: undefined,
    tls: { ca: undefined, cert: undefined, key: undefined },
  })
})

test('options: without a source, keys are discovered from the issuer', () => {
  assert.deepEqual(readOptions(REQUIRED).keys, { kind: 'discovery' })
})

test('options: a file of a secret or of PEM may be passed as its content', async () => {
  const options = { ...REQUIRED, etcdEndpoints: 'https://127.0.0.1:1', etcdUsername: 'p' }
  const contents = {
    jwtSecretFile: `${SECRET}\n`,
    etcdPasswordFile: 'password\n',
    etcdCaFile: CERTIFICATE,
    etcdCertFile: CERTIFICATE,
    etcdKeyFile: KEY,
  }
  const folder = await temporaryDirectory()
  for (const form of ['bytes', 'path']) {
    const given = Object.entries(contents).map(([option, content]) => {
      const file = join(folder, option)
      writeFileSync(file, content)
      return [option, form === 'path' ? file : Buffer.from(content)] as const
    })
    const { keys, etcd } = readOptions({ ...options, ...Object.fromEntries(given) })
    const paths = [join(folder, 'jwtSecretFile')]
    const [bytes, files] = [{ kind: 'secret', secret: SECRET_BYTES }, { kind: 'secrets', paths }]
    assert.deepEqual(keys, form === 'path' ? files : bytes)
    assert.deepEqual(etcd?.user, { name: 'p', password: 'password' })
    const [ca, key] = [Buffer.from(CERTIFICATE), Buffer.from(KEY)]
    assert.deepEqual(etcd?.tls, { ca, cert: ca, key })
  }
})

test('options: a certificate for etcd needs its own key, and https', () => {
  const [ca, cert, key] = [CERTIFICATE, CERTIFICATE, KEY].map((pem) => Buffer.from(pem))
  const secure = { ...GOOD, etcdEndpoints: 'https://127.0.0.1:1' }
  const other = { etcdCertFile: cert, etcdKeyFile: Buffer.from(OTHER_KEY) }
  assert.deepEqual(problemsOf({ ...secure, ...other }), [
    'etcdKeyFile is not the key of the first certificate',
  ])
  assert.deepEqual(problemsOf({ ...secure, etcdCertFile: cert }), [
    'etcdKeyFile is required by etcdCertFile',
  ])
  assert.deepEqual(problemsOf({ ...secure, etcdKeyFile: key }), [
    'etcdCertFile is required by etcdKeyFile',
  ])
  const noCertificate = problemsOf({ ...secure, etcdCaFile: key }).join()
  assert.match(noCertificate, /^etcdCaFile cannot be read: /)
  assert.deepEqual(problemsOf({ ...GOOD, ...ETCD, etcdCaFile: ca }), [
    'etcdCaFile is of no use without https',
  ])
})

for (const form of ['text', 'bytes'] as const) {
  test(`options: a secret as ${form} is copied when it is read, and verifies tokens`, async (t) => {
    const bytes = Buffer.from(SECRET)
    const service = createPlantService({
      issuer: ISSUER,
      audience: AUDIENCE,
      jwtSecret: form === 'text' ? SECRET : bytes,
      data: join(await temporaryDirectory(), 'data'),
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
  const config = readOptions({ ...REQUIRED, jwksFile: path, data: join(directory, 'data') })
  rmSync(path)
  const log = createLog('silent')
  const service = mountedService(config, { log, onFatal: () => assert.fail() })
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
  assert.deepEqual(problemsOf({ ...GOOD, listen: `unix:${name}` }), [`listen ${long}`])
  assert.deepEqual(problemsOf({ ...GOOD, adminListen: `unix:${name}` }), [`adminListen ${long}`])
  assert.deepEqual(problemsOf({ ...GOOD, listen: `unix:${whole}` }), [`listen ${long}`])
})
