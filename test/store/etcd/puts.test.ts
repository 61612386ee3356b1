import assert from 'node:assert/strict'
import { test as testAlways, type TestContext } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import type { NewPlant } from '../../../dist/plants/plant.js'
import type { EtcdConfig } from '../../../dist/store/etcd/client.js'
import { EtcdRefusal } from '../../../dist/store/etcd/gateway.js'
import { type Put, SharedPuts } from '../../../dist/store/etcd/puts.js'
import type { EtcdStore } from '../../../dist/store/etcd/store.js'
import { type Outcome, putRequest } from '../../../dist/store/etcd/wire.js'
import { plant } from '../../contract/store.contract.ts'
import { gateway, NO_ETCD, statusOf } from '../../support/etcd.ts'
import {
  configOf,
  configured,
  fill,
  hasty,
  namesIn,
  openStore,
  PATIENT,
  proxyTo,
  startCluster,
  testUnless,
} from '../../support/etcd-store.ts'
import { NO_SECURED_ETCD, SecuredCluster } from '../../support/etcd-tls.ts'
import { post } from '../../support/http.ts'
import { startService } from '../../support/service.ts'
import { serving } from '../../support/serving.ts'
import { until } from '../../support/time.ts'
import { verdict } from '../../support/verdict.ts'

const test = testUnless(NO_ETCD)
const testSecured = testUnless(NO_SECURED_ETCD)
const RUNNING_MAX = 64
const SHARED_MAX = 128
const SHARED_MAX_BYTES = 2 ** 20
const WAITING_MAX = 4096

function plants(from: number, count: number): readonly NewPlant[] {
  return Array.from({ length: count }, (_, i) => plant(BigInt(from + i)))
}

/** Creates all in one tick. Each becomes "stored", "conflict", or the name of an error. */
function createAll(
  store: EtcdStore,
  all: readonly NewPlant[],
  owner = 'alice',
): Promise<readonly string[]> {
  const failed = (error: unknown): string => (error instanceof Error ? error.name : 'no error')
  return Promise.all(all.map((each) => store.create(owner, each).catch(failed)))
}

/** How often each outcome is there. */
function tally(outcomes: readonly string[]): Readonly<Record<string, number>> {
  const counts: Record<string, number> = {}
  for (const each of outcomes) counts[each] = (counts[each] ?? 0) + 1
  return counts
}

/** A transaction that puts, as it was sent. */
interface Sent {
  readonly bytes: number
  readonly keys: readonly string[]
}

interface Recorder {
  readonly store: EtcdStore
  readonly sent: readonly Sent[]
  /** What puts a plant of this owner first is not passed on meanwhile. */
  held: string | undefined
}

/** A store that reaches etcd through a server which records what is put. */
async function recorded(t: TestContext, config: EtcdConfig): Promise<Recorder> {
  const sent: Sent[] = []
  let recorder: Recorder | undefined
  const passOn = async (path: string, body: Buffer): Promise<{ status: number; text: string }> => {
    // The store's own request.
    const message = JSON.parse(body.toString()) as {
      readonly success?: readonly { readonly request_put?: { readonly key: string } }[]
    }
    const puts = (message.success ?? []).flatMap((each) => each.request_put ?? [])
    const keys = puts.map(({ key }) => Buffer.from(key, 'base64').toString())
    if (keys.length > 0) sent.push({ bytes: body.length, keys })
    const isPassed = (): boolean => {
      const owner = recorder?.held
      return owner === undefined || !keys[0]?.includes(Buffer.from(owner).toString('base64url'))
    }
    if (!isPassed()) await until('it is passed on', isPassed)
    const answer = await fetch(`${config.endpoints[0]}${path}`, { method: 'POST', body })
    return { status: answer.status, text: await answer.text() }
  }
  const endpoint = await serving(t, (req, res) => {
    const chunks: Buffer[] = []
    req.on('data', (chunk: Buffer) => chunks.push(chunk))
    req.on('end', () => {
      passOn(req.url ?? '', Buffer.concat(chunks)).then(
        ({ status, text }) => res.writeHead(status).end(text),
        () => res.destroy(),
      )
    })
  })
  const timing = { ...PATIENT, attemptMs: PATIENT.callMs }
  const store = await openStore(t, { ...config, endpoints: [endpoint], timing })
  recorder = { store, sent, held: undefined }
  return recorder
}

/** Starts as many creates of an owner as may run at once. */
async function occupy({ store, sent }: Recorder, owner: string): Promise<readonly string[]> {
  const running = createAll(store, plants(-RUNNING_MAX, RUNNING_MAX), owner)
  await until('all run', () => sent.length === 1)
  return running
}

