import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { readWithoutKeys } from '../dist/cli/settings.js'
import { readOptions } from '../dist/settings/program.js'
import { variableOf, VARIABLES } from '../dist/settings/table.js'
import { ConfigError, createPlantService, type PlantServiceConfig } from '../dist/index.js'
import { CERTIFICATE, KEY } from './support/etcd-pem.ts'
import { call } from './support/http.ts'
import { PEM, RFC_KEY } from './support/keys.ts'
import { portOf } from './support/ports.ts'
import { embed, problems, temporaryDirectory } from './support/service.ts'
import { AUDIENCE, ISSUER, SECRET } from './support/tokens.ts'

/*
 * The values of settings, right and wrong. What an operator can write too is read through both
 * doors: options of a program, and variables.
 */

type Options = Readonly<Record<string, unknown>>

const REQUIRED = { issuer: ISSUER, audience: AUDIENCE }
const GOOD = { ...REQUIRED, jwtSecret: SECRET }
const SECRET_BYTES = Buffer.from(SECRET)
const NO_SECRET = { jwtSecret: undefined }
const ETCD = { etcdEndpoints: 'http://127.0.0.1:1' }
const HTTPS = { etcdEndpoints: 'https://127.0.0.1:1' }

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

/** The problems, in the names of options, of variables that say the same; if all are texts. */
function problemsInEnvironment(options: Options): readonly string[] | undefined {
  const given = Object.entries(options).filter(([, value]) => value !== undefined)
  if (!given.every(([, value]) => typeof value === 'string' && value !== '')) return undefined
  const env = Object.fromEntries(given.map(([name, value]) => [variableOf(name), String(value)]))
  const optionOf = (name: string) => VARIABLES.find((each) => each.name === name)?.option ?? name
  return problems(env).map((problem) => problem.replace(/PLANTS_\w+/g, optionOf))
}

const TEXT = 'must be a text that is not empty, and is'
const SCOPE = 'must be one scope, and is'
const LEVEL = 'must be one of silent, error, info, debug, and is'
const ADDRESS = 'must be host:port, [IPv6]:port or unix:/path'
const HOST = 'must name a host: for every address, write 0.0.0.0:90 or [::]:90'
const MODE = 'must be an octal mode such as 0660, and is a text of length'
const SHORT = 'cannot be used: must have at least 32 bytes, and has'
const ONE = 'must be one text: run a service for each issuer, and is'
const AUDIENCES = 'must be one to eight audiences, each a text that is not empty'
const ORIGIN = 'must be http:// or https:// with a host, a port and no more, and URL'
const PLACES = 'are set: keys come from one place only'
const CORS = 'must be * or origins such as https://app.example, with commas between, and URL'
const KEY_URL =
  'must be an https URL, or http on 127.0.0.0/8, [::1] or localhost ' +
  '(with keysOverHttp=anywhere on any host), without user info'
const ELSE =
  '; or set one of jwtSecretFile, jwtSecret, jwksFile, jwksUrl: it says where the keys are'
const NO_SET = 'must be a JSON Web Key Set, {"keys": [...]}, and is no JSON object in UTF-8'

