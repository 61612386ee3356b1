import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Turns } from '../../dist/limits/turns.js'
import { seeded } from '../support/random.ts'

test('turns: no owner has two before each other that waits has one, in its order', (t) => {
  const { random } = seeded(t)
  const turns = new Turns<readonly [owner: string, step: number]>()
  const waiting = new Map<string, number[]>()
  /** For each owner, who has waited since its last turn and had none. */
  const passedBy = new Map<string, Set<string>>()
  let count = 0
  for (let step = 0; step < 20_000; step++) {
    // Long phases that fill, and long ones that empty it.
    if (random() < (step % 4000 < 2000 ? 0.6 : 0.4)) {
      const owner = `${Math.floor(random() * 50)}`
      turns.add(owner, [owner, step])
      waiting.set(owner, [...(waiting.get(owner) ?? []), step])
      count++
    } else {
      const first = turns.first
      const next = turns.shift()
      assert.equal(next, first)
      if (!next) assert.equal(count, 0)
      if (next) {
        const [owner, at] = next
        assert.equal(at, waiting.get(owner)?.shift())
        assert.deepEqual([...(passedBy.get(owner) ?? [])], [])
        if (waiting.get(owner)?.length === 0) waiting.delete(owner)
        for (const others of passedBy.values()) others.delete(owner)
        passedBy.set(owner, new Set([...waiting.keys()].filter((each) => each !== owner)))
        count--
      }
    }
    assert.equal(turns.count, count)
  }
})

test('turns: in each round an owner goes first until a quantum is used', () => {
  const turns = new Turns<string>(10)
  const take = (cost: number): string | undefined => {
    const owner = turns.shift()
    turns.charge(owner ?? '', cost)
    return owner
  }
  for (const owner of ['a', 'b', 'a', 'b', 'a', 'b', 'a', 'b']) turns.add(owner, owner)
  assert.deepEqual([take(20), take(20), take(20)], ['a', 'b', 'a'])
  const found: (string | undefined)[] = []
  for (let at = 0; at < 4; at++) {
    turns.add('short', 'short')
    found.push(take(4))
  }
  // Its quantum is used: it waits for its place in the round.
  assert.deepEqual(found, ['short', 'short', 'short', 'b'])
  // The turn of "b" has cost little.
  assert.deepEqual([take(20), take(20), take(20), take(20)], ['b', 'a', 'short', 'b'])
  assert.equal(turns.count, 1)
  assert.deepEqual([take(1), take(1)], ['a', undefined])
  // A quantum that is used while its owner waits counts too.
  for (const owner of ['late', 'early']) turns.add(owner, owner)
  turns.charge('late', 10)
  assert.deepEqual([take(1), take(1)], ['early', 'late'])
})