function lengths({ sent }: Recorder): readonly number[] {
  return sent.map(({ keys }) => keys.length)
}

/** Puts without a cluster: each transaction is answered by the function. */
function shared(answer: (keys: readonly string[], at: number) => Outcome | Error) {
  const sent: (readonly Put[])[] = []
  const puts = new SharedPuts(async (batch) => {
    sent.push(batch)
    const outcome = answer(
      batch.map(({ key }) => key),
      sent.length - 1,
    )
    if (outcome instanceof Error) throw outcome
    return outcome
  })
  const putAll = (keys: readonly string[], value = 'v'): Promise<readonly string[]> =>
    Promise.all(
      keys.map((key) =>
        puts.put({ key, value, deadline: 1 }).catch((error: unknown) => String(error)),
      ),
    )
  const keysSent = (): readonly string[] =>
    sent.map((batch) => batch.map(({ key }) => key).join(''))
  return { sent, putAll, keysSent }
}

const ALL_STORED: Outcome = { succeeded: true, counts: [] }

testAlways('puts of one tick share transactions of at most 128 plants', async () => {
  const { sent, putAll } = shared(() => ALL_STORED)
  const outcomes = await putAll(Array.from({ length: 300 }, (_, i) => `key ${i}`))
  assert.deepEqual(tally(outcomes), { stored: 300 })
  assert.deepEqual(
    sent.map(({ length }) => length),
    [SHARED_MAX, SHARED_MAX, 300 - 2 * SHARED_MAX],
  )
})

testAlways('a shared transaction is at most 1 MiB as it is sent', async () => {
  for (const [keyChars, valueChars] of [
    [16, 0],
    [16, 10_400],
    [16, 400_000],
    [16, 2_000_000],
    [16_000, 100],
  ] as const) {
    const { sent, putAll } = shared(() => ALL_STORED)
    const keys = Array.from({ length: 100 }, (_, i) => String(i).padStart(keyChars, '0'))
    await putAll(keys, 'x'.repeat(valueChars))
    const bytes = sent.map((batch) => JSON.stringify(putRequest(batch).message).length)
    for (const [at, batch] of sent.entries())
      assert.ok(batch.length === 1 || (bytes[at] ?? Infinity) <= SHARED_MAX_BYTES)
    // Two that follow each other do not fit together.
    for (const [at, length] of bytes.slice(1).entries())
      assert.ok((bytes[at] ?? 0) + length > 0.98 * SHARED_MAX_BYTES)
  }
})

testAlways('puts that come while a transaction runs share the next one', async () => {
  const ends: (() => void)[] = []
  const sizes: number[] = []
  const puts = new SharedPuts((batch) => {
    sizes.push(batch.length)
    return new Promise((resolve) => ends.push(() => resolve(ALL_STORED)))
  })
  const put = (key: string): Promise<string> => puts.put({ key, value: 'v', deadline: 1 })
  const outcomes = [put('a')]
  await until('it runs', () => sizes.length === 1)
  outcomes.push(put('b'))
  await nextTick()
  outcomes.push(put('c'))
  await nextTick()
  assert.deepEqual(sizes, [1])
  ends[0]?.()
  await until('the next one runs', () => sizes.length === 2)
  assert.deepEqual(sizes, [1, 2])
  ends[1]?.()
  assert.deepEqual(tally(await Promise.all(outcomes)), { stored: 3 })
  // Nothing runs any more.
  outcomes.push(put('d'))
  await until('it runs', () => sizes.length === 3)
  ends[2]?.()
  assert.equal(await outcomes[3], 'stored')
})

testAlways('a key is once in a transaction; its repeats follow, each alone', async () => {
  const { putAll, keysSent } = shared((keys, at) =>
    at === 0 ? ALL_STORED : { succeeded: false, counts: [keys.length] },
  )
  const outcomes = await putAll(['a', 'b', 'a', 'c', 'a'])
  assert.deepEqual(outcomes, ['stored', 'stored', 'taken', 'stored', 'taken'])
  assert.deepEqual(keysSent(), ['abc', 'a', 'a'])
})

