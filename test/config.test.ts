import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { test } from 'node:test'
import { readSecrets } from '../dist/auth/secrets.js'
import { readConfig } from '../dist/settings/read.js'
import { VARIABLES } from '../dist/settings/table.js'
import { serviceVariables } from './support/kubernetes.ts'
import { command } from './support/process.ts'
import { problems, temporaryDirectory } from './support/service.ts'

const MINIMUM = {
  PLANTS_ISSUER: 'https://issuer.test',
  PLANTS_AUDIENCE: 'plants',
  PLANTS_JWT_SECRET: 'x'.repeat(32),
}

const ETCD_HTTP = { ...MINIMUM, PLANTS_ETCD_ENDPOINTS: 'http://127.0.0.1:1' }
const ETCD_HTTPS = { ...MINIMUM, PLANTS_ETCD_ENDPOINTS: 'https://127.0.0.1:1' }

test('config: what is not set has the default of the table', () => {
  const { keys, openKeys: _, jwtSecret, ...config } = readConfig(MINIMUM, 'service')
  assert.deepEqual(keys, { kind: 'secret', secret: jwtSecret })
  assert.deepEqual(config, {
    listen: { host: '127.0.0.1', port: 8080 },
    adminListen: { host: '127.0.0.1', port: 8081 },
    data: resolve('data'),
    maxDataBytes: 268_435_456,
    etcd: undefined,
    etcdEndpoints: undefined,
    etcdPrefix: 'plants/',
    etcdUsername: undefined,
    etcdPasswordFile: undefined,
    etcdCaFile: undefined,
    etcdCertFile: undefined,
    etcdKeyFile: undefined,
    issuer: 'https://issuer.test',
    audience: 'plants',
    jwtSecretFile: undefined,
    jwksFile: undefined,
    jwksUrl: undefined,
    keysOverHttp: 'loopback',
    ownerClaim: 'sub',
    audienceClaim: 'aud',
    scopeClaim: undefined,
    readScope: undefined,
    writeScope: undefined,
    clockTolerance: 5,
    maxBodyBytes: 1_048_576,
    maxConnections: 1000,
    socketMode: '0660',
    keepAlive: 75,
    corsOrigins: undefined,
    rateLimit: undefined,
    drainDelay: 0,
    shutdownTimeout: 10,
    logLevel: 'info',
    logRequests: 'all',
  })
})

test('config: every problem is named at once, by its variable', () => {
  const found = problems({
    PLANTS_LISTEN: 'nowhere',
    PLANTS_ADMIN_LISTEN: '127.0.0.1:65536',
    PLANTS_MAX_DATA_BYTES: '1073741825',
    PLANTS_CLOCK_TOLERANCE: '-1',
    PLANTS_READ_SCOPE: 'two scopes',
    PLANTS_LOG_LEVEL: 'constructor',
    PLANTS_JWT_SECRET: 'too short',
    PLANTS_TYPO: 'x',
    PLANTS_ETCD_ENDPOINTS: '127.0.0.1:2379',
  })
  assert.deepEqual(found.map((line) => line.split(' ', 1)[0]).toSorted(), [
    'PLANTS_ADMIN_LISTEN',
    'PLANTS_AUDIENCE',
    'PLANTS_CLOCK_TOLERANCE',
    'PLANTS_ETCD_ENDPOINTS',
    'PLANTS_ISSUER',
    'PLANTS_JWT_SECRET',
    'PLANTS_LISTEN',
    'PLANTS_LOG_LEVEL',
    'PLANTS_MAX_DATA_BYTES',
    'PLANTS_READ_SCOPE',
    'PLANTS_TYPO',
    'keys',
  ])
  assert.ok(found.includes('PLANTS_JWT_SECRET must have at least 32 bytes, and has 9'))
})

test('config: the variables of a Kubernetes Service named plants are ignored', () => {
  const ports = [
    { name: 'plants', port: 8080, protocol: 'TCP' },
    { name: 'web-2', port: 53, protocol: 'UDP' },
    { name: undefined, port: 65_535, protocol: 'SCTP' },
  ] as const
  for (const name of ['plants', 'plants-api', 'plants-2--b', 'plants-listen']) {
    for (const address of ['10.96.0.10', 'fd00::1']) {
      const variables = serviceVariables(name, address, ports)
      assert.equal(Object.keys(variables).length, 17)
      assert.deepEqual(problems({ ...MINIMUM, ...variables }), [])
    }
  }
})

