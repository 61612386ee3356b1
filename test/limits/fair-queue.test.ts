import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import { Overloaded } from '../../dist/limits/budget.js'
import { FairQueue, STRANGERS } from '../../dist/limits/fair-queue.js'
import { stopClock } from '../support/time.ts'

const TICK_MS = 1

/** Only work moves its clock. `add` returns how much has run then; `done` has the order. */
function stoppedQueue(t: TestContext) {
  const clock = stopClock(t)
  const queue = new FairQueue()
  const done: string[] = []
  const add = (owner: string, ms: number): number | Promise<number> =>
    queue.run(owner, () => {
      clock.pass(ms)
      return done.push(owner)
    })
  return { clock, queue, done, add }
}

test('fair queue: runs work at once, without a promise, while time is left', async (t) => {
  const { done, add } = stoppedQueue(t)
  for (const piece of [1, 2, 3, 4]) assert.equal(add('alice', 0.25), piece)
  const late = add('alice', 0)
  assert.ok(late instanceof Promise)
  assert.equal(done.length, 4)
  assert.equal(await late, 5)
})

test('fair queue: a tick ends after its budget, however much waits', async (t) => {
  const { done, add } = stoppedQueue(t)
  const all = Array.from({ length: 100 }, () => add('alice', 0.375))
  let most = 0
  for (let ticks = 0; done.length < 100; ticks++) {
    const before = done.length
    await nextTick()
    most = Math.max(most, done.length - before)
    assert.ok(ticks < 200)
  }
  assert.equal(most, Math.ceil(TICK_MS / 0.375))
  const results = all.map((_, at) => at + 1)
  assert.deepEqual(await Promise.all(all), results)
})

test('fair queue: a thousand pieces of one owner delay another owner by one', async (t) => {
  const { done, add } = stoppedQueue(t)
  const all = Array.from({ length: 1000 }, () => add('alice', 15))
  const before = done.length
  for (const owner of ['bob', 'carol', 'bob']) all.push(add(owner, 15))
  await Promise.all(all)
  assert.deepEqual(done.slice(before, before + 5), ['alice', 'bob', 'carol', 'alice', 'bob'])
  assert.equal(done.length, 1003)
})

test('fair queue: while strangers wait, half of the time is theirs', async (t) => {
  const { done, add } = stoppedQueue(t)
  const all = [add('first', 15)]
  for (const owner of ['alice', 'bob', 'carol', 'dave']) all.push(add(owner, 15))
  for (const _ of [1, 2, 3]) all.push(add(STRANGERS, 15))
  await Promise.all(all)
  const order = ['first', STRANGERS, 'alice', STRANGERS, 'bob', STRANGERS, 'carol', 'dave']
  assert.deepEqual(done, order)
  // However long their pieces are.
  await nextTick()
  done.length = 0
  const long = [1, 2, 3].map(() => add(STRANGERS, 40))
  const short = Array.from({ length: 30 }, () => add('alice', 4))
  await Promise.all([...long, ...short])
  const before = done.slice(0, done.lastIndexOf(STRANGERS))
  // The first one has run at once.
  assert.equal(before.filter((owner) => owner === 'alice').length, 10)
  // Without owners they follow each other.
  done.length = 0
  await Promise.all([1, 2, 3].map(() => add(STRANGERS, 15)))
  assert.deepEqual(done, [STRANGERS, STRANGERS, STRANGERS])
})

test('fair queue: an error reaches only the caller of its work', async (t) => {
  const { clock, queue, add } = stoppedQueue(t)
  const fail = (): never => {
    clock.pass(TICK_MS)
    throw new Error('broken')
  }
  assert.throws(() => queue.run('alice', fail), /broken/)
  const failing = queue.run('alice', fail)
  const good = add('alice', 0)
  await assert.rejects(Promise.resolve(failing), /broken/)
  assert.equal(await good, 1)
  await nextTick()
  assert.equal(add('alice', 0), 2)
})

test('fair queue: an owner has half of the free places, and the others go on', async () => {
  const queue = new FairQueue()
  const spin = (): void => {
    const end = performance.now() + 5
    while (performance.now() < end);
  }
  queue.run('alice', spin)
  let done = 0
  const pieces = Array.from({ length: 2048 }, () => queue.run('alice', () => done++))
  const refused = { constructor: Overloaded, message: 'too much work waits' }
  await assert.rejects(async () => queue.run('alice', () => done++), refused)
  // What takes no place is never refused.
  const counted = queue.run('alice', () => done++, 0)
  assert.equal(await queue.run('bob', () => 'his turn'), 'his turn')
  await counted
  await Promise.all(pieces)
  await queue.run('alice', () => done++)
  assert.equal(done, pieces.length + 2)
})

test('fair queue: what follows from a millisecond of pieces precedes the next one', async (t) => {
  const { done, add } = stoppedQueue(t)
  const all = [add('alice', 3), add('alice', 1), add('alice', 1)]
  const follows = async (): Promise<void> => {
    await add('bob', 1)
    for (let step = 0; step < 9; step++) await undefined
    done.push('what follows')
  }
  await Promise.all([...all, follows()])
  assert.deepEqual(done, ['alice', 'alice', 'bob', 'what follows', 'alice'])
})

test('fair queue: small pieces of work set no timer', (t) => {
  const { add } = stoppedQueue(t)
  const timers = t.mock.method(globalThis, 'setImmediate')
  for (let piece = 0; piece < 9; piece++) add('alice', 0.1)
  assert.equal(timers.mock.callCount(), 0)
})

test('fair queue: arriving connections delay work by 10 ms at most', async (t) => {
  const { clock, queue, done, add } = stoppedQueue(t)
  const all = Array.from({ length: 5 }, () => add('alice', 15))
  assert.equal(done.length, 1)
  await nextTick()
  assert.equal(done.length, 2)
  // However long ticks are: here each takes 4 ms.
  for (const passed of [0, 4, 8, 12]) {
    queue.hasArrival = true
    await nextTick()
    assert.equal(done.length, passed < 10 ? 2 : 3, `after ${passed} ms`)
    clock.pass(4)
  }
  // No connection arrived since the last tick.
  await nextTick()
  assert.equal(done.length, 4)
  await Promise.all(all)
})
