import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import type { NewPlant } from '../../../dist/plants/plant.js'
import { EtcdRefusal } from '../../../dist/store/etcd/gateway.js'
import { type Put, sharedPuts } from '../../../dist/store/etcd/puts.js'
import type { EtcdStore } from '../../../dist/store/etcd/etcd-store.js'
import { type EtcdResponse, putRequest } from '../../../dist/store/etcd/wire.js'
import { Gate, plant } from '../../contract/store.contract.ts'
import { NO_ETCD } from '../../support/etcd.ts'
import { fakeEtcd, HEADER, keysPut, PUT } from '../../support/etcd-fake.ts'
import { configOf, configured, hasty, namesIn, openStore } from '../../support/etcd-store.ts'
import { outcomes, proxyTo, testUnless } from '../../support/etcd-store.ts'
import { until } from '../../support/time.ts'

const testEtcd = testUnless(NO_ETCD)
const RUNNING_MAX = 64
const SHARED_MAX = 128
const SHARED_MAX_BYTES = 2 ** 20
const WAITING_MAX = 4096

function plants(from: number, count: number): readonly NewPlant[] {
  return Array.from({ length: count }, (_, i) => plant(BigInt(from + i)))
}

/** Creates all in one tick. */
function createAll(store: EtcdStore, all: readonly NewPlant[], owner = 'alice') {
  return outcomes(all.map((each) => store.create(owner, each)))
}

/** How often each outcome is there. */
function tally(all: readonly string[]): Readonly<Record<string, number>> {
  const counts: Record<string, number> = {}
  for (const each of all) counts[each] = (counts[each] ?? 0) + 1
  return counts
}

type Outcome = EtcdResponse | Error | Promise<EtcdResponse>
type Transact = (keys: readonly string[], at: number) => Outcome

/** Puts without a cluster: each transaction is answered by the function. */
function shared(answer: Transact) {
  const sent: (readonly Put[])[] = []
  const put = sharedPuts(async (batch) => {
    sent.push(batch)
    const keys = batch.map(({ key }) => key)
    const answered = await answer(keys, sent.length - 1)
    if (answered instanceof Error) throw answered
    return answered
  })
  const putAll = (keys: readonly string[], value = 'v'): Promise<readonly string[]> =>
    outcomes(keys.map((key) => put({ key, value, deadline: 1 })))
  return { sent, sizes: () => sent.map(({ length }) => length), putAll }
}

const ALL_STORED: EtcdResponse = { succeeded: true }

test('puts of one tick share transactions of at most 128 plants', async () => {
  const { sizes, putAll } = shared(() => ALL_STORED)
  const stored = await putAll(Array.from({ length: 300 }, (_, i) => `key ${i}`))
  assert.deepEqual(tally(stored), { stored: 300 })
  assert.deepEqual(sizes(), [SHARED_MAX, SHARED_MAX, 300 - 2 * SHARED_MAX])
})

for (const [count, keyChars, valueChars] of [
  [100, 16, 0],
  [100, 16, 10_400],
  [10, 16, 400_000],
  [3, 16, 2_000_000],
  [100, 16_000, 100],
] as const) {
  test(`a transaction has at most 1 MiB: key ${keyChars}, value ${valueChars}`, async () => {
    const { sent, putAll } = shared(() => ALL_STORED)
    const keys = Array.from({ length: count }, (_, i) => String(i).padStart(keyChars, '0'))
    await putAll(keys, 'x'.repeat(valueChars))
    const bytes = sent.map((batch) => JSON.stringify(putRequest(batch).message).length)
    for (const [at, batch] of sent.entries())
      assert.ok(batch.length === 1 || (bytes[at] ?? Infinity) <= SHARED_MAX_BYTES)
    // Two that follow each other do not fit together.
    for (const [at, length] of bytes.slice(1).entries())
      assert.ok((bytes[at] ?? 0) + length > 0.98 * SHARED_MAX_BYTES)
  })
}

test('puts that come while a transaction runs share the next one', async () => {
  const gate = new Gate()
  const { sent, sizes, putAll } = shared(async () => {
    await gate.passed
    return ALL_STORED
  })
  const release = gate.hold()
  const all = [putAll(['a'])]
  await until('it runs', () => sent.length === 1)
  for (const key of 'bc') {
    all.push(putAll([key]))
    await nextTick()
  }
  assert.deepEqual(sizes(), [1])
  release()
  assert.deepEqual(tally((await Promise.all(all)).flat()), { stored: 3 })
  // Nothing runs any more.
  assert.deepEqual(await putAll(['d']), ['stored'])
  assert.deepEqual(sizes(), [1, 2, 1])
})

