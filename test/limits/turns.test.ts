import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Turns } from '../../dist/limits/turns.js'
import { seeded } from '../support/random.ts'

test('owners take turns, and what waits of one owner keeps its order', () => {
  const turns = new Turns<string>()
  for (const item of ['a1', 'a2', 'a3', 'b1', 'c1', 'c2']) turns.add(item.charAt(0), item)
  const taken: (string | undefined)[] = []
  for (let i = 0; i < 4; i++) taken.push(turns.shift())
  turns.add('b', 'b2')
  assert.equal(turns.first, 'c2')
  assert.equal(turns.first, 'c2')
  while (turns.count > 0) taken.push(turns.shift())
  assert.deepEqual(taken, ['a1', 'b1', 'c1', 'a2', 'c2', 'a3', 'b2'])
  assert.deepEqual([turns.first, turns.shift()], [undefined, undefined])
})

test('turns are those of a list of owners, whatever is added and taken', (t) => {
  const { random } = seeded(t)
  const turns = new Turns<number>()
  /** The owner whose turn is next comes first. */
  let model: { owner: string; items: number[] }[] = []
  for (let step = 0; step < 20_000; step++) {
    // Long phases that fill, and long ones that empty it.
    if (random() < (step % 4000 < 2000 ? 0.6 : 0.4)) {
      const owner = `${Math.floor(random() * 50)}`
      turns.add(owner, step)
      const own = model.find((each) => each.owner === owner)
      if (own) own.items.push(step)
      else model.push({ owner, items: [step] })
    } else {
      const [next, ...others] = model
      if (random() < 0.5) assert.equal(turns.first, next?.items[0])
      assert.equal(turns.shift(), next?.items.shift())
      model = next && next.items.length > 0 ? [...others, next] : others
    }
    assert.equal(
      turns.count,
      model.reduce((sum, { items }) => sum + items.length, 0),
    )
  }
})
