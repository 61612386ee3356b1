import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import { Metrics } from '../../../dist/telemetry/metrics.js'
import { compact } from '../../../dist/store/sqljs/compaction.js'
import { nodeFiles } from '../../../dist/store/sqljs/disk/files.js'
import type { SqljsStoreOptions } from '../../../dist/store/sqljs/sqljs-store.js'
import { Gate, plant } from '../../contract/store.contract.ts'
import { readMetrics } from '../../support/metrics.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { stopClock, until } from '../../support/time.ts'
import { filesWith, notNow, openStore, plantsTo } from './fixtures.ts'

async function open(options: Partial<SqljsStoreOptions> = {}) {
  const metrics = new Metrics()
  const store = await openStore(await temporaryDirectory(), { metrics, ...options })
  return { store, scrape: () => readMetrics(metrics.render()) }
}

const compactions = (result: string) => `plant_store_compactions_total{result="${result}"}`

test('metrics: compactions count by result, and shorten the journals', async () => {
  let broken = true
  const { store, scrape } = await open({
    compactBytes: 1,
    retryMs: 10,
    compact: (job) => (broken ? notNow(job) : compact(nodeFiles, job)),
  })
  for (const each of plantsTo(3n)) await store.create('alice', each)
  const failures = () => scrape().value(compactions('failure'))
  await until('it has failed twice', () => failures() >= 2)
  assert.equal(scrape().value(compactions('success')), 0)
  const before = scrape().value('plant_store_journal_bytes')
  broken = false
  await until('it succeeds', () => scrape().value(compactions('success')) > 0)
  assert.ok(scrape().value('plant_store_journal_bytes') < before)
  assert.equal(scrape().value('plant_store_plants'), 3)
  await store.close()
  assert.deepEqual(scrape().all('plant_store_data_bytes'), [], 'a closed store has no size')
})

test('metrics: a plant is counted when it is durable', async () => {
  const gate = new Gate()
  const { store, scrape } = await open({
    files: filesWith((file) => ({
      write: async (bytes, at) => (await gate.passed, file.write(bytes, at)),
    })),
  })
  await store.create('alice', plant(1n))
  gate.hold()
  const creating = store.create('alice', plant(2n))
  for (let ticks = 0; ticks < 20; ticks++) await nextTick()
  assert.equal(scrape().value('plant_store_plants'), 1)
  gate.release()
  await creating
  assert.equal(scrape().value('plant_store_plants'), 2)
  await store.close()
})

test('metrics: plants that share a sync are one batch', async (t) => {
  const { store, scrape } = await open()
  // On a loaded machine the time for deciding would end a batch.
  const clock = stopClock(t)
  await Promise.all(plantsTo(30n).map((each) => store.create('alice', each)))
  await Promise.all(['same', 'other'].map((name) => store.create('alice', plant(100n, name))))
  const { value } = scrape()
  assert.equal(value('plant_store_batch_plants_sum'), 31)
  assert.equal(value('plant_store_batch_plants_count'), 2)
  assert.equal(value('plant_store_batch_plants_bucket{le="20"}'), 1)
  assert.equal(value('plant_store_batch_plants_bucket{le="50"}'), 2)
  assert.equal(value('plant_store_sync_seconds_count'), 2)
  clock.restore()
  await store.close()
})
