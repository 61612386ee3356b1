import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import { PlantDatabase } from '../../../dist/store/sqljs/memory/database.js'
import type { Row } from '../../../dist/store/sqljs/disk/journal-format.js'
import type { File } from '../../../dist/store/sqljs/disk/files.js'
import { PageFile } from '../../../dist/store/sqljs/disk/page-file.js'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { plant } from '../../contract/store.contract.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { databaseOf, fileOf, sourceOf } from '../../support/store-files.ts'
import { processorMs, stopClock } from '../../support/time.ts'
import { filesWith, holds, openStore, plantsTo } from './fixtures.ts'

const DECIDE_MS = 3

/** The most that a count grows in one tick, until it is `end`. */
async function mostInATick(count: () => number, end: number): Promise<number> {
  let most = 0
  for (let ticks = 0; count() < end; ticks++) {
    const before = count()
    await nextTick()
    most = Math.max(most, count() - before)
    assert.ok(ticks < 1000)
  }
  return most
}

test('ticks: creates that take long to decide are decided over several ticks', async (t) => {
  const store = await openStore(await temporaryDirectory())
  await store.create('alice', plant(1n, 'Oak'))
  const clock = stopClock(t)
  let decided = 0
  const { existing } = PlantDatabase.prototype
  const slow = function (this: PlantDatabase, row: Row) {
    decided++
    clock.pass(2)
    return existing.call(this, row)
  }
  const mocked = t.mock.method(PlantDatabase.prototype, 'existing', slow)
  const all = Array.from({ length: 50 }, () => store.create('alice', plant(1n, 'Elm')))
  assert.equal(await mostInATick(() => decided, all.length), Math.ceil(DECIDE_MS / 2))
  assert.deepEqual(new Set(await Promise.all(all)), new Set(['conflict']))
  mocked.mock.restore()
  clock.restore()
  await store.close()
})

test('ticks: while the disk fails, creates are refused over several ticks', async () => {
  let isBroken = false
  const files = filesWith((file) => ({
    write: (bytes, at) => (isBroken ? Promise.reject(new Error('EIO')) : file.write(bytes, at)),
  }))
  const directory = await temporaryDirectory()
  const store = await openStore(directory, { files })
  await store.create('alice', plant(1n, 'Oak'))
  isBroken = true
  await assert.rejects(store.create('alice', plant(2n, 'Elm')), StoreUnavailable)
  let refused = 0
  for (const each of plantsTo(1000n)) store.create('alice', each).catch(() => refused++)
  const most = await mostInATick(() => refused, 1000)
  assert.ok(most <= 500, `${most} in one tick`)
  await store.close()
  await holds(directory, [{ name: 'Oak' }])
})

test('ticks: a batch waits for clients that were answered with the last one', async () => {
  let writes = 0
  const files = filesWith((file) => ({
    write: (bytes, at) => (writes++, file.write(bytes, at)),
  }))
  const store = await openStore(await temporaryDirectory(), { files })
  const [CLIENTS, EACH] = [20, 20]
  const before = writes
  let id = 1n
  const client = async (_: unknown, which: number): Promise<void> => {
    for (let sent = 0; sent < EACH; sent++) {
      await store.create('alice', plant(id++))
      // Each takes a few ticks to send the next one.
      for (let ticks = 0; ticks < which % 4; ticks++) await nextTick()
    }
  }
  await Promise.all(Array.from({ length: CLIENTS }, client))
  assert.ok(writes - before <= EACH + 4, `${writes - before} writes`)
  await store.close()
})

test('ticks: owners take turns in batches, and the creates of one keep their order', async () => {
  const store = await openStore(await temporaryDirectory())
  const answered: string[] = []
  // Sixteen of them fill a batch.
  const name = 'x'.repeat(2 ** 16)
  const MANY = 80
  const create = (owner: string, id: bigint, what = ''): Promise<unknown> =>
    store
      .create(owner, plant(id, name + what))
      .then((created) => answered.push(`${owner} ${id} ${what}${created}`))
  await Promise.all([
    ...Array.from({ length: MANY }, (_, i) => create('alice', BigInt(MANY - i))),
    create('alice', 100n, 'first '),
    create('alice', 100n, 'second '),
    create('bob', 2n),
    create('bob', 1n),
    create('carol', 1n),
  ])
  await store.close()
  const of = (owner: string): string[] => answered.filter((each) => each.startsWith(owner))
  assert.deepEqual(of('alice'), [
    ...Array.from({ length: MANY }, (_, i) => `alice ${MANY - i} stored`),
    'alice 100 first stored',
    'alice 100 second conflict',
  ])
  const others = ['alice 80 stored', 'bob 2 stored', 'carol 1 stored', 'alice 79 stored']
  assert.deepEqual(answered.slice(0, 4), others)
  assert.ok(answered.indexOf('bob 1 stored') < 6, String(answered))
})

test('ticks: a small create against a plant of 1 MiB costs little', async () => {
  const store = await openStore(await temporaryDirectory())
  const large = 'x'.repeat(2 ** 20)
  await store.create('alice', plant(1n, large))
  await store.create('alice', plant(2n, 'Oak'))
  const cost = (id: bigint): Promise<number> =>
    processorMs(async () => {
      for (let i = 0; i < 200; i++)
        assert.equal(await store.create('alice', plant(id, 'Elm')), 'conflict')
    })
  await cost(2n)
  const [ofLarge, ofSmall] = [await cost(1n), await cost(2n)]
  // In JavaScript it was 6.9 ms each, 1,380 in all.
  assert.ok(ofLarge < ofSmall + 500, `${ofLarge} and ${ofSmall} ms`)
  assert.equal(await store.create('alice', plant(1n, large)), 'stored')
  assert.equal(await store.create('alice', plant(1n, `${large.slice(1)}y`)), 'conflict')
  await store.close()
})

test('ticks: a start copies a snapshot in pieces, and other work runs between', async (t) => {
  const plants = 2
  const name = (id: number): string => `${id} ${'x'.repeat(2 ** 20)}`
  const rows = Array.from({ length: plants }, (_, id): Row => ['alice', String(id), name(id)])
  const bytes = await databaseOf(rows)
  const file = await fileOf(bytes)
  const clock = stopClock(t)
  const readNow: File['readNow'] = (into, at) => {
    clock.pass(4)
    return file.readNow(into, at)
  }
  const pages = new PageFile('a.sqlite', { ...file, readNow }, bytes.length)
  const opening = PlantDatabase.serving({ ...(await sourceOf(bytes)), pages })
  let isOpen = false
  void opening.finally(() => (isOpen = true))
  let ticks = 0
  for (; !isOpen; ticks++) await nextTick()
  // It takes half a second, and yields each 50 ms.
  assert.ok(ticks >= 5, `${ticks} ticks`)
  const served = await opening
  assert.equal(served.count, plants)
  for (const id of [0, plants - 1])
    assert.equal(served.existing(['alice', String(id), name(id)]), 'same')
  served.close()
})
