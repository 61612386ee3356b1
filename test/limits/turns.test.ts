import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Turns } from '../../dist/limits/turns.js'
import { seeded } from '../support/random.ts'

test('turns are those of a list of owners, whatever is added and taken', (t) => {
  const { random } = seeded(t)
  const turns = new Turns<number>()
  /** The owner whose turn is next comes first. */
  let model: { owner: string; items: number[] }[] = []
  let count = 0
  for (let step = 0; step < 20_000; step++) {
    // Long phases that fill, and long ones that empty it.
    if (random() < (step % 4000 < 2000 ? 0.6 : 0.4)) {
      const owner = `${Math.floor(random() * 50)}`
      turns.add(owner, step)
      count++
      const own = model.find((each) => each.owner === owner)
      if (own) own.items.push(step)
      else model.push({ owner, items: [step] })
    } else {
      const [next, ...others] = model
      if (random() < 0.5) assert.equal(turns.first, next?.items[0])
      assert.equal(turns.shift(), next?.items.shift())
      if (next) count--
      model = next && next.items.length > 0 ? [...others, next] : others
    }
    assert.equal(turns.count, count)
  }
})
