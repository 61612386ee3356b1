import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readdirSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { readDevKey, readOrCreateDevKey, signDevToken } from '../../dist/cli/token.js'
import { ConfigError } from '../../dist/errors.js'
import { PatientVerifier, RULES, secretKeys, temporaryDirectory } from '../auth/tokens.ts'

test('dev key: is made once, and only its owner can read it and its directory', async () => {
  const directory = join(temporaryDirectory(), 'a', 'b')
  const path = join(directory, 'dev.key')
  assert.equal(readDevKey(path), undefined)
  const key = await readOrCreateDevKey(path)
  assert.equal(key.length, 32)
  assert.equal(statSync(path).mode & 0o777, 0o600)
  assert.equal(statSync(directory).mode & 0o777, 0o700)
  assert.deepEqual(await readOrCreateDevKey(path), key)
  assert.deepEqual(readDevKey(path), key)
  assert.notDeepEqual(await readOrCreateDevKey(join(directory, 'other.key')), key)
})

test('dev key: all that make it at the same moment have the same one', async () => {
  const directory = temporaryDirectory()
  const makers = Array.from({ length: 4 }, () => readOrCreateDevKey(join(directory, 'dev.key')))
  const [first, ...others] = await Promise.all(makers)
  for (const other of others) assert.deepEqual(other, first)
  assert.deepEqual(readdirSync(directory), ['dev.key'])
})

test('dev key: a file with other content is refused by name and not changed', async () => {
  const path = join(temporaryDirectory(), 'dev.key')
  for (const text of [
    '',
    '\n',
    'short\n',
    'A'.repeat(43),
    `${'A'.repeat(42)}B\n`,
    `${'A'.repeat(44)}\n`,
  ]) {
    writeFileSync(path, text)
    await assert.rejects(
      readOrCreateDevKey(path),
      (error) => error instanceof ConfigError && error.message.includes(path),
    )
    assert.equal(statSync(path).size, text.length)
  }
})

test('dev key: anything but a small regular file is refused at once', async () => {
  const directory = temporaryDirectory()
  const pipe = join(directory, 'pipe')
  const long = join(directory, 'long')
  const huge = join(directory, 'huge')
  execFileSync('mkfifo', [pipe])
  writeFileSync(long, 'A'.repeat(64 * 1024 + 1))
  writeFileSync(huge, '')
  // More than Node would read into one buffer.
  truncateSync(huge, 2 ** 40)
  const why = 'the development key of PLANTS_DATA cannot be read: '
  // Node's own mkdir with `recursive` tries without end here.
  await assert.rejects(readOrCreateDevKey('/proc/missing/dev.key'), /ENOENT/)
  for (const [path, what] of [
    [pipe, 'is not a regular file'],
    [directory, 'is not a regular file'],
    ['/dev/zero', 'is not a regular file'],
    [long, 'has more than 65536 bytes'],
    [huge, 'has more than 65536 bytes'],
  ] as const) {
    const isRefusal = (error: unknown): boolean =>
      error instanceof ConfigError && error.message === `${why}${path} ${what}`
    await assert.rejects(readOrCreateDevKey(path), isRefusal, path)
  }
})

test('dev key: a token is accepted with its scope until it expires', async () => {
  const key = await readOrCreateDevKey(join(temporaryDirectory(), 'dev.key'))
  const claims = { iss: RULES.issuer, aud: RULES.audience, sub: 'alice' }
  const by = new PatientVerifier(secretKeys(key), RULES)
  assert.deepEqual(await by.verify(signDevToken(key, claims, 60)), {
    owner: 'alice',
    scopes: new Set(),
  })
  const scoped = signDevToken(key, { ...claims, scope: 'read write' }, 60)
  assert.deepEqual(await by.verify(scoped), { owner: 'alice', scopes: new Set(['read', 'write']) })
  const later = new PatientVerifier(secretKeys(key), RULES, () => Date.now() + 66_000)
  await assert.rejects(async () => later.verify(scoped), { condition: 'tokenExpired' })
})
