import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import { Limiter } from '../../dist/limits/limiter.js'

/** Work that runs until `end` ends the oldest. */
function limited(maxRunning: number, places: number) {
  const limiter = new Limiter('calls', maxRunning, places)
  const running: (() => void)[] = []
  const begun: string[] = []
  const add = (owner: string): Promise<void> =>
    limiter.run(owner, () => {
      begun.push(owner)
      return new Promise((resolve) => running.push(resolve))
    })
  const end = async (): Promise<void> => {
    running.shift()?.()
    // One for the work to end, and one for what follows it to begin.
    await nextTick()
    await nextTick()
  }
  return { limiter, begun, running, add, end }
}

test('limiter: runs so much at once, then owners in turn', async () => {
  const { begun, running, add, end } = limited(2, 100)
  const all = ['a', 'a', 'a', 'a', 'b', 'b', 'c'].map(add)
  await nextTick()
  assert.deepEqual(begun, ['a', 'a'])
  while (running.length > 0) {
    assert.ok(running.length <= 2)
    await end()
  }
  await Promise.all(all)
  assert.deepEqual(begun, ['a', 'a', 'a', 'b', 'c', 'a', 'b'])
})

test('limiter: what comes when room is free does not pass what waits', async () => {
  const { begun, running, add, end } = limited(1, 100)
  const all = ['a', 'b'].map(add)
  running.shift()?.()
  await all[0]
  all.push(add('c'))
  await nextTick()
  assert.deepEqual(begun, ['a', 'b'])
  await end()
  await end()
  await Promise.all(all)
  assert.deepEqual(begun, ['a', 'b', 'c'])
})

test('limiter: work that fails makes room', async () => {
  const { limiter, add, end } = limited(1, 100)
  const fail = (): never => {
    throw new Error('broken')
  }
  await assert.rejects(limiter.run('a', fail), /broken/)
  await assert.rejects(
    limiter.run('a', async () => fail()),
    /broken/,
  )
  await nextTick()
  const next = add('a')
  await end()
  await next
})
