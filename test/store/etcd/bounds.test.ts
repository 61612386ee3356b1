import assert from 'node:assert/strict'
import type { ServerResponse } from 'node:http'
import { test, type TestContext } from 'node:test'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { ask, createAgent } from '../../../dist/store/etcd/gateway.js'
import { ALL, readAll } from '../../contract/store.contract.ts'
import { fakeEtcd, HEADER, kv, ok } from '../../support/etcd-fake.ts'
import { configOf, hasty, hurry, namesIn, NO_TLS, openStore } from '../../support/etcd-store.ts'
import { seeded } from '../../support/random.ts'
import { someOf } from '../../support/scale.ts'
import { serving } from '../../support/serving.ts'
import { PATIENCE_MS, stopClock, until } from '../../support/time.ts'

const RUNNING_MAX = 64
const ANSWERS = 32
const MAX_BYTES = 4 * 1024 * 1024
const ONE_PLANT_MAX_BYTES = 8 * MAX_BYTES
/** A busy machine may take seconds to write a long answer. */
const TIMING = hasty(60_000)

/** `kvs` of an answer: alice's plants from an id on, each with this name. */
function kvs(first: number, count: number, name: string): readonly object[] {
  return Array.from({ length: count }, (_, i) =>
    kv((2n ** 63n + BigInt(first + i)).toString(16), { name }),
  )
}

test('64 calls run at once; the probe of readiness needs no place', async (t) => {
  hurry(t)
  const { endpoint, asked, probes } = await fakeEtcd(t)
  const store = await openStore(t, { ...configOf([endpoint]), ...TIMING })
  const before = probes.length
  const lists = Array.from({ length: 2 * RUNNING_MAX }, (_, i) =>
    readAll(store.list(`owner ${i}`, ALL)),
  )
  const ended = Promise.allSettled(lists)
  await until('readiness is probed', () => probes.length > before + 1)
  const running = asked.map(({ body }) => body.split('range_end').length - 1)
  assert.equal(
    running.reduce((sum, count) => sum + count),
    RUNNING_MAX,
  )
  assert.equal(store.unavailableReason(), undefined)
  await store.close()
  assert.ok((await ended).every(({ status }) => status === 'rejected'))
})

test('answers of etcd that take 3 ms to read are not read in one tick', async (t) => {
  const text = JSON.stringify({ header: HEADER })
  const waiting: ServerResponse[] = []
  // All at once, so that one tick could read many.
  const origin = await serving(t, (_, res) => {
    if (waiting.push(res) === ANSWERS) for (const each of waiting) each.end(text)
  })
  const agent = createAgent(false, NO_TLS)
  t.after(() => agent.destroy())
  const clock = stopClock(t)
  const { parse } = JSON
  t.mock.method(JSON, 'parse', (each: string) => (clock.pass(3), parse(each)))
  let tick = 0
  let isCounting = true
  const count = (): void => {
    tick += 1
    if (isCounting) setImmediate(count)
  }
  setImmediate(count)
  const limits = { timeoutMs: PATIENCE_MS, maxBytes: Infinity }
  const attempt = { agent, origin, path: '/x', message: {}, token: '', ...limits }
  const answers = Array.from({ length: ANSWERS }, () => ask(attempt).then(() => tick))
  const ticks = await Promise.all(answers)
  isCounting = false
  assert.equal(new Set(ticks).size, ticks.length)
})

/** A store over this many plants of alice, each with a name of this length. */
async function storeOf(t: TestContext, count: number, nameChars: number) {
  const limits: number[] = []
  const { endpoint } = await fakeEtcd(t, ({ body }) => {
    // The store's own requests.
    const { key, limit } = JSON.parse(body) as { readonly key: string; readonly limit: string }
    const [, digits] = /\/([0-9a-f]{16})/.exec(Buffer.from(key, 'base64').toString()) ?? []
    const from = digits === undefined ? 0 : Number(BigInt(`0x${digits}`) - 2n ** 63n) + 1
    limits.push(Number(limit))
    const entries = kvs(from, Math.min(Number(limit), count - from), 'x'.repeat(nameChars))
    return ok({ kvs: entries, more: from + entries.length < count, count: String(count - from) })
  })
  return { limits, store: await openStore(t, { ...configOf([endpoint]), ...TIMING }) }
}

test('ranges aim at 512 KiB, also of tiny plants', async (t) => {
  const { limits, store } = await storeOf(t, 12_000, 0)
  assert.equal((await namesIn(store)).length, 12_000)
  assert.deepEqual(limits.slice(0, 3), [32, 128, 512])
  const largest = JSON.stringify(kvs(0, Math.max(...limits), '')).length
  assert.ok(largest > 400_000 && largest < 600_000, `${largest}`)
})

test('an answer above 4 MiB is asked for again with fewer plants', async (t) => {
  // 32 of them are longer, 4 are not.
  const { limits, store } = await storeOf(t, 6, 700_000)
  assert.equal((await namesIn(store)).length, 6)
  assert.deepEqual(limits, [32, 4, 1, 1])
})

test('a list is an answer of 4 MiB, or one plant of 32 MiB, and not a byte more', async (t) => {
  const cases = [
    [MAX_BYTES, 1, true],
    [MAX_BYTES + 1, 3, true],
    [ONE_PLANT_MAX_BYTES, 3, true],
    [ONE_PLANT_MAX_BYTES + 1, 3, false],
  ] as const
  for (const [bytes, asks, isListed] of someOf(seeded(t).random, cases, 4)) {
    // Valid with any spaces.
    const text = JSON.stringify({ header: HEADER }).padEnd(bytes)
    const { endpoint, asked } = await fakeEtcd(t, () => [200, text])
    const list = namesIn(await openStore(t, { ...configOf([endpoint]), ...TIMING }))
    if (isListed) assert.deepEqual(await list, [], `${bytes} bytes`)
    else await assert.rejects(list, StoreUnavailable)
    assert.equal(asked.length, asks, `${bytes} bytes`)
  }
})

test('a close does not wait for the pages of lists that are being opened', async (t) => {
  let pages = 0
  // The page has no end.
  const { endpoint } = await fakeEtcd(t, () =>
    ok({ kvs: kvs(32 * pages++, 32, ''), more: true, count: '9999999999' }),
  )
  const store = await openStore(t, configOf([endpoint]))
  const list = readAll(store.list('alice', { ...ALL, limit: 2 ** 31 - 1 }))
  const refused = assert.rejects(list, StoreUnavailable)
  await until('pages are read', () => pages > 4)
  await store.close()
  await refused
})