testAlways('if a key exists, the free ones share one more, then each goes alone', async () => {
  const taken = new Set(['b', 'd'])
  const answer = (keys: readonly string[]): Outcome => ({
    succeeded: !keys.some((key) => taken.has(key)),
    counts: keys.map((key) => Number(taken.has(key))),
  })
  const first = shared(answer)
  const stored = 'stored'
  assert.deepEqual(await first.putAll(['a', 'b', 'c', 'd', 'e']), [
    stored,
    'taken',
    stored,
    'taken',
    stored,
  ])
  assert.deepEqual(first.keysSent(), ['abcde', 'ace'])
  // Another instance puts "c" before the second transaction, and "e" before the third.
  const raced = shared((keys, at) => {
    if (at > 0) taken.add('c')
    if (at > 1) taken.add('e')
    return answer(keys)
  })
  assert.deepEqual(await raced.putAll(['a', 'b', 'c', 'e']), [stored, 'taken', 'taken', 'taken'])
  assert.deepEqual(raced.keysSent(), ['abce', 'ace', 'a', 'e'])
})

testAlways('a refused transaction is put one by one, and each has its own answer', async () => {
  const { putAll, keysSent } = shared((keys) =>
    keys.includes('b') ? new EtcdRefusal('too large') : ALL_STORED,
  )
  assert.deepEqual(await putAll(['a', 'b', 'c']), ['stored', 'EtcdRefusal: too large', 'stored'])
  assert.deepEqual(keysSent(), ['abc', 'a', 'b', 'c'])
})

testAlways('a transaction without an answer leaves all of its plants open', async () => {
  const { putAll, keysSent } = shared(() => new Error('no answer'))
  assert.deepEqual(
    await putAll(['a', 'b', 'a']),
    Array.from({ length: 3 }, () => 'Error: no answer'),
  )
  assert.deepEqual(keysSent(), ['ab', 'a'])
})

testAlways('no answer makes a put run for ever', async () => {
  // A transaction whose only comparison failed has a key that exists.
  const { putAll, keysSent } = shared(() => ({ succeeded: false, counts: [0, 0] }))
  assert.deepEqual(await putAll(['a', 'b']), ['taken', 'taken'])
  assert.deepEqual(keysSent(), ['ab', 'ab', 'a', 'b'])
})

test('creates of one tick, of any owners, are one transaction', async (t) => {
  const recorder = await recorded(t, await configured())
  const owners = Array.from({ length: RUNNING_MAX }, (_, i) => `owner ${i}`)
  await Promise.all(owners.map((owner) => createAll(recorder.store, plants(1, 1), owner)))
  assert.deepEqual(lengths(recorder), [RUNNING_MAX])
})

test('a conflict and a repeat are told so, and spoil no other create', async (t) => {
  const config = await configured()
  const { store, sent } = await recorded(t, config)
  await fill(config, 'alice', [plant(3n, 'old'), plant(5n, 'same', 'tag')])
  const all = [...plants(0, 3), plant(3n, 'new'), plant(4n), plant(5n, 'same', 'tag'), plant(6n)]
  const outcomes = await createAll(store, all)
  const stored = 'stored'
  assert.deepEqual(outcomes, [stored, stored, stored, 'conflict', stored, stored, stored])
  assert.deepEqual(
    sent.map(({ keys }) => keys.length),
    [all.length, all.length - 2],
  )
  const names = all.map(({ id, name }) => (id === 3n ? 'old' : name))
  assert.deepEqual(await namesIn(store), names)
})

test('one id several times in a tick: one content wins, and its repeats are stored', async (t) => {
  const recorder = await recorded(t, await configured())
  const contents = ['a', 'b', 'a', 'c']
  const twins = contents.map((name) => plant(1n, name))
  const outcomes = await createAll(recorder.store, [plant(0n), ...twins, plant(2n)])
  const stored = 'stored'
  assert.deepEqual(outcomes, [stored, stored, 'conflict', stored, 'conflict', stored])
  for (const { keys } of recorder.sent) assert.equal(new Set(keys).size, keys.length)
  // The three others go alone, and do not undo what was shared.
  assert.deepEqual(lengths(recorder), [3, 1, 1, 1])
  assert.equal((await namesIn(recorder.store))[1], 'a')
})

