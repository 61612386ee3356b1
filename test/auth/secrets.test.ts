import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { KeySource, TIMING } from '../../dist/auth/key-source.js'
import { readKeys } from '../../dist/auth/keys.js'
import { readConfig } from '../../dist/settings/read.js'
import { logOf } from '../support/log.ts'
import { problems } from '../support/service.ts'
import { until } from '../support/time.ts'
import { accepted, AUDIENCE, ISSUER, refused, signed } from './tokens.ts'
import { temporaryDirectory, verifier } from './tokens.ts'

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

function open(t: TestContext, paths: string) {
  const lines: string[] = []
  const log = logOf((level, message, fields) => {
    lines.push(`${level} ${message} ${JSON.stringify(fields)}`)
  })
  const config = readConfig({ ...REQUIRED, PLANTS_JWT_SECRET_FILE: paths })
  const keys = new KeySource(readKeys(config), log, { ...TIMING, poll: 10 })
  keys.start()
  t.after(() => keys.close())
  return { keys, by: verifier(keys), lines }
}

const token = (secret: Uint8Array): string => signed('HS256', secret)

const TEXTS: readonly (readonly [content: string, secret: string])[] = [
  [`${A}`, `${A}`],
  [`${A}\n`, `${A}`],
  [`${A}\r\n`, `${A}`],
  [`${A}\n\n`, `${A}\n`],
  [`${A}\r`, `${A}\r`],
  [`é${A}\r\n`, `é${A}`],
  // A text of several lines is one secret.
  [`${A}\n${A}\n`, `${A}\n${A}`],
]

for (const [content, secret] of TEXTS) {
  test(`secret file: ${JSON.stringify(content)} is ${JSON.stringify(secret)}`, async (t) => {
    await accepted(token(Buffer.from(secret)), open(t, secretFiles(content)).by)
  })
}

test('secret file: no text is used with all its bytes, and the start says so', async (t) => {
  for (const end of ['\n', '\r\n', '']) {
    for (const start of ['\xff', '\0', '\t', '\x7f']) {
      const bytes = Buffer.from(`${start}${A}${end}`, 'latin1')
      const path = secretFiles(bytes)
      const { by, lines } = open(t, path)
      await accepted(token(bytes), by)
      const says = 'a secret file is no text: all its bytes are the secret'
      assert.deepEqual(lines, [`info ${says} ${JSON.stringify({ path })}`])
    }
  }
})

test('secret files: one to four, and each of them verifies', async (t) => {
  const { by } = open(t, secretFiles(A, `${B}\n`, C, D))
  for (const secret of [A, B, C, D]) await accepted(token(secret), by)
  await refused(token(Buffer.alloc(40, 'e')), 'tokenInvalid', by)
  await refused(`${token(A).slice(0, -2)}__`, 'tokenInvalid', by)
})

const LITTLE = Buffer.from(`${MARK}${A}`, 'utf16le')
const IS_FOUR = 'must be one to four paths with commas between, and is a text of length'
const IS_MARKED = 'cannot be used: begins with a byte order mark: save it as UTF-8 without one'
const PROBLEMS: readonly (readonly [paths: string, problem: string])[] = [
  ['a,b,c,d,e', `${IS_FOUR} 9`],
  ['a,', `${IS_FOUR} 2`],
  [secretFiles('x'.repeat(31)), 'cannot be used: must have at least 32 bytes, and has 31'],
  [secretFiles(A, 'short\n'), 'file 2 cannot be used: must have at least 32 bytes, and has 5'],
  [`${secretFiles(A)},/no/such`, 'file 2 cannot be used: ENOENT: no such file or directory'],
  [secretFiles(`${MARK}${A}`, A), `file 1 ${IS_MARKED}`],
  [secretFiles(`${MARK}${A}\r\n`), IS_MARKED],
  [secretFiles(LITTLE), IS_MARKED],
  [secretFiles(Buffer.from(LITTLE).swap16()), IS_MARKED],
]

for (const [at, [paths, problem]] of PROBLEMS.entries()) {
  test(`secret files: the start fails, without a path: ${problem} (${at})`, () => {
    assert.deepEqual(problems({ ...REQUIRED, PLANTS_JWT_SECRET_FILE: paths }), [
      `PLANTS_JWT_SECRET_FILE ${problem}`,
    ])
  })
}

test('secret files: read again; a secret that is taken away ends its cached tokens', async (t) => {
  const paths = secretFiles(A, B)
  const { keys, by } = open(t, paths)
  for (const secret of [A, B]) await accepted(token(secret), by)
  const before = keys.keys
  writeFileSync(paths.split(',')[0] ?? '', B)
  await until('it is read', () => keys.keys !== before)
  await refused(token(A), 'tokenInvalid', by)
  await accepted(token(B), by)
})
