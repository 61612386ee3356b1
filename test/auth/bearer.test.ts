import assert from 'node:assert/strict'
import { test } from 'node:test'
import { insufficientScope, invalidToken, readBearer } from '../../dist/auth/bearer.js'
import { HttpError } from '../../dist/errors.js'
import { processorMs } from '../support/time.ts'

function refused(values: readonly string[], condition: string, challenge: string): void {
  assert.throws(
    () => readBearer(values),
    (error) => {
      assert(error instanceof HttpError)
      assert.equal(error.condition, condition)
      assert.deepEqual(error.headers, ['WWW-Authenticate', challenge])
      return true
    },
    JSON.stringify(values),
  )
}

test('bearer: reads the token, in any case of the scheme, after any number of spaces', () => {
  for (const value of ['Bearer a.b-c_~+/==', 'bearer a.b-c_~+/==', 'BEARER   a.b-c_~+/==']) {
    assert.equal(readBearer([value]), 'a.b-c_~+/==')
  }
})

test('bearer: no header, an empty one or another scheme is a missing token', () => {
  for (const values of [
    [],
    [''],
    ['Basic abc'],
    ['Bearerx abc'],
    ['Bearer.x abc'],
    ['xBearer abc'],
    [', abc'],
    ['abc'],
  ]) {
    refused(values, 'tokenMissing', 'Bearer realm="plants"')
  }
})

test('bearer: anything but one token after Bearer is malformed', () => {
  const values = [
    'Bearer',
    'Bearer ',
    'Bearer a b',
    'Bearer a,b',
    'Bearer a ',
    'Bearer\ta',
    'Bearer,a',
    'Bearer:a',
    'Bearer "a"',
    'Bearer =',
    'Bearer/a',
    'Bearer a=b',
    'Bearer ä',
    'Bearer a\n',
    'Bearer token="a"',
  ]
  for (const value of values)
    refused([value], 'authorizationMalformed', 'Bearer realm="plants", error="invalid_request"')
})

test('bearer: two Authorization headers are malformed, even if equal', () => {
  for (const values of [
    ['Bearer a', 'Bearer a'],
    ['Basic a', 'Bearer a'],
    ['Basic a', 'Basic a'],
    ['', ''],
  ]) {
    refused(values, 'authorizationMalformed', 'Bearer realm="plants", error="invalid_request"')
  }
})

test('bearer: reads a long header in linear time', async () => {
  const length = 1_000_000
  const took = await processorMs(() => {
    for (const tail of [' '.repeat(length), `${'='.repeat(length)}a`, `${'a'.repeat(length)},`]) {
      assert.throws(() => readBearer([`Bearer ${tail}`]), HttpError)
    }
  })
  // Quadratic time would be a quarter of an hour.
  assert(took < 10_000, String(took))
})

test('bearer: challenges for a refused token and a missing scope', () => {
  assert.deepEqual(invalidToken('tokenExpired', 'late').headers, [
    'WWW-Authenticate',
    'Bearer realm="plants", error="invalid_token"',
  ])
  const challenge = 'Bearer realm="plants", error="insufficient_scope", scope="plants:write"'
  assert.deepEqual(insufficientScope('plants:write'), ['WWW-Authenticate', challenge])
})