test('config: a misspelt variable is refused', () => {
  for (const { name, fallback } of VARIABLES) {
    const own = name.slice('PLANTS_'.length)
    const misspelt = Array.from(own, (_, i) => own.slice(0, i) + own.slice(i + 1))
    misspelt.push(`_${own}`, `${own}_`, `${own}S`, own.toLowerCase(), `${own}PORT`, `${own}_HOST`)
    misspelt.push(`SERVICE_${own}`, `api_PORT`, 'SERVICE', 'HOST', 'SERVICE_HOST_X')
    for (const each of misspelt)
      for (const value of [fallback, '8080', '10.96.0.10', 'x'])
        if (value !== '')
          assert.deepEqual(problems({ ...MINIMUM, [`PLANTS_${each}`]: value }), [
            `PLANTS_${each} is not known: see --help for the variables that are`,
          ])
  }
})

test('config: no setting has the name of a variable of Kubernetes', () => {
  assert.deepEqual(problems(MINIMUM), [])
  // One that is ignored would be no problem.
  for (const { name } of VARIABLES)
    assert.notDeepEqual(problems({ ...MINIMUM, [name]: ' ' }), [], name)
})

test('config: an empty value counts as unset', () => {
  assert.equal(
    readConfig(
      { ...MINIMUM, PLANTS_LISTEN: '', PLANTS_ETCD_ENDPOINTS: '', PLANTS_TYPO: '' },
      'service',
    ).maxBodyBytes,
    1_048_576,
  )
  assert.deepEqual(problems({ ...MINIMUM, PLANTS_ISSUER: '' }), [
    'PLANTS_ISSUER is required: the iss that a token must have',
  ])
})

test('config: an address is host:port, [IPv6]:port, unix:/path, or off for admin', () => {
  const listen = (text: string) => readConfig({ ...MINIMUM, PLANTS_LISTEN: text }, 'service').listen
  assert.deepEqual(listen('0.0.0.0:0'), { host: '0.0.0.0', port: 0 })
  assert.deepEqual(listen('localhost:65535'), { host: 'localhost', port: 65_535 })
  assert.deepEqual(listen('[::1]:80'), { host: '::1', port: 80 })
  assert.deepEqual(listen('unix:/run/plants.sock'), { path: '/run/plants.sock' })
  assert.equal(readConfig({ ...MINIMUM, PLANTS_ADMIN_LISTEN: 'off' }, 'service').adminListen, 'off')
  for (const wrong of [
    '8080',
    ':8080',
    '::1:80',
    'host:',
    'host:x',
    'unix:',
    'off',
    'host:123456',
  ]) {
    assert.equal(problems({ ...MINIMUM, PLANTS_LISTEN: wrong }).length, 1, wrong)
  }
})

test('config: an address that a beginner writes is refused with what to write', () => {
  const of = (name: string, value: string) => problems({ ...MINIMUM, [name]: value })
  for (const name of ['PLANTS_LISTEN', 'PLANTS_ADMIN_LISTEN']) {
    const problem = `${name} must name a host: for every address, write 0.0.0.0:90 or [::]:90`
    for (const value of ['*:90', ':90']) assert.deepEqual(of(name, value), [problem])
  }
  const forms = 'must be host:port, [IPv6]:port or unix:/path'
  const value = 'and is a text of length 4'
  assert.deepEqual(of('PLANTS_LISTEN', 'none'), [`PLANTS_LISTEN ${forms}, ${value}`])
  const orOff = [`PLANTS_ADMIN_LISTEN ${forms}, or off, ${value}`]
  assert.deepEqual(of('PLANTS_ADMIN_LISTEN', 'none'), orOff)
})

test('config: both listeners at one address are refused, by both names', () => {
  const of = (listen: string, admin: string) =>
    problems({ ...MINIMUM, PLANTS_LISTEN: listen, PLANTS_ADMIN_LISTEN: admin })
  const problem = 'PLANTS_LISTEN and PLANTS_ADMIN_LISTEN are the same address: each needs its own'
  for (const [listen, admin] of [
    ['127.0.0.1:80', '127.0.0.1:80'],
    ['[::1]:80', '[::1]:080'],
    ['unix:/run/a.sock', 'unix:/run//a.sock'],
    ['127.0.0.1:8081', ''],
  ] as const)
    assert.deepEqual(of(listen, admin), [problem], listen)
  for (const [listen, admin] of [
    ['127.0.0.1:0', '127.0.0.1:0'],
    ['127.0.0.1:80', '[::1]:80'],
    ['unix:/off', 'off'],
  ] as const)
    assert.deepEqual(of(listen, admin), [], listen)
})

