import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { statSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { readDevKey, readOrCreateDevKey, signDevToken } from '../../dist/cli/dev-key.js'
import { ConfigError } from '../../dist/errors.js'
import { PatientVerifier, RULES, secretKeys, temporaryDirectory } from '../auth/tokens.ts'

test('the development key is made once, readable by its owner alone, in a directory that is too', () => {
  const directory = join(temporaryDirectory(), 'a', 'b')
  const path = join(directory, 'dev.key')
  assert.equal(readDevKey(path), undefined)
  const key = readOrCreateDevKey(path)
  assert.equal(key.length, 32)
  assert.equal(statSync(path).mode & 0o777, 0o600)
  assert.equal(statSync(directory).mode & 0o777, 0o700)
  assert.deepEqual(readOrCreateDevKey(path), key)
  assert.deepEqual(readDevKey(path), key)
  assert.notDeepEqual(readOrCreateDevKey(join(directory, 'other.key')), key)
})

test('a file that holds no development key is refused by name and left alone', () => {
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
    assert.throws(
      () => readOrCreateDevKey(path),
      (error) => error instanceof ConfigError && error.message.includes(path),
    )
    assert.equal(statSync(path).size, text.length)
  }
})

test('a development key that is a pipe or too long is refused, and never waited for', () => {
  const directory = temporaryDirectory()
  const [pipe, long] = [join(directory, 'pipe'), join(directory, 'long')]
  execFileSync('mkfifo', [pipe])
  writeFileSync(long, 'A'.repeat(64 * 1024 + 1))
  const why = 'the development key of PLANTS_DATA cannot be read: '
  const refused = (path: string, what: string): void =>
    assert.throws(
      () => readDevKey(path),
      (error) => error instanceof ConfigError && error.message === `${why}${path} ${what}`,
    )
  refused(pipe, 'is not a regular file')
  refused(directory, 'is not a regular file')
  refused(long, 'has more than 65536 bytes')
})

test('a development token is accepted under its key, with its scope and until its end', async () => {
  const key = readOrCreateDevKey(join(temporaryDirectory(), 'dev.key'))
  const claims = { issuer: RULES.issuer, audience: RULES.audience, sub: 'alice', ttlSeconds: 60 }
  const by = new PatientVerifier(secretKeys(key), RULES)
  assert.deepEqual(await by.verify(await signDevToken(key, claims)), {
    owner: 'alice',
    scopes: new Set(),
  })
  const scoped = await signDevToken(key, { ...claims, scope: 'read write' })
  assert.deepEqual(await by.verify(scoped), { owner: 'alice', scopes: new Set(['read', 'write']) })
  const later = new PatientVerifier(secretKeys(key), RULES, () => Date.now() + 66_000)
  await assert.rejects(async () => later.verify(scoped), { condition: 'tokenExpired' })
})

test('a development key that is a FIFO, a directory or a huge file is refused at once', () => {
  const directory = temporaryDirectory()
  const fifo = join(directory, 'fifo')
  execFileSync('mkfifo', [fifo])
  const huge = join(directory, 'huge')
  writeFileSync(huge, '')
  // More than Node would read into one buffer.
  truncateSync(huge, 2 ** 40)
  for (const path of [fifo, directory, huge, '/dev/zero']) {
    const named = (error: unknown): boolean => {
      return error instanceof ConfigError && error.message.includes(path)
    }
    assert.throws(() => readOrCreateDevKey(path), named, path)
  }
})
