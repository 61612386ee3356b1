import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import { FairQueue } from '../../dist/limits/fair-queue.js'
import { stopClock } from '../support/time.ts'

const BUDGET_MS = 3

test('fair queue: runs work at once, without a promise, while time is left', async (t) => {
  const clock = stopClock(t)
  const queue = new FairQueue()
  const done: number[] = []
  for (let piece = 0; piece < 4; piece++) {
    const result = queue.run('alice', () => {
      clock.pass(0.75)
      return done.push(piece)
    })
    assert.equal(result, piece + 1)
  }
  const late = queue.run('alice', () => done.push(4))
  assert.ok(late instanceof Promise)
  assert.deepEqual(done, [0, 1, 2, 3])
  assert.equal(await late, 5)
})

test('fair queue: a tick ends after its budget, however much waits', async (t) => {
  const clock = stopClock(t)
  const queue = new FairQueue()
  let done = 0
  const all = Array.from({ length: 100 }, () =>
    queue.run('alice', () => (clock.pass(1.25), done++)),
  )
  let most = 0
  for (let ticks = 0; done < 100; ticks++) {
    const before = done
    await nextTick()
    most = Math.max(most, done - before)
    assert.ok(ticks < 200)
  }
  assert.equal(most, Math.ceil(BUDGET_MS / 1.25))
  assert.deepEqual(
    await Promise.all(all),
    Array.from({ length: 100 }, (_, i) => i),
  )
})

test('fair queue: a thousand pieces of one owner delay another owner by one', async (t) => {
  const clock = stopClock(t)
  const queue = new FairQueue()
  const order: string[] = []
  const piece =
    (owner: string): (() => void) =>
    () => {
      clock.pass(15)
      order.push(owner)
    }
  const all = Array.from({ length: 1000 }, () => queue.run('alice', piece('alice')))
  const before = order.length
  all.push(
    queue.run('bob', piece('bob')),
    queue.run('carol', piece('carol')),
    queue.run('bob', piece('bob')),
  )
  await Promise.all(all)
  assert.deepEqual(order.slice(before, before + 5), ['alice', 'bob', 'carol', 'alice', 'bob'])
  assert.equal(order.length, 1003)
})

test('fair queue: an error reaches only the caller of its work', async (t) => {
  const clock = stopClock(t)
  const queue = new FairQueue()
  const fail = (): never => {
    clock.pass(BUDGET_MS)
    throw new Error('broken')
  }
  assert.throws(() => queue.run('alice', fail), /broken/)
  const failing = queue.run('alice', fail)
  const good = queue.run('alice', () => 'good')
  await assert.rejects(Promise.resolve(failing), /broken/)
  assert.equal(await good, 'good')
  await nextTick()
  assert.equal(
    queue.run('alice', () => 'again'),
    'again',
  )
})

test('fair queue: small pieces of work set no timer', (t) => {
  const clock = stopClock(t)
  const timers = t.mock.method(globalThis, 'setImmediate')
  const queue = new FairQueue()
  for (let piece = 0; piece < 9; piece++) queue.run('alice', () => clock.pass(0.1))
  assert.equal(timers.mock.callCount(), 0)
})

test('fair queue: arriving connections delay work by 10 ms at most', async (t) => {
  const clock = stopClock(t)
  const queue = new FairQueue()
  let done = 0
  const all = Array.from({ length: 5 }, () => queue.run('alice', () => (clock.pass(15), done++)))
  assert.equal(done, 1)
  // One tick resets the time that the first piece spent, the next one runs a piece.
  await nextTick()
  await nextTick()
  assert.equal(done, 2)
  for (let ms = 0; ms < 10; ms++) {
    queue.connectionArrived()
    await nextTick()
    assert.equal(done, 2, `after ${ms} ms`)
    clock.pass(1)
  }
  queue.connectionArrived()
  await nextTick()
  assert.equal(done, 3)
  // No connection arrived since the last tick.
  await nextTick()
  assert.equal(done, 4)
  await Promise.all(all)
})

test('fair queue: work that ran at once counts for the next tick', async (t) => {
  const clock = stopClock(t)
  const queue = new FairQueue()
  let done = 0
  const piece = (): number => (clock.pass(BUDGET_MS), ++done)
  queue.run('alice', piece)
  const later = queue.run('alice', piece)
  await nextTick()
  assert.equal(done, 1)
  await nextTick()
  assert.equal(done, 2)
  assert.equal(await later, 2)
})