test('config: a value with blanks around it is refused', () => {
  for (const { name } of VARIABLES.filter((each) => !each.name.startsWith('PLANTS_ETCD')))
    for (const value of [' x', 'x\n', '\tx', ' '])
      assert.ok(
        problems({ ...MINIMUM, [name]: value }).includes(
          `${name} must not begin or end with a blank or a line break`,
        ),
        name,
      )
})

test('config: an integer is decimal digits within its bounds', () => {
  const edges: readonly (readonly [name: string, min: number, max: number])[] = [
    ['PLANTS_MAX_DATA_BYTES', 65_536, 536_870_912],
    ['PLANTS_CLOCK_TOLERANCE', 0, 3600],
    ['PLANTS_MAX_BODY_BYTES', 1, 16_777_216],
    ['PLANTS_MAX_CONNECTIONS', 1, 1_000_000],
    ['PLANTS_RATE_LIMIT', 1, 1_000_000],
    ['PLANTS_DRAIN_DELAY', 0, 3600],
    ['PLANTS_SHUTDOWN_TIMEOUT', 0, 3600],
  ]
  for (const [name, min, max] of edges) {
    for (const good of [min, max])
      assert.deepEqual(problems({ ...MINIMUM, [name]: String(good) }), [], `${name}=${good}`)
    for (const bad of [String(min - 1), String(max + 1), '1e3', '1.5', ' 1', '0x10', '1_000']) {
      assert.equal(problems({ ...MINIMUM, [name]: bad }).length, 1, `${name}=${bad}`)
    }
  }
})

test('config: the mode of a socket is octal, as for chmod', () => {
  const of = (mode: string) => problems({ ...MINIMUM, PLANTS_SOCKET_MODE: mode })
  for (const mode of ['0660', '660', '0777', '600']) assert.deepEqual(of(mode), [])
  for (const mode of ['0o660', '1777', '66', '0680', 'rw', '-660', '432x', '06600'])
    assert.match(of(mode).join(), /^PLANTS_SOCKET_MODE must be an octal mode such as 0660, and is/)
})

test('config: keys come from one place only', () => {
  const found = problems({ ...MINIMUM, PLANTS_JWKS_URL: 'https://issuer.test/keys' })
  assert.deepEqual(found, [
    'PLANTS_JWT_SECRET, PLANTS_JWKS_URL are set: keys come from one place only',
  ])
})

test('config: a secret is the text of its file without one final line end', async () => {
  const file = join(await temporaryDirectory(), 'secret')
  const secretOf = (bytes: string): string => {
    writeFileSync(file, bytes)
    const { PLANTS_JWT_SECRET: _, ...rest } = MINIMUM
    const { keys } = readConfig({ ...rest, PLANTS_JWT_SECRET_FILE: file }, 'service')
    assert.deepEqual(keys, { kind: 'secrets', paths: [file] })
    return Buffer.from(readSecrets([file]).text, 'base64').toString()
  }
  const secret = 's'.repeat(32)
  assert.equal(secretOf(secret), secret)
  assert.equal(secretOf(`${secret}\n`), secret)
  assert.equal(secretOf(`${secret}\n\n`), `${secret}\n`)
  writeFileSync(file, `${'s'.repeat(31)}\n`)
  const short = 'must have at least 32 bytes, and has 31'
  const required = { PLANTS_ISSUER: 'i', PLANTS_AUDIENCE: 'a' }
  const fromFile = problems({ ...required, PLANTS_JWT_SECRET_FILE: file })
  assert.deepEqual(fromFile, [`PLANTS_JWT_SECRET_FILE cannot be used: ${short}`])
  const itself = problems({ ...required, PLANTS_JWT_SECRET: 's'.repeat(31) })
  assert.deepEqual(itself, [`PLANTS_JWT_SECRET ${short}`])
  assert.match(
    problems({
      PLANTS_ISSUER: 'i',
      PLANTS_AUDIENCE: 'a',
      PLANTS_JWT_SECRET_FILE: `${file}.gone`,
    }).join(),
    /PLANTS_JWT_SECRET_FILE.*no such file/,
  )
})

