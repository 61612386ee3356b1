import assert from 'node:assert/strict'
import { type Condition, conditions } from '../../dist/errors.js'
import type { Reply } from './http.ts'
import type { WireAnswer } from './wire.ts'

/** All lines of a header field; none where it is missing. */
export function headerLines({ headers }: Reply | WireAnswer, name: string): readonly string[] {
  const value =
    headers instanceof Map
      ? (headers as ReadonlyMap<string, readonly string[]>).get(name)
      : (headers as Reply['headers'])[name]
  return value === undefined ? [] : typeof value === 'string' ? [value] : value
}

/** What every answer carries. */
export function assertCommon(answer: Reply | WireAnswer): void {
  assert.deepEqual(headerLines(answer, 'cache-control'), ['no-store'])
  assert.deepEqual(headerLines(answer, 'x-content-type-options'), ['nosniff'])
  assert.match(headerLines(answer, 'request-id').join('|'), /^[\x21-\x7e]{1,128}$/)
  assert.equal(headerLines(answer, 'date').length, 1)
}

/**
 * The catalogue entry that an answer is, or its status where it is no failure; that it has the
 * right form is asserted.
 */
export function verdict(answer: Reply | WireAnswer): Condition | number {
  assertCommon(answer)
  if (answer.status < 400) return answer.status
  assert.deepEqual(headerLines(answer, 'content-type'), ['application/json'])
  // Checked member by member below.
  const body = JSON.parse('text' in answer ? answer.text : answer.body) as {
    readonly error: unknown
    readonly message: unknown
  }
  assert.deepEqual(Object.keys(body), ['error', 'message'])
  for (const [condition, [error, message]] of conditions) {
    if (error !== body.error) continue
    assert.deepEqual([answer.status, body.message], [Math.floor(error / 100), message])
    return condition
  }
  return assert.fail(`not in the catalogue: ${JSON.stringify(body)}`)
}
