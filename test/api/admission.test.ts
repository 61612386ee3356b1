import assert from 'node:assert/strict'
import { test } from 'node:test'
import { OPERATIONS } from '../../dist/api/operations.js'
import { FairQueue } from '../../dist/limits/fair-queue.js'
import type { PlantStore } from '../../dist/plants/store.js'
import { ALICE, listOf, startBare } from '../support/bare.ts'
import { until } from '../support/time.ts'
import { firstAnswer, head, postBytes, Wire } from '../support/wire.ts'

/** Each takes longer than one tick has time for, and all together long enough for a request. */
const PIECES = 200
const PIECE_MS = 4
/** Too long to be parsed without waiting for a turn. */
const LONG_NAME = 'x'.repeat(20_000)

/** A queue where alice's work waits until it is released. */
function busyQueue() {
  const queue = new FairQueue()
  const work = { left: PIECES, released: false }
  const piece = (): void => {
    const end = performance.now() + (work.released ? 0 : PIECE_MS)
    while (performance.now() < end);
    work.left -= 1
  }
  for (let n = 0; n < PIECES; n++) void queue.run('alice', piece)
  return { queue, work }
}

const authenticate = (owner: string) => ({ ...ALICE, owner })

for (const { name, method, path } of OPERATIONS) {
  const target = path.replace(/\{\w+\}/g, '1')
  const requestOf = (owner: string): string =>
    method === 'POST'
      ? postBytes({ id: 1, name: LONG_NAME }, { target, token: owner })
      : head(method, target, { token: owner })

  test(`admission: ${name} waits for one piece of another owner, not for all`, async (t) => {
    const { queue, work } = busyQueue()
    const { port } = await startBare(t, { authenticate, queue })
    const answer = await firstAnswer(port, requestOf('bob'))
    assert.ok(answer.status < 500, String(answer.status))
    assert.ok(work.left > 0)
    work.released = true
  })

  test(`admission: ${name} does nothing for a client that left while it waited`, async (t) => {
    const asked: string[] = []
    const store: Partial<PlantStore> = {
      create() {
        asked.push('create')
        return Promise.resolve('stored')
      },
      list() {
        asked.push('list')
        return listOf([[]])
      },
    }
    const { queue, work } = busyQueue()
    const { port, answered, connections } = await startBare(t, { authenticate, store, queue })
    const wire = (await Wire.to(port)).write(requestOf('alice'))
    await until('the request waits', () => connections.active === 1)
    // A client that only ends its side may still read.
    wire.socket.resetAndDestroy()
    await until('the client has left', () => connections.sockets.length === 0)
    assert.ok(work.left > 0)
    work.released = true
    await until('it is logged', () => answered.length === 1)
    assert.deepEqual(answered, [`${method} 499 aborted`])
    assert.deepEqual(asked, [])
  })
}