/** Wrong options, each with its one problem. */
const WRONG: readonly (readonly [options: Options, problem: string])[] = [
  [{ issuer: '' }, `issuer ${ONE} empty`],
  [{ issuer: null }, `issuer ${ONE} null`],
  [{ issuer: undefined }, 'issuer is required: the iss that a token must have'],
  [{ issuer: 'https://a,https://b' }, `issuer ${ONE} a text of length 19`],
  [{ issuer: ' x' }, 'issuer must not begin or end with a blank or a line break'],
  [{ audience: 7 }, `audience ${TEXT} 7`],
  [{ audience: '\ud800' }, `audience ${TEXT} not valid Unicode`],
  ...[[], [''], ['a', ' '], ['a', 7], ['\ud800'], [['a']], Array(2), ',', 'a,,b', 'a,'].map(
    (audience) => [{ audience }, `audience ${AUDIENCES}`] as const,
  ),
  [{ audience: 'a,b,c,d,e,f,g,h,i' }, `audience ${AUDIENCES}`],
  [{ ownerClaim: '' }, `ownerClaim ${TEXT} empty`],
  [{ audienceClaim: null }, `audienceClaim ${TEXT} null`],
  [{ scopeClaim: 7 }, `scopeClaim ${TEXT} 7`],
  [{ readScope: ['a'] }, `readScope ${SCOPE} a list`],
  [{ writeScope: 'a b' }, `writeScope ${SCOPE} a text of length 3`],
  [{ logLevel: 'constructor' }, `logLevel ${LEVEL} a text of length 11`],
  [{ logRequests: 4 }, 'logRequests must be one of all, errors, off, and is 4'],
  [{ keysOverHttp: 4 }, 'keysOverHttp must be one of loopback, anywhere, and is 4'],
  [{ data: '' }, 'data must be a path, and is empty'],
  [
    { data: ':memory:' },
    'data must be a directory: there is no store in memory alone; give each test its own',
  ],
  [{ data: 'a\0b' }, 'data must be a path, and is a text of length 3'],
  [{ data: new URL('file:///x') }, 'data must be a path, and is an object'],
  [{ listen: 8080 }, `listen ${ADDRESS}, and is 8080`],
  [{ listen: null }, `listen ${ADDRESS}, and is null`],
  [{ listen: { host: '127.0.0.1', port: 80 } }, `listen ${ADDRESS}, and is an object`],
  ...['8080', '::1:80', 'host:', 'host:x', 'unix:', 'off', 'a:123456'].map(
    (listen) =>
      [{ listen }, `listen ${ADDRESS}, and is a text of length ${listen.length}`] as const,
  ),
  [{ listen: '127.0.0.1:65536' }, 'listen must have a port of at most 65535'],
  [{ listen: '*:90' }, `listen ${HOST}`],
  [{ adminListen: ':90' }, `adminListen ${HOST}`],
  [{ listen: 'unix:a\0b' }, 'listen must be a path, and is a text of length 3'],
  [{ adminListen: false }, `adminListen ${ADDRESS}, or off, and is false`],
  [{ adminListen: 'none' }, `adminListen ${ADDRESS}, or off, and is a text of length 4`],
  ...['0o660', '1777', '66', '0680', 'rw', '-660', '432x', '06600'].map(
    (socketMode) => [{ socketMode }, `socketMode ${MODE} ${socketMode.length}`] as const,
  ),
  [{ corsOrigins: 'https://a/b' }, `corsOrigins ${CORS} 1 is not`],
  [{ jwtSecret: null }, 'jwtSecret must be bytes or a text'],
  [{ jwtSecret: `${SECRET}\ud800` }, 'jwtSecret must be bytes or a text'],
  [{ jwtSecret: 'short' }, `jwtSecret ${SHORT} 5`],
  [{ jwtSecret: Buffer.alloc(31) }, `jwtSecret ${SHORT} 31`],
  [{ ...NO_SECRET, jwtSecretFile: Buffer.alloc(32, '\n') }, `jwtSecretFile ${SHORT} 31`],
  [{ jwksFile: '/x' }, `jwtSecret, jwksFile ${PLACES}`],
  [{ jwksUrl: 'https://issuer.test/keys' }, `jwtSecret, jwksUrl ${PLACES}`],
  [{ ...NO_SECRET, jwksFile: null }, 'jwksFile must be a path, and is null'],
  [{ ...NO_SECRET, jwksFile: '/dev/null' }, `jwksFile cannot be used: ${NO_SET}`],
  [{ ...NO_SECRET, jwksUrl: 'http://issuer.test/keys' }, `jwksUrl ${KEY_URL}`],
  [{ ...NO_SECRET, jwksUrl: 'https://a/k,https://b/k' }, `jwksUrl ${ONE} a text of length 23`],
  [{ ...NO_SECRET, issuer: 'no URL' }, `issuer ${KEY_URL}${ELSE}`],
  [{ etcdEndpoints: ['http://a:1'] }, `etcdEndpoints ${TEXT} a list`],
  ...['a:1', 'unix:/x', 'http://user@a:2', 'http://a:2/v3', 'http://a?', 'http://a:x', ','].map(
    (etcdEndpoints) => [{ etcdEndpoints }, `etcdEndpoints ${ORIGIN} 1 is not`] as const,
  ),
  [{ etcdEndpoints: 'http://a:1,' }, `etcdEndpoints ${ORIGIN} 2 is not`],
  [{ etcdEndpoints: 'http://a:1,https://a:2' }, 'etcdEndpoints must be all http or all https'],
  [{ etcdPrefix: 'p/' }, 'etcdPrefix is of no use without etcdEndpoints'],
  [
    { ...ETCD, maxOwnerBytes: 1000 },
    'maxOwnerBytes is of no use with etcdEndpoints: etcd has a quota',
  ],
  [{ ...ETCD, etcdPrefix: 'plants' }, 'etcdPrefix must end in /, and is a text of length 6'],
  [{ ...ETCD, etcdUsername: 'p' }, 'etcdPasswordFile is required by etcdUsername'],
  [{ ...ETCD, etcdPasswordFile: Buffer.from('p') }, 'etcdUsername is required by etcdPasswordFile'],
  [{ ...ETCD, etcdCaFile: Buffer.from(CERTIFICATE) }, 'etcdCaFile is of no use without https'],
  [{ ...HTTPS, etcdCaFile: '/dev/null' }, 'etcdCaFile cannot be read: there is no PEM in it'],
  [{ ...HTTPS, etcdCertFile: Buffer.from(CERTIFICATE) }, 'etcdKeyFile is required by etcdCertFile'],
  [{ ...HTTPS, etcdKeyFile: Buffer.from(KEY) }, 'etcdCertFile is required by etcdKeyFile'],
  [
    { ...HTTPS, etcdCertFile: Buffer.from(CERTIFICATE), etcdKeyFile: Buffer.from(otherKey()) },
    'etcdKeyFile is not the key of the first certificate',
  ],
  [{ keys: { kind: 'secret', secret: SECRET } }, 'keys is not known'],
  [{ ['x'.repeat(1e6)]: 1 }, `${'x'.repeat(1e6)} is not known`],
  [{ onLog: null }, 'onLog must be a function, and is null'],
  // JSON has no other way to name it.
  [JSON.parse('{"__proto__": 1}') as Options, '__proto__ is not known'],
]

