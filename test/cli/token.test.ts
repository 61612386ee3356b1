import assert from 'node:assert/strict'
import { readdirSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { readDevKey, readOrCreateDevKey, signDevToken } from '../../dist/cli/token.js'
import { ConfigError } from '../../dist/errors.js'
import { launch } from '../support/launch.ts'
import { PatientVerifier, RULES, secretKeys, temporaryDirectory } from '../auth/tokens.ts'

test('dev key: is made once, and only its owner can read it and its directory', async () => {
  const directory = join(temporaryDirectory(), 'a', 'b')
  assert.equal(readDevKey(directory), undefined)
  const key = readOrCreateDevKey(directory)
  assert.equal(key.length, 32)
  assert.equal(statSync(join(directory, 'dev.key')).mode & 0o777, 0o600)
  assert.equal(statSync(directory).mode & 0o777, 0o700)
  assert.deepEqual(readdirSync(directory), ['dev.key'])
  assert.deepEqual(readOrCreateDevKey(directory), key)
  assert.deepEqual(readDevKey(directory), key)
  assert.notDeepEqual(readOrCreateDevKey(join(directory, 'other')), key)
})

test('dev key: where no byte can be written none is left, and a later start makes it', async () => {
  const data = join(temporaryDirectory(), 'data')
  const prefix = ['sh', '-c', 'ulimit -f 0; exec "$0" "$@"']
  const { exited, output } = launch({ PLANTS_DATA: data }, { args: ['serve', '--dev'], prefix })
  assert.equal(await exited, 1, output())
  assert.match(output(), /dev\.key, the development key of PLANTS_DATA, cannot be made: EFBIG/)
  assert.deepEqual(readdirSync(data), [])
  assert.equal((readOrCreateDevKey(data)).length, 32)
})

test('dev key: a file with other content is refused by name and not changed', async () => {
  const directory = temporaryDirectory()
  const path = join(directory, 'dev.key')
  for (const text of [
    '',
    '\n',
    'short\n',
    'A'.repeat(43),
    `${'A'.repeat(42)}B\n`,
    `${'A'.repeat(44)}\n`,
  ]) {
    writeFileSync(path, text)
    assert.throws(
      () => readOrCreateDevKey(directory),
      (error) => error instanceof ConfigError && error.message.includes(path),
    )
    assert.equal(statSync(path).size, text.length)
  }
})

test('dev key: a token is accepted with its scope until it expires', async () => {
  const key = readOrCreateDevKey(temporaryDirectory())
  const wanted = { sub: 'alice', ttl: '60' }
  const by = new PatientVerifier(secretKeys(key), RULES)
  const { owner, scopes } = await by.verify(signDevToken(key, RULES, wanted))
  assert.deepEqual([owner, scopes], ['alice', new Set()])
  const scoped = signDevToken(key, RULES, { ...wanted, scope: 'read write' })
  assert.deepEqual((await by.verify(scoped)).scopes, new Set(['read', 'write']))
  const later = new PatientVerifier(secretKeys(key), RULES, () => Date.now() + 66_000)
  await assert.rejects(async () => later.verify(scoped), { refusal: 'tokenExpired' })
})