test('config: without keys, the issuer must be a URL to discover them from', () => {
  const of = (issuer: string) => problems({ PLANTS_ISSUER: issuer, PLANTS_AUDIENCE: 'plants' })
  const problem =
    'PLANTS_ISSUER must be an https URL, or http on 127.0.0.0/8, [::1] or localhost ' +
    '(with PLANTS_KEYS_OVER_HTTP=anywhere on any host), without user info; ' +
    'or set one of PLANTS_JWT_SECRET_FILE, PLANTS_JWT_SECRET, ' +
    'PLANTS_JWKS_FILE, PLANTS_JWKS_URL: it says where the keys are'
  for (const wrong of ['not a url', 'http://issuer.test']) assert.deepEqual(of(wrong), [problem])
  for (const good of ['https://issuer.test/', 'http://127.0.0.1:9/']) assert.deepEqual(of(good), [])
})

test('config: keys may come over http from any host only if that is set', () => {
  const env = { PLANTS_ISSUER: 'http://keycloak:8080/realms/r', PLANTS_AUDIENCE: 'plants' }
  const url = { ...env, PLANTS_JWKS_URL: 'http://keycloak:8080/realms/r/certs' }
  const hint = '(with PLANTS_KEYS_OVER_HTTP=anywhere on any host)'
  for (const each of [env, url]) {
    for (const how of ['', 'loopback'])
      assert.ok(problems({ ...each, PLANTS_KEYS_OVER_HTTP: how }).join().includes(hint))
    assert.deepEqual(problems({ ...each, PLANTS_KEYS_OVER_HTTP: 'anywhere' }), [])
  }
  assert.match(problems({ ...env, PLANTS_KEYS_OVER_HTTP: 'all' }).join(), /loopback, anywhere/)
})

test('config: several issuers in one setting are refused, and a comma in one is not', () => {
  const of = (issuer: string) => problems({ ...MINIMUM, PLANTS_ISSUER: issuer })
  const problem = ['PLANTS_ISSUER must be one: run a service for each issuer']
  for (const several of ['https://a,https://b', 'https://a, http://b', 'a,https://b'])
    assert.deepEqual(of(several), problem)
  for (const one of ['https://a/x,y', 'a,b', 'https://a/?next=https://b'])
    assert.deepEqual(of(one), [])
})

test('config: https keys are refused while Node checks no certificate', (t) => {
  const variable = 'NODE_TLS_REJECT_UNAUTHORIZED'
  const before = process.env[variable]
  t.after(() => {
    if (before === undefined) delete process.env[variable]
    else process.env[variable] = before
  })
  const env = { PLANTS_ISSUER: 'https://issuer.test', PLANTS_AUDIENCE: 'plants' }
  const url = { ...env, PLANTS_JWKS_URL: 'https://issuer.test/keys' }
  const problem = 'is of no use: with NODE_TLS_REJECT_UNAUTHORIZED=0 anyone could name the keys'
  for (const [each, name] of [
    [env, 'PLANTS_ISSUER'],
    [url, 'PLANTS_JWKS_URL'],
  ] as const) {
    process.env[variable] = '0'
    assert.ok(problems(each)[0]?.startsWith(`${name} ${problem}`), problems(each)[0])
    process.env[variable] = '1'
    assert.deepEqual(problems(each), [])
  }
  process.env[variable] = '0'
  assert.deepEqual(problems({ ...url, PLANTS_JWKS_URL: 'http://127.0.0.1:1/' }), [])
  assert.deepEqual(problems(MINIMUM), [])
})

