import assert from 'node:assert/strict'
import { cp } from 'node:fs/promises'
import { test } from 'node:test'
import type { NewPlant } from '../../../dist/plants/plant.js'
import { StoreFull } from '../../../dist/plants/store.js'
import { Metrics } from '../../../dist/telemetry/metrics.js'
import { plant, shown } from '../../contract/store.contract.ts'
import { temporaryDirectory } from '../../support/directories.ts'
import { readMetrics } from '../../support/metrics.ts'
import { Random, seeded } from '../../support/random.ts'
import { someOf } from '../../support/scale.ts'
import { list, openStore } from './fixtures.ts'

/** Written apart from the store's own SQL: pages are seldom full, and long texts have their own. */
function bytesOf(owner: string, { name, tag = '' }: NewPlant): number {
  const texts = Buffer.byteLength(owner + name + tag)
  const pages = Math.ceil(Math.max(texts - 985, 0) / 4092)
  return Math.floor((Math.min(texts, 985) * 7) / 6) + 14 + pages * 4096
}

const TEXTS = ['x', 'Ä', '木', '🌱', '\0', 'e\u0301'] as const
const OWNERS = ['alice', '木', 'o'.repeat(600)] as const

const OWNER = 'someone-42'

test('an owner has what was counted, to the byte, in whatever order and batches', async (t) => {
  const random = new Random(seeded(t).seed)
  const text = (): string => random.pick(TEXTS).repeat(random.below(random.pick([9, 3000])))
  const directory = await temporaryDirectory()
  const stored = new Map<string, string>()
  const had = new Map<string, number>()
  let overQuota = 0
  for (const maxOwnerBytes of [40_000, 80_000, 60_000, 90_000]) {
    const store = await openStore(directory, { maxOwnerBytes })
    for (let round = 0; round < 20; round++) {
      const creates = Array.from({ length: 1 + random.below(12) }, () => {
        const tag = random.chance(0.5) ? text() : undefined
        return [random.pick(OWNERS), plant(BigInt(random.below(60)), text(), tag)] as const
      })
      // Those of one owner are decided in their order.
      const outcomes = creates.map(([owner, created]) => store.create(owner, created))
      for (const [i, [owner, created]] of creates.entries()) {
        const [key, content] = [`${created.id} ${owner}`, JSON.stringify(shown(created))]
        const was = stored.get(key)
        const bytes = (had.get(owner) ?? 0) + bytesOf(owner, created)
        const isOver = bytes > maxOwnerBytes
        const fresh = isOver ? 'overQuota' : 'stored'
        const expected = was === undefined ? fresh : was === content ? 'stored' : 'conflict'
        assert.equal(await outcomes[i], expected, `${owner} ${created.id} at ${bytes}`)
        if (was !== undefined) continue
        if (isOver) overQuota += 1
        else [stored.set(key, content), had.set(owner, bytes)]
      }
    }
    await store.close()
  }
  assert.ok(overQuota > 20, `${overQuota}`)
})

test('a lower limit removes nothing, and a higher one makes room, also after a kill', async () => {
  const [directory, killed] = [await temporaryDirectory(), await temporaryDirectory()]
  const all = [1n, 2n, 3n].map((id) => plant(id))
  const maxOwnerBytes = all.reduce((sum, each) => sum + bytesOf('alice', each), 0)
  const first = await openStore(directory, { maxOwnerBytes })
  for (const each of all) assert.equal(await first.create('alice', each), 'stored')
  await cp(directory, killed, { recursive: true, filter: (path) => !path.includes('lock-') })
  await first.close()
  for (const path of [directory, killed]) {
    for (const lower of [maxOwnerBytes, 1]) {
      const store = await openStore(path, { maxOwnerBytes: lower })
      assert.equal(await store.create('alice', plant(4n)), 'overQuota')
      assert.equal(await store.create('alice', plant(3n)), 'stored')
      assert.equal(await store.create('alice', plant(3n, 'other')), 'conflict')
      const bob = store.create('bob', plant(BigInt(lower)))
      assert.equal(await bob, lower === 1 ? 'overQuota' : 'stored')
      assert.equal((await list(store)).length, 3)
      await store.close()
    }
    const higher = maxOwnerBytes + bytesOf('alice', plant(4n))
    const store = await openStore(path, { maxOwnerBytes: higher })
    assert.equal(await store.create('alice', plant(4n)), 'stored')
    assert.equal(await store.create('alice', plant(5n)), 'overQuota')
    await store.close()
    const unlimited = await openStore(path)
    assert.equal(await unlimited.create('alice', plant(5n)), 'stored')
    await unlimited.close()
  }
})

test('an owner above the limit is told so also by a store that is full', async () => {
  const options = { maxDataBytes: 65_536, maxOwnerBytes: 100_000 }
  const store = await openStore(await temporaryDirectory(), options)
  const long = 'x'.repeat(30_000)
  assert.equal(await store.create('alice', plant(1n, long)), 'stored')
  await assert.rejects(store.create('alice', plant(2n, long)), StoreFull)
  assert.equal(await store.create('alice', plant(3n, 'x'.repeat(90_000))), 'overQuota')
  await store.close()
})

for (const order of ['ascending', 'random']) {
  test(`what is counted is the data within about a fifth: ids are ${order}`, async (t) => {
    const random = new Random(seeded(t).seed)
    const lengths = [0, 10, 100, 300, 600, 800, 1500, 3000, 5000, 20_000]
    for (const length of someOf(() => random.next(), lengths, 5)) {
      const metrics = new Metrics()
      const dataBytes = (): number => readMetrics(metrics.render()).value('plant_store_data_bytes')
      const store = await openStore(await temporaryDirectory(), { metrics })
      const [before, name] = [dataBytes(), 'x'.repeat(length)]
      const count = Math.ceil(3_000_000 / (length + 1000))
      const creates = Array.from({ length: count }, (_, id) =>
        store.create(OWNER, plant(BigInt(order === 'random' ? random.below(2 ** 50) : id), name)),
      )
      await Promise.all(creates)
      const ratio = (count * bytesOf(OWNER, plant(0n, name))) / (dataBytes() - before)
      // At 800 bytes it is 0.79, give or take how pages split.
      assert.ok(ratio > 0.76 && ratio < 1.22, `${length}: ${ratio}`)
      await store.close()
    }
  })
}