function otherKey(): string {
  return generateKeyPairSync('ed25519', PEM).privateKey
}

for (const [options, problem] of WRONG)
  test(`options: ${problem.slice(0, 70)}`, () => {
    const all = { ...GOOD, ...options }
    assert.deepEqual(problemsOf(all), [problem])
    assert.deepEqual(problemsInEnvironment(all) ?? [problem], [problem])
    assert.doesNotMatch(problem, /PLANTS_/)
  })

test('options: other forms of a value are taken', () => {
  for (const [option, values] of Object.entries({
    socketMode: ['0660', '660', '0777', '600'],
    issuer: ['https://a/x,y', 'a,b', 'https://a/?next=https://b'],
    corsOrigins: ['*', 'https://a, http://b:1'],
  }))
    for (const value of values) assert.deepEqual(problemsOf({ ...GOOD, [option]: value }), [])
  for (const issuer of ['https://issuer.test/', 'http://127.0.0.1:9/'])
    assert.equal(readOptions({ ...REQUIRED, issuer }).keys.kind, 'discovery')
})

for (const [name, min, max] of [
  ['maxDataBytes', 65_536, 536_870_912],
  ['maxOwnerBytes', 1, 536_870_912],
  ['clockTolerance', 0, 3600],
  ['maxBodyBytes', 1, 16_777_216],
  ['maxConnections', 1, 1_000_000],
  ['keepAlive', 1, 3600],
  ['rateLimit', 1, 1_000_000],
  ['drainDelay', 0, 3600],
  ['shutdownTimeout', 0, 3600],
] as const)
  test(`options: ${name} is an integer from ${min} to ${max}, or its digits`, () => {
    for (const good of [min, max, String(min), String(max)])
      assert.deepEqual(problemsOf({ ...GOOD, [name]: good }), [])
    const others = [null, NaN, Infinity, min + 0.5, [min], BigInt(min), true, {}]
    const texts = [`${min - 1}`, `${max + 1}`, '1mb', '1e3', '1.5', '0x10', '1_000']
    for (const wrong of [min - 1, max + 1, ...others, ...texts]) {
      const [problem = '', ...more] = problemsOf({ ...GOOD, [name]: wrong })
      assert.deepEqual(more, [])
      const bounds = `${name} must be an integer from ${min} to ${max}, and is `
      assert.ok(problem.startsWith(bounds), `${String(wrong)}: ${problem}`)
    }
  })

test('options: no object, and an onFatal that is no function, are ConfigErrors', () => {
  for (const options of [undefined, null, 'https://issuer.test', 7, () => {}])
    assert.deepEqual(problemsOf(options), ['the options must be an object'])
  for (const onFatal of [null, 'exit', {}])
    assert.deepEqual(problemsOf(GOOD, onFatal), ['onFatal must be a function'])
  assert.deepEqual(problemsOf(GOOD, undefined), [])
})

