import assert from 'node:assert/strict'
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { type KeySource, TIMING } from '../../dist/auth/key-source.js'
import { type KeyConfig, readKeys } from '../../dist/auth/keys.js'
import { readConfig } from '../../dist/settings/read.js'
import { logOf, silent } from '../support/log.ts'
import { problems } from '../support/service.ts'
import { until } from '../support/time.ts'
import { accepted, AUDIENCE, ISSUER, refused, signed, temporaryDirectory } from './tokens.ts'
import { verifier } from './tokens.ts'

const REQUIRED = { PLANTS_ISSUER: ISSUER, PLANTS_AUDIENCE: AUDIENCE }
const [A, B, C, D] = ['a', 'b', 'c', 'd'].map((letter) => Buffer.from(letter.repeat(40)))
assert.ok(A && B && C && D)
const MARK = '\ufeff'

/** Files with these contents: their paths, with commas between. */
function secretFiles(...contents: readonly (Uint8Array | string)[]): string {
  const directory = temporaryDirectory()
  const paths = contents.map((_, i) => join(directory, `secret-${i + 1}`))
  for (const [i, path] of paths.entries()) writeFileSync(path, contents[i] ?? '')
  return paths.join()
}

function configOf(paths: string): KeyConfig {
  return readConfig({ ...REQUIRED, PLANTS_JWT_SECRET_FILE: paths }, 'service').keys
}

function open(t: TestContext, paths: string, log = silent): KeySource {
  const keys = readKeys(configOf(paths), ISSUER, undefined, { ...TIMING, poll: 10 })(log)
  keys.start?.()
  t.after(() => keys.close?.())
  return keys
}

function problemsOf(paths: string): readonly string[] {
  return problems({ ...REQUIRED, PLANTS_JWT_SECRET_FILE: paths })
}

const token = (secret: Uint8Array): string => signed('HS256', secret)

test('secret file: a line end of a text, LF or CR LF, is not part of it', async (t) => {
  const wrapped = 'a'.repeat(40)
  for (const [content, secret] of [
    [`${A}`, `${A}`],
    [`${A}\n`, `${A}`],
    [`${A}\r\n`, `${A}`],
    [`${A}\n\n`, `${A}\n`],
    [`${A}\r`, `${A}\r`],
    [`é${A}\r\n`, `é${A}`],
    // A text of several lines is one secret.
    [`${wrapped}\n${wrapped}\n`, `${wrapped}\n${wrapped}`],
  ] as const) {
    const by = verifier(open(t, secretFiles(content)))
    await accepted(token(Buffer.from(secret)), by)
  }
})

test('secret file: no text is used with all its bytes, and the start says so', async (t) => {
  for (const end of ['\n', '\r\n', '']) {
    for (const start of ['\xff', '\0', '\t', '\x7f']) {
      const bytes = Buffer.from(`${start}${A}${end}`, 'latin1')
      const lines: string[] = []
      const log = logOf((level, message, fields) => {
        lines.push(`${level} ${message} ${JSON.stringify(fields)}`)
      })
      const path = secretFiles(bytes)
      await accepted(token(bytes), verifier(open(t, path, log)))
      const [line, ...more] = lines
      const says = 'a secret file is no text: all its bytes are the secret'
      assert.equal(line, `info ${says} ${JSON.stringify({ path })}`)
      assert.deepEqual(more, [])
    }
  }
})

test('secret file: a byte order mark is refused at the start', () => {
  const little = Buffer.from(`${MARK}${A}`, 'utf16le')
  const mark = 'begins with a byte order mark: save it as UTF-8 without one'
  for (const content of [`${MARK}${A}\r\n`, little, Buffer.from(little).swap16()])
    assert.deepEqual(problemsOf(secretFiles(content)), [
      `PLANTS_JWT_SECRET_FILE cannot be used: ${mark}`,
    ])
})

test('secret files: one to four, and each of them verifies', async (t) => {
  const by = verifier(open(t, secretFiles(A, `${B}\n`, C, D)))
  for (const secret of [A, B, C, D]) await accepted(token(secret), by)
  await refused(token(Buffer.alloc(40, 'e')), 'tokenInvalid', by)
  await refused(`${token(A).slice(0, -2)}__`, 'tokenInvalid', by)
})

test('secret files: a problem names the file by its place, and no path', () => {
  const four = secretFiles(A, B, C, D)
  const many = 'must be one to four paths with commas between'
  assert.deepEqual(problemsOf(`${four},${secretFiles(A)}`), [`PLANTS_JWT_SECRET_FILE ${many}`])
  for (const [paths, problem] of [
    [secretFiles(A, 'short\n'), 'file 2 cannot be used: must have at least 32 bytes, and has 5'],
    [`${secretFiles(A)},/no/such`, 'file 2 cannot be used: ENOENT: no such file or directory'],
    [secretFiles(`${MARK}${A}`, A), 'file 1 cannot be used: begins with a byte order mark: save'],
    [`${secretFiles(A)},`, 'must be a path, and is empty'],
  ] as const) {
    const [found, ...more] = problemsOf(paths)
    assert.ok(found?.startsWith(`PLANTS_JWT_SECRET_FILE ${problem}`), found)
    assert.deepEqual(more, [])
  }
})

test('secret files: read again; a bad one keeps the secrets before', async (t) => {
  const path = secretFiles(A)
  const lines: string[] = []
  const log = logOf((level, message, fields) => {
    lines.push(`${level} ${message} ${JSON.stringify(fields)}`)
  })
  const keys = open(t, path, log)
  const by = verifier(keys)
  await accepted(token(A), by)
  assert.equal(by.verify(token(A)) instanceof Promise, false, 'cached')
  for (const bad of ['', 'short', `${MARK}${B}`, '-----BEGIN PUBLIC KEY-----'.repeat(2)]) {
    writeFileSync(path, bad)
    await until('it is stale', () => keys.isStale === true)
    assert.equal(by.verify(token(A)) instanceof Promise, false, 'still cached')
    writeFileSync(path, A)
    await until('it is good again', () => keys.isStale === false)
  }
  rmSync(path)
  await until('it is stale', () => keys.isStale === true)
  const reason = 'cannot be used: ENOENT: no such file or directory'
  await until('a line says so', () => lines.at(-1)?.includes(reason) === true)
  writeFileSync(path, B)
  await until('it is read', () => keys.isStale === false)
  await refused(token(A), 'tokenInvalid', by)
  await accepted(token(B), by)
  for (const line of lines) assert.doesNotMatch(line, /aaaa|bbbb/)
})

test('secret files: a secret that is taken away ends its cached tokens', async (t) => {
  const paths = secretFiles(A, B)
  const keys = open(t, paths)
  const by = verifier(keys)
  for (const secret of [A, B]) await accepted(token(secret), by)
  const before = keys.keys
  writeFileSync(paths.split(',')[0] ?? '', B)
  await until('it is read', () => keys.keys !== before)
  await refused(token(A), 'tokenInvalid', by)
  await accepted(token(B), by)
})
