import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import { HttpError } from '../../dist/errors.js'
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

function isOverloaded(error: unknown): boolean {
  const isRight = error instanceof HttpError && error.condition === 'overloaded'
  return isRight && error.cause === 'too many calls wait'
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

test('limiter: an owner waits in at most half of the free places', async () => {
  const { begun, running, add, end } = limited(1, 8)
  const all = [add('x'), ...Array.from({ length: 4 }, () => add('a'))]
  await assert.rejects(add('a'), isOverloaded)
  all.push(add('b'), add('b'))
  await assert.rejects(add('b'), isOverloaded)
  all.push(add('c'))
  await assert.rejects(add('c'), isOverloaded)
  await end()
  // One has begun, and has left its place.
  await assert.rejects(add('a'), isOverloaded)
  all.push(add('d'))
  while (running.length > 0) await end()
  await Promise.all(all)
  assert.equal(begun.length, all.length)
})

test('limiter: work may take several places while it waits', async () => {
  const { limiter, add, end } = limited(1, 8)
  const wide = (): Promise<void> => limiter.run('a', () => {}, 4)
  const all = [add('x'), wide()]
  await assert.rejects(add('a'), isOverloaded)
  await end()
  all.push(add('a'))
  await Promise.all(all.slice(0, 2))
  for (const _ of [1, 2]) await end()
  await Promise.all(all)
})

test('limiter: without places, what cannot run is refused', async () => {
  const { add, end } = limited(1, 0)
  const first = add('a')
  await assert.rejects(add('b'), isOverloaded)
  await end()
  await first
  const second = add('b')
  await end()
  await second
})

test('limiter: work that fails makes room', async () => {
  const { limiter, add, end } = limited(1, 100)
  const fail = (): never => {
    throw new Error('broken')
  }
  await assert.rejects(limiter.run('a', fail), /broken/)
  await assert.rejects(
    limiter.run('a', () => Promise.reject(new Error('late'))),
    /late/,
  )
  await nextTick()
  const next = add('a')
  await end()
  await next
})

test('limiter: work that fails at once leaves the rest of its tick to others', async () => {
  const { limiter } = limited(4, 1000)
  let done = 0
  const all = Array.from({ length: 100 }, () =>
    limiter.run('a', () => {
      done++
    }),
  )
  for (let before = 0; done < all.length; before = done) {
    await nextTick()
    assert.ok(done - before <= 4, `${done - before} in one tick`)
  }
  await Promise.all(all)
})