test('options: a secret in the place of any other value is never told', async () => {
  const hidden = `hidden-${'x'.repeat(40)}`
  const file = join(await temporaryDirectory(), 'file')
  writeFileSync(file, '')
  const texts = [
    hidden,
    hidden.repeat(100),
    `${hidden}\0`,
    `${file}/${hidden}`,
    `https://user:${hidden}@issuer.test/`,
    `http://${hidden}/x`,
    `unix:${hidden.repeat(3)}`,
  ]
  for (const { option } of VARIABLES) {
    const needed = option.startsWith('etcd') ? { ...GOOD, ...HTTPS, etcdUsername: 'p' } : REQUIRED
    for (const value of [...texts, [hidden], Buffer.from(hidden)]) {
      const options = { ...needed, [option]: value }
      const told = [...problemsOf(options), ...(problemsInEnvironment(options) ?? [])]
      assert.doesNotMatch(told.join(), /hidden/, option)
    }
  }
})

for (const { option } of VARIABLES.filter(({ name }) => name.endsWith('_FILE')))
  test(`options: ${option} says why its file cannot be read, without its path`, async () => {
    const file = join(await temporaryDirectory(), 'file')
    writeFileSync(file, '')
    // The other file of a pair cannot be read either: each is named once.
    const pair = { etcdCertFile: '/x', etcdKeyFile: '/x', etcdPasswordFile: '/x' }
    const etcd = { ...GOOD, ...HTTPS, etcdUsername: 'p', ...pair }
    const [needed, verb] = option.startsWith('etcd') ? [etcd, 'read'] : [REQUIRED, 'used']
    for (const [path, why] of [
      [`${file}.gone`, 'ENOENT: no such file or directory'],
      [`${file}/x`, 'ENOTDIR: not a directory'],
      ['x'.repeat(300), 'ENAMETOOLONG: name too long'],
    ] as const) {
      const found = problemsOf({ ...needed, [option]: path })
      const own = found.filter((problem) => problem.startsWith(`${option} `))
      assert.deepEqual(own, [`${option} cannot be ${verb}: ${why}`])
    }
  })

test('options: a missing or undefined option has its default, also of etcd', () => {
  const given = { ...REQUIRED, audience: [AUDIENCE], jwtSecret: SECRET_BYTES }
  const ofEnvironment = { ...readWithoutKeys({}, 'ignored'), ...given }
  const { keys, ...config } = readOptions({ ...GOOD, listen: undefined })
  assert.deepEqual(config, ofEnvironment)
  assert.equal(keys.kind, 'secret')
  assert.deepEqual(readOptions({ ...GOOD, ...ETCD }).etcd, {
    endpoints: ['http://127.0.0.1:1'],
    prefix: 'plants/',
    user: undefined,
    tls: { ca: undefined, cert: undefined, key: undefined },
  })
})

test('options: a file of a secret or of PEM may be passed as its content', async () => {
  const options = { ...REQUIRED, ...HTTPS, etcdUsername: 'p' }
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
    const { jwtSecretFile, etcd } = readOptions({ ...options, ...Object.fromEntries(given) })
    const secret = form === 'path' ? join(folder, 'jwtSecretFile') : SECRET_BYTES
    assert.deepEqual(jwtSecretFile, [secret])
    assert.deepEqual(etcd?.user, { name: 'p', password: 'password' })
    const [ca, key] = [Buffer.from(CERTIFICATE), Buffer.from(KEY)]
    assert.deepEqual(etcd?.tls, { ca, cert: ca, key })
  }
})

for (const form of ['text', 'bytes'] as const) {
  test(`options: a secret as ${form} is copied when it is read, and verifies tokens`, async (t) => {
    const bytes = Buffer.from(SECRET)
    const jwtSecret = form === 'text' ? SECRET : bytes
    const service = await embed(t, { jwtSecret, adminListen: 'off' })
    bytes.fill(0)
    const { plants } = await service.listen()
    assert.equal((await call(portOf(plants))).status, 200)
  })
}

test('options: a key file is read once, and the service uses what was checked', async (t) => {
  const path = join(await temporaryDirectory(), 'jwks.json')
  writeFileSync(path, JSON.stringify({ keys: [RFC_KEY] }))
  const service = await embed(t, { jwtSecret: undefined, jwksFile: path })
  rmSync(path)
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
  const long = 'is too long: 99 bytes as an absolute path, above 98'
  for (const path of [nameOf(99), join(directory, nameOf(99))]) {
    assert.deepEqual(problemsOf({ ...GOOD, listen: `unix:${path}` }), [`listen ${long}`])
    assert.deepEqual(problemsOf({ ...GOOD, adminListen: `unix:${path}` }), [`adminListen ${long}`])
  }
})