test('config: etcd endpoints are origins, and all others have defaults', () => {
  const etcd = (more: Readonly<Record<string, string>>) =>
    readConfig({ ...MINIMUM, ...more }, 'service').etcd
  const tls = { ca: undefined, cert: undefined, key: undefined }
  assert.deepEqual(etcd({ PLANTS_ETCD_ENDPOINTS: 'http://127.0.0.1:2379/, http://[::1]:80' }), {
    endpoints: ['http://127.0.0.1:2379', 'http://[::1]:80'],
    prefix: 'plants/',
    user: undefined,
    tls,
  })
  assert.deepEqual(
    etcd({ PLANTS_ETCD_ENDPOINTS: 'https://etcd.test', PLANTS_ETCD_PREFIX: 'a/b/' }),
    { endpoints: ['https://etcd.test'], prefix: 'a/b/', user: undefined, tls },
  )
  for (const wrong of [
    'etcd:2379',
    'unix:/x',
    'http://user@etcd:2379',
    'http://etcd:2379/v3',
    'http://etcd:2379?',
    'http://etcd:x',
    'http://etcd:1,',
    ',',
  ]) {
    assert.match(
      problems({ ...MINIMUM, PLANTS_ETCD_ENDPOINTS: wrong }).join(),
      /^PLANTS_ETCD_ENDPOINTS must be http/,
      wrong,
    )
  }
  for (const wrong of [
    'http://root:secret@etcd:2379',
    'root:secret@etcd:2379',
    'http://root:sec@secret@etcd:2379',
  ])
    assert.doesNotMatch(problems({ ...MINIMUM, PLANTS_ETCD_ENDPOINTS: wrong }).join(), /secret/)
  assert.deepEqual(problems({ ...MINIMUM, PLANTS_ETCD_ENDPOINTS: 'https://a:1,http://a:2' }), [
    'PLANTS_ETCD_ENDPOINTS must be all http or all https',
  ])
})

test('config: an etcd password is the text of its file, and needs a user', async () => {
  const file = join(await temporaryDirectory(), 'password')
  writeFileSync(file, ' päss\n\n')
  const password = { ...ETCD_HTTP, PLANTS_ETCD_PASSWORD_FILE: file }
  const latin1 = join(await temporaryDirectory(), 'latin1')
  writeFileSync(latin1, Buffer.from('pässword', 'latin1'))
  assert.match(
    problems({ ...MINIMUM, ...password, PLANTS_ETCD_PASSWORD_FILE: latin1 }).join(),
    /PLANTS_ETCD_PASSWORD_FILE cannot be read: .*utf-8/,
  )
  assert.deepEqual(readConfig({ ...password, PLANTS_ETCD_USERNAME: 'p' }, 'storage').etcd?.user, {
    name: 'p',
    password: ' päss\n',
  })
  for (const [content, text] of [['päss\r\n', 'päss'], ['\t\n', '\t']] as const) {
    writeFileSync(file, content)
    const { etcd } = readConfig({ ...password, PLANTS_ETCD_USERNAME: 'p' }, 'storage')
    assert.equal(etcd?.user?.password, text)
  }
  assert.deepEqual(problems({ ...ETCD_HTTP, PLANTS_ETCD_USERNAME: 'p' }), [
    'PLANTS_ETCD_PASSWORD_FILE is required by PLANTS_ETCD_USERNAME',
  ])
  assert.deepEqual(problems(password), [
    'PLANTS_ETCD_USERNAME is required by PLANTS_ETCD_PASSWORD_FILE',
  ])
})

test('config: etcd files are read and checked, and pairs are complete', async () => {
  const file = join(await temporaryDirectory(), 'no-pem')
  writeFileSync(file, 'no PEM')
  const namesIn = (env: Readonly<Record<string, string>>): readonly string[] =>
    problems(env).map((line) => line.split(' ')[0] ?? '')
  assert.deepEqual(problems({ ...ETCD_HTTP, PLANTS_ETCD_PREFIX: 'x' }), [
    'PLANTS_ETCD_PREFIX must end in /, and is a text of length 1',
  ])
  const certificate = namesIn({ ...ETCD_HTTPS, PLANTS_ETCD_CERT_FILE: file })
  assert.deepEqual(certificate.toSorted(), ['PLANTS_ETCD_CERT_FILE', 'PLANTS_ETCD_KEY_FILE'])
  const all = {
    ...ETCD_HTTPS,
    PLANTS_ETCD_CA_FILE: `${file}.gone`,
    PLANTS_ETCD_CERT_FILE: file,
    PLANTS_ETCD_KEY_FILE: file,
  }
  assert.deepEqual(namesIn(all), [
    'PLANTS_ETCD_CA_FILE',
    'PLANTS_ETCD_CERT_FILE',
    'PLANTS_ETCD_KEY_FILE',
  ])
  // A key that cannot be read is not reported as missing too.
  const gone = namesIn({ ...all, PLANTS_ETCD_KEY_FILE: `${file}.gone` })
  assert.deepEqual(gone.toSorted(), Object.keys(all).slice(-3))
  const ca = { PLANTS_ETCD_CA_FILE: file }
  assert.match(problems({ ...ETCD_HTTPS, ...ca }).join(), /PLANTS_ETCD_CA_FILE cannot be read: /)
  assert.deepEqual(problems({ ...ETCD_HTTP, ...ca }), [
    'PLANTS_ETCD_CA_FILE is of no use without https',
  ])
})

