import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { test } from 'node:test'
import { readWithoutKeys } from '../dist/cli/settings.js'
import { readConfig } from '../dist/settings/read.js'
import { VARIABLES } from '../dist/settings/table.js'
import { RFC_KEY } from './support/keys.ts'
import { serviceVariables } from './support/kubernetes.ts'
import { sampled } from './support/scale.ts'
import { problems, temporaryDirectory } from './support/service.ts'

/* What is true of variables alone. Wrong values of each setting are in options.test.ts. */

const REQUIRED = { PLANTS_ISSUER: 'https://issuer.test', PLANTS_AUDIENCE: 'plants' }
const MINIMUM = { ...REQUIRED, PLANTS_JWT_SECRET: 'x'.repeat(32) }
const ETCD = { ...MINIMUM, PLANTS_ETCD_ENDPOINTS: 'https://127.0.0.1:1' }

test('config: every problem is named at once, by its variable', () => {
  const found = problems({
    PLANTS_LISTEN: 'nowhere',
    PLANTS_MAX_DATA_BYTES: '1073741825',
    PLANTS_READ_SCOPE: 'two scopes',
    PLANTS_JWT_SECRET: 'too short',
    PLANTS_TYPO: 'x',
    PLANTS_ETCD_ENDPOINTS: '127.0.0.1:2379',
    PLANTS_ETCD_USERNAME: 'p',
  })
  const names = found.map((line) => line.replace('PLANTS_', '').split(' ', 1)[0])
  const ofEtcd = 'ETCD_ENDPOINTS ETCD_PASSWORD_FILE'
  const others = 'ISSUER JWT_SECRET LISTEN MAX_DATA_BYTES READ_SCOPE TYPO keys'
  assert.equal(names.toSorted().join(' '), `AUDIENCE ${ofEtcd} ${others}`)
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

test('config: a misspelt variable is refused', (t) => {
  const all = VARIABLES.flatMap(({ name, fallback }) => {
    const own = name.slice('PLANTS_'.length)
    const misspelt = Array.from(own, (_, i) => own.slice(0, i) + own.slice(i + 1))
    misspelt.push(`_${own}`, `${own}_`, `${own}S`, own.toLowerCase(), `${own}PORT`, `${own}_HOST`)
    misspelt.push(`SERVICE_${own}`, `api_PORT`, 'SERVICE', 'HOST', 'SERVICE_HOST_X')
    const values = [fallback, '8080', '10.96.0.10', 'x'].filter((value) => value !== '')
    return misspelt.flatMap((each) => values.map((value) => [`PLANTS_${each}`, value] as const))
  })
  for (const [name, value] of sampled(all, 5, t))
    assert.deepEqual(problems({ ...MINIMUM, [name]: value }), [
      `${name} is not known: see --help for the variables that are`,
    ])
})

/** Of no use with etcd. */
const OF_SQLJS = 'PLANTS_MAX_OWNER_BYTES'

test('config: a value with blanks around it is refused, and none is ignored', () => {
  assert.deepEqual(problems(ETCD), [])
  for (const { name } of VARIABLES)
    for (const value of [' x', 'x\n', '\tx', ' '])
      assert.ok(
        problems({ ...(name === OF_SQLJS ? MINIMUM : ETCD), [name]: value }).includes(
          `${name} must not begin or end with a blank or a line break`,
        ),
        name,
      )
})

test('config: an empty value counts as unset', () => {
  const empty = { PLANTS_MAX_BODY_BYTES: '', PLANTS_ETCD_ENDPOINTS: '', PLANTS_TYPO: '' }
  assert.equal(readConfig({ ...MINIMUM, ...empty }).maxBodyBytes, 1_048_576)
  assert.deepEqual(problems({ ...MINIMUM, PLANTS_ISSUER: '' }), [
    'PLANTS_ISSUER is required: the iss that a token must have',
  ])
})

for (const [text, address] of [
  ['0.0.0.0:0', { host: '0.0.0.0', port: 0 }],
  ['localhost:65535', { host: 'localhost', port: 65_535 }],
  ['[::1]:80', { host: '::1', port: 80 }],
  ['unix:/run/plants.sock', { path: '/run/plants.sock' }],
] as const)
  test(`config: both listeners may have an address such as ${text}`, () => {
    const of = (more: object) => readConfig({ ...MINIMUM, ...more })
    assert.deepEqual(of({ PLANTS_LISTEN: text }).listen, address)
    assert.deepEqual(of({ PLANTS_ADMIN_LISTEN: text }).adminListen, address)
    assert.equal(of({ PLANTS_ADMIN_LISTEN: 'off' }).adminListen, 'off')
  })

for (const [listen, admin, isSame] of [
  ['127.0.0.1:80', '127.0.0.1:80', true],
  ['[::1]:80', '[::1]:080', true],
  ['unix:/run/a.sock', 'unix:/run//a.sock', true],
  ['127.0.0.1:8081', '', true],
  ['127.0.0.1:0', '127.0.0.1:0', false],
  ['127.0.0.1:80', '[::1]:80', false],
  ['unix:/off', 'off', false],
] as const)
  test(`config: listeners at ${listen} and ${admin} are ${isSame ? 'refused' : 'taken'}`, () => {
    const both = { PLANTS_LISTEN: listen, PLANTS_ADMIN_LISTEN: admin }
    const problem = 'PLANTS_ADMIN_LISTEN is the same address as PLANTS_LISTEN: each needs its own'
    assert.deepEqual(problems({ ...MINIMUM, ...both }), isSame ? [problem] : [])
  })

test('config: https keys are refused while Node checks no certificate', (t) => {
  const variable = 'NODE_TLS_REJECT_UNAUTHORIZED'
  const before = process.env[variable]
  t.after(() => {
    if (before === undefined) delete process.env[variable]
    else process.env[variable] = before
  })
  const url = { ...REQUIRED, PLANTS_JWKS_URL: 'https://issuer.test/keys' }
  const problem = 'is of no use: with NODE_TLS_REJECT_UNAUTHORIZED=0 anyone could name the keys'
  for (const [each, name] of [
    [REQUIRED, 'PLANTS_ISSUER'],
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

test('config: etcd endpoints are origins, with commas between', () => {
  const PLANTS_ETCD_ENDPOINTS = 'http://127.0.0.1:2379/, http://[::1]:80'
  const { etcd } = readConfig({ ...MINIMUM, PLANTS_ETCD_ENDPOINTS })
  assert.deepEqual(etcd?.endpoints, ['http://127.0.0.1:2379', 'http://[::1]'])
})

test('config: an etcd password is the text of its file, less one final line end', async () => {
  const file = join(await temporaryDirectory(), 'password')
  const env = { ...ETCD, PLANTS_ETCD_USERNAME: 'p', PLANTS_ETCD_PASSWORD_FILE: file }
  for (const [content, password] of [
    [' päss\n\n', ' päss\n'],
    ['päss\r\n', 'päss'],
    ['\t\n', '\t'],
  ] as const) {
    writeFileSync(file, content)
    assert.deepEqual(readWithoutKeys(env, 'ignored').etcd?.user, { name: 'p', password })
  }
  writeFileSync(file, Buffer.from('pässword', 'latin1'))
  assert.match(problems(env).join(), /^PLANTS_ETCD_PASSWORD_FILE cannot be read: .*utf-8/)
})

test('config: every path is resolved when it is read', async (t) => {
  const directory = await temporaryDirectory()
  const before = process.cwd()
  process.chdir(directory)
  t.after(() => process.chdir(before))
  writeFileSync('jwks.json', JSON.stringify({ keys: [RFC_KEY] }))
  const relative = {
    PLANTS_JWKS_FILE: 'jwks.json',
    PLANTS_DATA: '../data',
    PLANTS_LISTEN: 'unix:plants.sock',
    PLANTS_ADMIN_LISTEN: 'unix:./admin.sock',
  }
  const { data, listen, adminListen, keys } = readConfig({ ...REQUIRED, ...relative })
  assert.equal(data, resolve(directory, '../data'))
  assert.deepEqual(listen, { path: resolve('plants.sock') })
  assert.deepEqual(adminListen, { path: resolve('admin.sock') })
  assert.deepEqual([keys.kind, keys.from], ['file', resolve('jwks.json')])
})
