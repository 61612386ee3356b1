import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Created } from '../../dist/plants/store.js'
import { Overloaded } from '../../dist/limits/budget.js'
import { FairQueue } from '../../dist/limits/fair-queue.js'
import { ALICE, startBare } from '../support/bare.ts'
import { post } from '../support/http.ts'
import { until } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'
import { postBytes, Wire } from '../support/wire.ts'

const KIB = 1024

/** Creates wait until they are released, as on a disk that hangs. */
function hungStore() {
  let release = (): void => {}
  const released = new Promise<void>((resolve) => (release = resolve))
  const create = async (): Promise<Created> => (await released, 'stored')
  return { store: { create }, release: () => release() }
}

const plantOf = (id: number, bytes: number) => ({ id, name: 'x'.repeat(bytes) })

for (const [what, bytes, most] of [
  ['of large bodies', 256 * KIB, 8],
  ['of the smallest bodies', 1, 128],
] as const) {
  test(`creates ${what} stay counted until they are decided, though clients leave`, async (t) => {
    const { store, release } = hungStore()
    // On a loaded machine the service may not see a reset, because it reads no more: this ends it.
    const timeouts = { inactiveMs: 2000 }
    const bare = await startBare(t, { store, bodiesMaxBytes: 4 * KIB * KIB, timeouts })
    const leave = async (id: number): Promise<boolean> => {
      const heldBefore = bare.bodies.held
      const wire = await Wire.to(bare.port)
      wire.write(postBytes(plantOf(id, bytes)))
      await until('it waits', () => bare.bodies.held > heldBefore || wire.text !== '')
      wire.socket.resetAndDestroy()
      await until('its client is gone', () => bare.connections.active === 0)
      return bare.bodies.held > heldBefore
    }
    let waiting = 0
    while (waiting < 2 * most && (await leave(waiting))) waiting++
    assert.ok(waiting > 0 && waiting <= most, `${waiting} wait`)
    assert.equal(verdict(await post(bare.port, plantOf(-1, bytes))), 'overloaded')
    release()
    await until('nothing is held', () => bare.bodies.held === 0)
    assert.equal(verdict(await post(bare.port, plantOf(-1, bytes))), 200)
  })
}

test('a body is a piece of the queue, however short; a long response is one more', async (t) => {
  const queue = new FairQueue()
  const pieces = t.mock.method(queue, 'run')
  const { port } = await startBare(t, { queue })
  assert.equal(verdict(await post(port, { id: 1, name: '' })), 200)
  assert.equal(pieces.mock.callCount(), 1)
  assert.equal(verdict(await post(port, '{')), 'bodyNotJson')
  assert.equal(pieces.mock.callCount(), 2)
  assert.equal(verdict(await post(port, plantOf(2, 17 * KIB))), 200)
  assert.equal(pieces.mock.callCount(), 4)
})

test('a create that is stored gets its response, though the queue has no room', async (t) => {
  const PIECES = 2048
  const queue = new FairQueue()
  const { store, release } = hungStore()
  const { port, bodies } = await startBare(t, { store, queue })
  const answer = post(port, plantOf(1, 20 * KIB))
  await until('it waits for the store', () => bodies.held > 30 * KIB)
  let done = 0
  const owner = ALICE.owner
  queue.run(owner, () => {
    for (const endMs = performance.now() + 5; performance.now() < endMs; );
  })
  const others = Array.from({ length: PIECES }, () => queue.run(owner, () => done++))
  await assert.rejects(async () => queue.run(owner, () => {}), Overloaded)
  release()
  assert.equal(verdict(await answer), 200)
  await Promise.all(others)
  assert.equal(done, PIECES)
})

test('a create that was answered 503 for its time stays counted until it is decided', async (t) => {
  const { store, release } = hungStore()
  const bare = await startBare(t, { store, timeouts: { inactiveMs: 100 } })
  assert.equal(verdict(await post(bare.port, plantOf(1, KIB))), 'storageUnavailable')
  assert.ok(bare.bodies.held > KIB)
  release()
  await until('nothing is held', () => bare.bodies.held === 0)
})
