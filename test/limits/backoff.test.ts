import assert from 'node:assert/strict'
import { test } from 'node:test'
import { nextDelay } from '../../dist/limits/backoff.js'

test('backoff: doubles from the first delay up to the longest', () => {
  let delay = 0
  const delays = [1, 2, 3, 4, 5, 6].map(() => (delay = nextDelay(delay, 100, 1000)))
  assert.deepEqual(delays, [100, 200, 400, 800, 1000, 1000])
})
