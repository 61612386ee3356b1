import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Latest } from '../dist/latest.js'
import { seeded } from './support/random.ts'

test('latest: returns what was set, never more than fits, always the newest quarter', (t) => {
  const { random } = seeded(t)
  const MAX = 100
  const latest = new Latest<number>(MAX)
  const model = new Map<string, number>()
  const sizes = new Map<string, number>()
  /** The keys that were set or found, the newest last. */
  let used: string[] = []
  for (let step = 0; step < 20_000; step++) {
    const key = String(Math.floor(random() * 200))
    const use = (): void => void (used = [...used.filter((each) => each !== key), key].slice(-200))
    if (random() < 0.5) {
      const size = 1 + Math.floor(random() * 5)
      latest.set(key, step, size)
      model.set(key, step)
      sizes.set(key, size)
      use()
    } else {
      const found = latest.get(key)
      assert.ok(found === undefined || found === model.get(key))
      if (found !== undefined) use()
    }
    const last = used.at(-1)
    if (last !== undefined) assert.equal(latest.get(last), model.get(last))
  }
  for (let left = MAX / 4; left > 0; left -= sizes.get(used.pop() ?? '') ?? 0) {
    const key = used.at(-1) ?? assert.fail()
    if ((sizes.get(key) ?? 0) <= left) assert.equal(latest.get(key), model.get(key))
  }
  const found = [...model.keys()].filter((key) => latest.get(key) !== undefined)
  assert.ok(found.reduce((sum, key) => sum + (sizes.get(key) ?? 0), 0) <= MAX)
  // Its size is not off after all this.
  for (let at = 0; at < MAX; at++) latest.set(`new ${at}`, at, 1)
  for (let at = MAX - 1; at >= MAX / 2; at--) assert.equal(latest.get(`new ${at}`), at)
  assert.ok([...model.keys()].every((key) => latest.get(key) === undefined))
})