test('a full cluster: 507 for what is new, and the truth for the rest', async (t) => {
  const cluster = await startCluster(t, 1)
  const config = configOf(cluster.endpoints)
  const recorder = await recorded(t, config)
  await fill(config, 'alice', [plant(1n, 'old'), plant(2n)])
  const { port } = await startService(t, { etcd: config })
  const [member] = cluster.members
  const memberID = (member && (await statusOf(member)))?.header.member_id
  const alarm = async (action: string): Promise<void> => {
    const message = { action, memberID, alarm: 'NOSPACE' }
    const path = '/v3/maintenance/alarm'
    assert.equal((await gateway(cluster.endpoints.join(), path, message)).status, 200)
  }
  await alarm('ACTIVATE')
  const all = [plant(0n), plant(1n, 'new'), plant(2n), plant(3n)]
  const full = 'StoreFull'
  assert.deepEqual(await createAll(recorder.store, all), [full, 'conflict', 'stored', full])
  assert.equal(lengths(recorder)[0], all.length)
  const posts = Array.from({ length: 30 }, (_, id) => post(port, { id: 100 + id, name: 'x' }))
  for (const reply of await Promise.all(posts)) assert.equal(verdict(reply), 'storageFull')
  await alarm('DEACTIVATE')
  const outcomes = await createAll(recorder.store, all)
  assert.deepEqual(outcomes, ['stored', 'conflict', 'stored', 'stored'])
})

testSecured('a user of etcd may put together under its prefix, and nowhere else', async (t) => {
  const secured = await SecuredCluster.shared(t)
  await secured.ask('auth/enable')
  const config = secured.config()
  const outside = { ...config, prefix: `elsewhere/${config.prefix}` }
  const [inner, outer] = [await openStore(t, config), await openStore(t, outside)]
  const all = plants(0, 20)
  assert.deepEqual(tally(await createAll(inner, all)), { stored: 20 })
  assert.deepEqual(tally(await createAll(outer, all)), { StoreUnavailable: 20 })
  await secured.ask('auth/disable')
  assert.equal((await namesIn(inner)).length, 20)
  assert.deepEqual(await namesIn(outer), [])
})

test('a cut connection leaves all of a transaction open, and repeating them is safe', async (t) => {
  const config = await configured()
  const proxy = await proxyTo(t, config)
  const etcd = { ...config, endpoints: [proxy.endpoint] }
  const [impatient, patient] = [
    await openStore(t, { ...etcd, ...hasty(200) }),
    await openStore(t, etcd),
  ]
  const all = plants(0, 50)
  for (const mode of ['drop-answers', 'refuse', 'hang'] as const) {
    proxy.mode = mode
    const outcomes = await createAll(impatient, all)
    assert.deepEqual(tally(outcomes), { StoreUnavailable: 50 }, mode)
  }
  proxy.mode = 'pass'
  assert.deepEqual(tally(await createAll(patient, all)), { stored: 50 })
  const others = all.map(({ id }) => plant(id, 'other'))
  assert.deepEqual(tally(await createAll(patient, others)), { conflict: 50 })
  assert.equal((await namesIn(patient)).length, 50)
})

test('2,048 creates of an owner may wait; one more is refused, and others go on', async (t) => {
  const recorder = await recorded(t, await configured())
  const { store } = recorder
  recorder.held = 'mallory'
  const running = occupy(recorder, 'mallory')
  const crowd = createAll(store, plants(0, WAITING_MAX / 2 + 100), 'mallory')
  const bob = store.create('bob', plant(1n))
  recorder.held = undefined
  assert.deepEqual(tally(await running), { stored: RUNNING_MAX })
  assert.deepEqual(tally(await crowd), { stored: WAITING_MAX / 2, HttpError: 100 })
  assert.equal(await bob, 'stored')
  // Owners take turns, so bob is in the first transaction of what waited.
  assert.ok(recorder.sent[1]?.keys.some((key) => key.includes('Ym9i')))
})

test("one owner's thousands of creates do not keep another owner's waiting", async (t) => {
  const { store } = await recorded(t, await configured())
  let isOver = false
  const crowd = createAll(store, plants(0, 2000), 'mallory').then((outcomes) => {
    isOver = true
    return outcomes
  })
  for (const each of plants(0, 3)) assert.equal(await store.create('bob', each), 'stored')
  assert.ok(!isOver)
  assert.deepEqual(tally(await crowd), { stored: 2000 })
})

test('a create that waits for a place has its answer within the time of a call', async (t) => {
  const endpoint = await serving(t, (req) => void req.resume())
  const timing = { attemptMs: 500, callMs: 1500 }
  const store = await openStore(t, { ...configOf([endpoint]), timing })
  const startedAt = performance.now()
  const creates = createAll(store, plants(0, 4 * RUNNING_MAX))
  assert.deepEqual(tally(await creates), { StoreUnavailable: 4 * RUNNING_MAX })
  // One after the other, each with its own time, would take four times as long.
  const tookMs = performance.now() - startedAt
  assert.ok(tookMs < 2 * timing.callMs, `${tookMs} ms`)
})