/** None is put. The gateway leaves out a count of 0. */
function counted(keys: readonly string[], there = ''): EtcdResponse {
  const ranges = keys.map((key) => ({ header: HEADER, ...(there.includes(key) && { count: '1' }) }))
  return { responses: ranges.map((response_range) => ({ response_range })) }
}

/** Answers of etcd: the letters are the keys that exist at each transaction. */
function existing(...keys: readonly string[]): Transact {
  return (sent, at) => {
    const there = keys[at] ?? keys.at(-1) ?? ''
    return sent.some((key) => there.includes(key)) ? counted(sent, there) : ALL_STORED
  }
}

const refuses: Transact = (keys) => (keys.includes('b') ? new EtcdRefusal('no') : ALL_STORED)
const neither: Transact = (keys) => counted(keys)
/** What becomes of each: stored, taken, or an error. */
const rows: readonly (readonly [string, string, Transact, outcomes: string, sent: string])[] = [
  ['a key is in it once; its repeats go alone', 'abaca', existing('', 'abc'), 'sstst', 'abc a a'],
  ['if a key exists, the free ones share one more', 'abcd', existing('bd'), 'stst', 'abcd ac'],
  ['if one more exists, each goes alone', 'abcd', existing('b', 'ab'), 'ttss', 'abcd acd c d'],
  ['if it is refused, each goes alone', 'abc', refuses, 'ses', 'abc a b c'],
  ['without an answer all of its plants are open', 'aba', () => new Error(), 'eee', 'ab a'],
  ['no answer makes a put run for ever', 'ab', neither, 'tt', 'ab ab a b'],
]
for (const [what, keys, answer, decided, sent] of rows) {
  test(`a transaction: ${what}`, async () => {
    const puts = shared(answer)
    const all = await puts.putAll([...keys])
    assert.equal(all.map((each) => each.at(0)?.toLowerCase()).join(''), decided)
    const keysSent = puts.sent.map((batch) => batch.map(({ key }) => key).join(''))
    assert.equal(keysSent.join(' '), sent)
  })
}

testEtcd('a cut connection leaves all calls open, and repeating them is safe', async (t) => {
  const config = await configured()
  const proxy = await proxyTo(t, config)
  const etcd = { ...config, endpoints: [proxy.endpoint] }
  const impatient = await openStore(t, { ...etcd, ...hasty(200) })
  const patient = await openStore(t, etcd)
  const all = plants(0, 20)
  const listAll = (store: EtcdStore) =>
    outcomes(all.map(async () => String((await namesIn(store)).length)))
  for (const mode of ['drop-answers', 'refuse', 'hang'] as const) {
    proxy.mode = mode
    assert.deepEqual(tally(await createAll(impatient, all)), { StoreUnavailable: 20 }, mode)
    assert.deepEqual(tally(await listAll(impatient)), { StoreUnavailable: 20 }, mode)
  }
  proxy.mode = 'pass'
  assert.deepEqual(tally(await createAll(patient, all)), { stored: 20 })
  const others = all.map(({ id }) => plant(id, 'other'))
  assert.deepEqual(tally(await createAll(patient, others)), { conflict: 20 })
  assert.deepEqual(tally(await listAll(patient)), { 20: 20 })
})

test('2,048 creates of an owner may wait; one more is refused, and others go on', async (t) => {
  const gate = new Gate()
  const { endpoint, asked } = await fakeEtcd(t, async () => {
    await gate.passed
    return PUT
  })
  const store = await openStore(t, configOf([endpoint]))
  gate.hold()
  const running = createAll(store, plants(-RUNNING_MAX, RUNNING_MAX), 'mallory')
  await until('all run', () => asked.length === 1)
  const crowd = createAll(store, plants(0, WAITING_MAX / 2 + 100), 'mallory')
  const bob = store.create('bob', plant(1n))
  gate.release()
  assert.deepEqual(tally(await running), { stored: RUNNING_MAX })
  assert.deepEqual(tally(await crowd), { stored: WAITING_MAX / 2, Overloaded: 100 })
  assert.equal(await bob, 'stored')
  // Owners take turns, so bob is in the first transaction of what waited.
  const [, second] = asked
  assert.ok(second && keysPut(second).some((key) => key.includes('Ym9i')))
})

test('a create that waits for a place has its answer within the time of a call', async (t) => {
  const { endpoint } = await fakeEtcd(t)
  const timing = { attemptMs: 200, callMs: 600 }
  const store = await openStore(t, { ...configOf([endpoint]), timing })
  const startedAt = performance.now()
  const creates = createAll(store, plants(0, 6 * RUNNING_MAX))
  assert.deepEqual(tally(await creates), { StoreUnavailable: 6 * RUNNING_MAX })
  // One after the other, each with its own time, would take six times as long.
  const tookMs = performance.now() - startedAt
  assert.ok(tookMs < 3 * timing.callMs, `${tookMs} ms`)
})
