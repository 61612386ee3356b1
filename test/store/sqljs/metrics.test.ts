import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import { Metrics } from '../../../dist/telemetry/metrics.js'
import { compact } from '../../../dist/store/sqljs/compaction.js'
import { nodeFiles } from '../../../dist/store/sqljs/files.js'
import { SqljsStore, type SqljsStoreOptions } from '../../../dist/store/sqljs/store.js'
import { readMetrics } from '../../support/metrics.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { stopClock } from '../../support/time.ts'
import { silent } from '../../support/log.ts'
import { firstSnapshotOnly } from './fixtures.ts'

async function open(options: Partial<SqljsStoreOptions> = {}) {
  const metrics = new Metrics()
  const fail = (error: unknown) => {
    throw error
  }
  const store = await SqljsStore.open({
    directory: join(await temporaryDirectory(), 'data'),
    maxDataBytes: 2 ** 30,
    log: silent,
    onFatal: fail,
    metrics,
    compact: (job) => compact(nodeFiles, job),
    ...options,
  })
  return { store, scrape: () => readMetrics(metrics.render()) }
}

const compactions = (result: string) => `plant_store_compactions_total{result="${result}"}`

test('metrics: compactions count by result, and shorten the journals', async () => {
  let broken = true
  const { store, scrape } = await open({
    compactBytes: 1000,
    compactShare: 0,
    retryMs: { write: 10, compaction: 10 },
    compact: (job) => (broken ? firstSnapshotOnly(job) : compact(nodeFiles, job)),
  })
  for (let id = 0n; id < 40n; id++)
    await store.create('alice', { id, name: 'a name of some length' })
  while (scrape().value(compactions('failure')) < 2)
    await new Promise((resolve) => setTimeout(resolve, 5))
  assert.equal(scrape().value(compactions('success')), 0)
  const before = scrape().value('plant_store_journal_bytes')
  broken = false
  while (scrape().value(compactions('success')) === 0)
    await new Promise((resolve) => setTimeout(resolve, 5))
  assert.ok(scrape().value('plant_store_journal_bytes') < before)
  assert.equal(scrape().value('plant_store_plants'), 40)
  await store.close()
  assert.deepEqual(scrape().all('plant_store_data_bytes'), [], 'a closed store has no size')
})

test('metrics: a plant is counted when it is durable', async () => {
  let hold = Promise.resolve()
  const { store, scrape } = await open({
    files: {
      ...nodeFiles,
      async open(path, mode) {
        const file = await nodeFiles.open(path, mode)
        return { ...file, write: (bytes, at) => hold.then(() => file.write(bytes, at)) }
      },
    },
  })
  await store.create('alice', { id: 1n, name: 'Fern' })
  let release = (): void => {}
  hold = new Promise((resolve) => (release = resolve))
  const creating = store.create('alice', { id: 2n, name: 'Fern' })
  for (let ticks = 0; ticks < 20; ticks++) await nextTick()
  assert.equal(scrape().value('plant_store_plants'), 1)
  release()
  await creating
  assert.equal(scrape().value('plant_store_plants'), 2)
  await store.close()
})

test('metrics: plants that share a sync are one batch', async (t) => {
  const { store, scrape } = await open()
  // On a loaded machine the time for deciding would end a batch.
  const clock = stopClock(t)
  await Promise.all(
    Array.from({ length: 30 }, (_, id) => store.create('alice', { id: BigInt(id), name: 'Fern' })),
  )
  await Promise.all(['same', 'other'].map((name) => store.create('alice', { id: 100n, name })))
  const { value } = scrape()
  assert.equal(value('plant_store_group_plants_sum'), 31)
  assert.equal(value('plant_store_group_plants_count'), 2)
  assert.equal(value('plant_store_group_plants_bucket{le="20"}'), 1)
  assert.equal(value('plant_store_group_plants_bucket{le="50"}'), 2)
  assert.equal(value('plant_store_sync_seconds_count'), 2)
  clock.restore()
  await store.close()
})
