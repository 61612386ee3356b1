import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { test } from 'node:test'
import { COMMANDS, OPTIONS } from '../../dist/cli/commands.js'
import { describeConfig } from '../../dist/cli/config.js'
import { help } from '../../dist/cli/help.js'
import { VARIABLES } from '../../dist/settings/table.js'
import { temporaryDirectory } from '../support/service.ts'

const SECRET = 'hidden-'.repeat(8)
const MINIMUM = { PLANTS_ISSUER: 'https://issuer.test', PLANTS_AUDIENCE: 'plants' }

test('help: the one text has every command with its options and its file', () => {
  const text = help()
  for (const option of Object.keys(OPTIONS)) assert.match(text, new RegExp(`--${option}\\b`))
  for (const [name, [usage, , takes = []]] of COMMANDS) {
    const shown = [...usage.matchAll(/--([a-z]+)/g)].map(([, option]) => option)
    assert.deepEqual([...shown, ...(usage.endsWith(' FILE') ? ['file'] : [])], takes, name)
    assert.ok(text.includes(` plant-store ${usage}\n`), name)
    assert.match(text, new RegExp(`^${name} +[a-z]`, 'm'))
  }
  const known = [...text.matchAll(/plant-store \[?([a-z]+)/g)].map(([, name]) => name)
  assert.deepEqual(known, [...COMMANDS.keys()])
  assert.ok(text.split('\n').every((line) => line.length <= 130))
})

/** The columns of `plant-store config`. */
function settings(env: Readonly<Record<string, string>>): Map<string, readonly [string, string]> {
  const cells = /^(\S+) +(\S+)(?:  +(.*))?$/gm
  const rows = [...describeConfig(env).matchAll(cells)]
  return new Map(rows.map(([, name = '', source = '', value = '']) => [name, [source, value]]))
}

test('config: what is not set has the default of the table', () => {
  const found = settings(MINIMUM)
  // The prefix has one only with etcd.
  const others = ['PLANTS_ISSUER', 'PLANTS_AUDIENCE', 'PLANTS_DATA', 'PLANTS_ETCD_PREFIX']
  for (const { name, fallback } of VARIABLES.filter((each) => !others.includes(each.name))) {
    const expected = fallback === '' ? ['unset', ''] : ['default', fallback]
    assert.deepEqual(found.get(name), expected, name)
  }
  assert.deepEqual(found.get('PLANTS_DATA'), ['default', resolve('data')])
})

test('config: every setting has its source and its value', () => {
  const found = settings({
    ...MINIMUM,
    PLANTS_AUDIENCE: 'two words',
    PLANTS_LISTEN: '[::1]:80',
    PLANTS_ADMIN_LISTEN: 'off',
    PLANTS_DATA: '/data//plants',
    PLANTS_JWT_SECRET: '',
  })
  assert.deepEqual([...found.keys()], [...VARIABLES.map(({ name }) => name), 'keys'])
  const expected = {
    PLANTS_LISTEN: ['variable', '[::1]:80'],
    PLANTS_ADMIN_LISTEN: ['variable', 'off'],
    PLANTS_DATA: ['variable', '/data/plants'],
    PLANTS_ETCD_PREFIX: ['unset', ''],
    PLANTS_AUDIENCE: ['variable', '"two words"'],
    PLANTS_JWT_SECRET: ['unset', ''],
    keys: ['discovery', 'https://issuer.test'],
  }
  for (const [name, row] of Object.entries(expected)) assert.deepEqual(found.get(name), row, name)
})

test('config: secrets and what files hold are left out, paths are not', async () => {
  const file = join(await temporaryDirectory(), 'secret')
  writeFileSync(file, SECRET)
  const etcd = {
    PLANTS_ETCD_ENDPOINTS: 'http://127.0.0.1:1, http://127.0.0.1:2/',
    PLANTS_ETCD_USERNAME: 'gardener',
    PLANTS_ETCD_PASSWORD_FILE: file,
  }
  const secret = { ...MINIMUM, ...etcd, PLANTS_JWT_SECRET: SECRET }
  const inFile = { ...MINIMUM, PLANTS_JWT_SECRET_FILE: file }
  const url = { ...MINIMUM, PLANTS_JWKS_URL: `https://issuer.test/keys?key=${SECRET}` }
  for (const env of [secret, inFile, url])
    assert.doesNotMatch(describeConfig(env), /hidden/, JSON.stringify(env))
  const found = settings(secret)
  assert.deepEqual(found.get('PLANTS_ETCD_ENDPOINTS')?.[1], 'http://127.0.0.1:1,http://127.0.0.1:2')
  assert.deepEqual(found.get('PLANTS_ETCD_PASSWORD_FILE'), ['variable', file])
  assert.deepEqual(found.get('PLANTS_ETCD_PREFIX'), ['default', 'plants/'])
  assert.deepEqual(found.get('PLANTS_JWT_SECRET'), ['variable', '"(left out)"'])
  assert.deepEqual(settings(inFile).get('PLANTS_JWT_SECRET_FILE'), ['variable', file])
  assert.deepEqual(settings(url).get('PLANTS_JWKS_URL')?.[1], 'https://issuer.test/keys')
})
