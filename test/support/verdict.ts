import assert from 'node:assert/strict'
import { CATALOGUE, type Condition } from '../../dist/errors.js'
import type { Reply } from './http.ts'
import type { WireAnswer } from './wire.ts'

// Object.entries widens the keys to string; they are exactly the catalogue's own.
const ENTRIES = Object.entries(CATALOGUE) as [Condition, readonly [number, string]][]
export const conditions = new Map(ENTRIES)

/** All values of a header; none if it is missing. */
export function headerLines({ headers }: Reply | WireAnswer, name: string): readonly string[] {
  const value =
    headers instanceof Map
      ? (headers as ReadonlyMap<string, readonly string[]>).get(name)
      : (headers as Reply['headers'])[name]
  return value === undefined ? [] : typeof value === 'string' ? [value] : value
}

/** The headers that every answer has. */
export function assertCommon(answer: Reply | WireAnswer): void {
  assert.deepEqual(headerLines(answer, 'cache-control'), ['no-store'])
  assert.deepEqual(headerLines(answer, 'x-content-type-options'), ['nosniff'])
  assert.match(headerLines(answer, 'request-id').join('|'), /^[\x21-\x7e]{1,128}$/)
  assert.equal(headerLines(answer, 'date').length, 1)
}

/** The catalogue entry of an answer, or its status if it is no error. Asserts its form. */
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
    assert.equal(answer.status, Math.floor(error / 100))
    // A sentence may follow that says what came instead.
    const said = String(body.message).replace(/ (?:It is [^]+|There is none|It is missing)\.$/, '')
    assert.equal(said, message)
    return condition
  }
  return assert.fail(`not in the catalogue: ${JSON.stringify(body)}`)
}

/** Asserts these answers, of which the last one closes the connection. */
export function assertLast(answers: readonly WireAnswer[], expected: readonly unknown[]): void {
  assert.deepEqual(answers.map(verdict), expected)
  assert.deepEqual(headerLines(answers.at(-1) ?? assert.fail(), 'connection'), ['close'])
}
