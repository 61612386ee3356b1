import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BodyBuffer } from '../../dist/http/body-buffer.js'
import { MemoryBudget } from '../../dist/ops/budget.js'

test('budget: a hold grows as far as its owner has room, and else stays as it is', () => {
  const budget = new MemoryBudget(1000)
  const alice = budget.reserve('alice', 100)
  // Half of it is for others.
  assert.ok(!alice.grow(501))
  assert.equal(budget.heldBytes, 100)
  assert.ok(alice.grow(500))
  assert.ok(alice.grow(200))
  assert.equal(budget.heldBytes, 500)
  const bob = budget.reserve('bob', 0)
  assert.ok(!bob.grow(251))
  assert.ok(bob.grow(250))
  alice.set(0)
  bob.set(0)
  assert.equal(budget.heldBytes, 0)
})

test('body buffer: it takes what it said, and is copied a few times only', () => {
  const body = new BodyBuffer()
  const capacities = new Set<number>()
  for (let length = 1; length <= 10_000; length++) {
    const said = body.capacityWith(1)
    body.add(Buffer.from('x'))
    assert.equal(body.capacity, said)
    capacities.add(said)
  }
  assert.ok(capacities.size < 20, String(capacities.size))
  assert.ok(body.capacity < 20_000)
  assert.equal(body.bytes.toString(), 'x'.repeat(10_000))
})
