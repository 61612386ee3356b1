import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readBearer, TokenRefused } from '../../dist/auth/bearer.js'
import { processorMs } from '../support/time.ts'

// ../api/authorization.test.ts has each challenge. Here is what does not come over HTTP, or looks
// almost like another scheme.

const MISSING = 'Bearer realm="plants"'
const MALFORMED = 'Bearer realm="plants", error="invalid_request"'

const REFUSED: readonly (readonly [challenge: string, ...values: string[]])[] = [
  [MISSING],
  [MISSING, 'abc'],
  [MISSING, 'Bearer.x abc'],
  [MISSING, 'xBearer abc'],
  [MISSING, ', abc'],
  [MALFORMED, 'Bearer a '],
  [MALFORMED, 'Bearer:a'],
  [MALFORMED, 'Bearer/a'],
  [MALFORMED, 'Bearer ä'],
  [MALFORMED, 'Bearer a\n'],
  [MALFORMED, '', ''],
]

for (const [challenge, ...values] of REFUSED) {
  const refusal = challenge === MISSING ? 'tokenMissing' : 'authorizationMalformed'
  test(`bearer: ${JSON.stringify(values)} is ${refusal}`, () => {
    assert.throws(() => readBearer(values), { refusal, challenge })
  })
}

test('bearer: reads the token, in any case of the scheme, after any number of spaces', () => {
  for (const start of ['Bearer', 'bearer', 'BEARER  '])
    assert.equal(readBearer([`${start} a.b-c_~+/==`]), 'a.b-c_~+/==')
})

test('bearer: reads a long header in linear time', async () => {
  const length = 1_000_000
  const took = await processorMs(() => {
    for (const tail of [' '.repeat(length), `${'='.repeat(length)}a`, `${'a'.repeat(length)},`])
      assert.throws(() => readBearer([`Bearer ${tail}`]), TokenRefused)
  })
  // Quadratic time would be a quarter of an hour.
  assert(took < 10_000, String(took))
})
