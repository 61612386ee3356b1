import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Budget } from '../../dist/limits/budget.js'

test('budget: a hold changes as far as its owner has room, and else stays as it is', () => {
  // Odd, so that one more than half is one too much.
  const budget = new Budget(1001)
  const alice = budget.reserve('alice', 100)
  // Half of it is for others.
  assert.ok(!alice.set(501))
  assert.equal(budget.held, 100)
  assert.ok(alice.set(500))
  assert.equal(budget.held, 500)
  const bob = budget.reserve('bob', 0)
  assert.ok(!bob.set(251))
  assert.ok(bob.set(250))
  alice.set(0)
  bob.set(0)
  assert.equal(budget.held, 0)
})