test('config: variables of etcd are refused without PLANTS_ETCD_ENDPOINTS', () => {
  const what = 'is of no use without PLANTS_ETCD_ENDPOINTS'
  assert.deepEqual(problems({ ...MINIMUM, PLANTS_ETCD_PREFIX: 'x/', PLANTS_ETCD_USERNAME: 'p' }), [
    `PLANTS_ETCD_PREFIX ${what}`,
    `PLANTS_ETCD_USERNAME ${what}`,
  ])
})

test('config: every path is resolved when it is read', async (t) => {
  const directory = await temporaryDirectory()
  const before = process.cwd()
  process.chdir(directory)
  t.after(() => process.chdir(before))
  // RFC 8037, appendix A.2.
  const key = { kty: 'OKP', crv: 'Ed25519', x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo' }
  writeFileSync('jwks.json', JSON.stringify({ keys: [key] }))
  const { data, listen, adminListen, keys } = readConfig(
    {
      PLANTS_ISSUER: 'i',
      PLANTS_AUDIENCE: 'a',
      PLANTS_JWKS_FILE: 'jwks.json',
      PLANTS_DATA: '../data',
      PLANTS_LISTEN: 'unix:plants.sock',
      PLANTS_ADMIN_LISTEN: 'unix:./admin.sock',
    },
    'service',
  )
  assert.equal(data, resolve(directory, '../data'))
  assert.deepEqual(listen, { path: resolve('plants.sock') })
  assert.deepEqual(adminListen, { path: resolve('admin.sock') })
  assert.deepEqual(keys, { kind: 'file', path: resolve('jwks.json') })
})

const NO_KEYS = { ...MINIMUM, PLANTS_JWT_SECRET: '' }
/** Each variable that names a file, and the variables without which the file is not read. */
const FILES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  PLANTS_JWT_SECRET_FILE: NO_KEYS,
  PLANTS_JWKS_FILE: NO_KEYS,
  PLANTS_ETCD_PASSWORD_FILE: { ...ETCD_HTTPS, PLANTS_ETCD_USERNAME: 'p' },
  PLANTS_ETCD_CA_FILE: ETCD_HTTPS,
  PLANTS_ETCD_CERT_FILE: ETCD_HTTPS,
  PLANTS_ETCD_KEY_FILE: ETCD_HTTPS,
}

/** As long as a secret is. */
const MISPLACED = `hidden-${'x'.repeat(40)}`

test('config: a secret in the place of any other value is never printed', async () => {
  const directory = await temporaryDirectory()
  const file = join(directory, 'file')
  writeFileSync(file, '')
  const shapes = [
    MISPLACED,
    MISPLACED.repeat(100),
    `${MISPLACED}/`,
    `${file}/${MISPLACED}`,
    `http://${MISPLACED}/x`,
    `unix:${MISPLACED.repeat(3)}`,
  ]
  for (const { name } of VARIABLES) {
    const more = FILES[name] ?? (name.startsWith('PLANTS_ETCD') ? ETCD_HTTPS : MINIMUM)
    for (const value of shapes)
      assert.doesNotMatch(problems({ ...more, [name]: value }).join(), /hidden/, name)
  }
  for (const [name, more] of Object.entries(FILES)) {
    const { status, stderr } = await command(['serve'], { ...more, [name]: MISPLACED }, directory)
    const verb = name.startsWith('PLANTS_JW') ? 'used' : 'read'
    const why = `${name} cannot be ${verb}: ENOENT: no such file or directory`
    assert.equal(status, 2)
    assert.ok(stderr.split('\n').includes(`plant-store: ${why}`), stderr)
    assert.doesNotMatch(stderr, /hidden/)
    for (const [path, kind] of [
      [`${file}/x`, 'ENOTDIR: not a directory'],
      [MISPLACED.repeat(9), 'ENAMETOOLONG: name too long'],
    ] as const)
      assert.match(problems({ ...more, [name]: path }).join(), new RegExp(`${name} .*${kind}`))
  }
})

