import assert from 'node:assert/strict'
import { setImmediate as nextTick, setTimeout as sleep } from 'node:timers/promises'
import type { TestContext } from 'node:test'
import type { NewPlant } from '../../../dist/plants/plant.js'
import { Message } from '../../../dist/store/etcd/protobuf.js'
import { CreateGroups } from '../../../dist/store/etcd/groups.js'
import type { EtcdConfig, EtcdStore } from '../../../dist/store/etcd/store.js'
import { plant } from '../../contract/store.contract.ts'
import { gateway, NO_ETCD, statusOf } from '../../support/etcd.ts'
import {
  ALL,
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
import {
  type Field,
  isRead,
  passingGrpc,
  readAnswer,
  servingGrpc,
} from '../../support/serving-grpc.ts'
import { PATIENCE_MS, until } from '../../support/time.ts'
import { verdict } from '../../support/verdict.ts'

const test = testUnless(NO_ETCD)
const testSecured = testUnless(NO_SECURED_ETCD)
const RUNNING_MAX = 4
const GROUP_MAX = 128
const GROUP_MAX_BYTES = 2 ** 20
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
  const endpoint = await passingGrpc(t, config, ({ path, message }) => {
    const fields = new Message(message)
    // Those of a range are other fields.
    const puts = path.endsWith('/Txn') ? fields.messages(2).flatMap((each) => each.messages(2)) : []
    const keys = puts.map((put) => put.text(1))
    if (keys.length > 0) sent.push({ bytes: message.length, keys })
    const isPassed = (): boolean => {
      const owner = recorder?.held
      return owner === undefined || !keys[0]?.includes(Buffer.from(owner).toString('base64url'))
    }
    return isPassed() ? undefined : until('it is passed on', isPassed)
  })
  const timing = { ...PATIENT, attempt: PATIENT.call }
  const store = await openStore(t, { ...config, endpoints: [endpoint], timing })
  recorder = { store, sent, held: undefined }
  return recorder
}

/** Starts as many creates of an owner as may run at once, each in its own call. */
async function occupy({ store, sent }: Recorder, owner: string): Promise<Promise<string>[]> {
  const before = sent.length
  const running: Promise<string>[] = []
  for (const each of plants(-RUNNING_MAX, RUNNING_MAX)) {
    running.push(store.create(owner, each))
    await nextTick()
  }
  await until('all run', () => sent.length === before + RUNNING_MAX)
  return running
}

function lengths({ sent }: Recorder): readonly number[] {
  return sent.map(({ keys }) => keys.length)
}

test('200 creates of one tick are two calls: one of 128 plants, one of the rest', async (t) => {
  const recorder = await recorded(t, await configured())
  const all = plants(0, 200)
  assert.deepEqual(tally(await createAll(recorder.store, all)), { stored: 200 })
  assert.deepEqual([...lengths(recorder)].sort(), [GROUP_MAX, 200 - GROUP_MAX])
  const names = all.map(({ name }) => name)
  assert.deepEqual(await namesIn(recorder.store), names)
})

test('what comes while four calls run is one call, of all owners', async (t) => {
  const recorder = await recorded(t, await configured())
  const { store } = recorder
  recorder.held = 'alice'
  const running = await occupy(recorder, 'alice')
  const waiting: Promise<string>[] = []
  for (const each of plants(0, 10)) {
    for (const owner of ['alice', 'bob']) waiting.push(store.create(owner, each))
    await nextTick()
  }
  assert.deepEqual(lengths(recorder), [1, 1, 1, 1], 'nothing more was sent')
  recorder.held = undefined
  assert.deepEqual(tally(await Promise.all([...running, ...waiting])), { stored: 24 })
  assert.deepEqual(lengths(recorder), [1, 1, 1, 1, 20])
})

test('owners whose keys existed spoil groups of such owners only', async (t) => {
  const config = await configured()
  const recorder = await recorded(t, config)
  await fill(config, 'mallory', plants(0, 30))
  const creates = (from: number, owner: string) => createAll(recorder.store, plants(from, 3), owner)
  const [bob, mallory] = await Promise.all([creates(0, 'bob'), creates(0, 'mallory')])
  assert.deepEqual(tally([...bob, ...mallory]), { stored: 6 })
  assert.deepEqual(lengths(recorder), [6, 1, 1, 1, 1, 1, 1])
  for (let from = 3; from < 30; from += 3) {
    const before = recorder.sent.length
    const all = [creates(from, 'bob'), creates(from, 'mallory'), creates(from, 'eve')]
    assert.deepEqual(tally((await Promise.all(all)).flat()), { stored: 9 })
    const sent = recorder.sent.slice(before).map(({ keys }) => keys.length)
    assert.deepEqual(sent.sort(), [1, 1, 1, 3, 6])
  }
  // Others who are apart share groups: as after a fault, when many repeat what may be stored.
  for (const owner of ['bob', 'eve']) await creates(3, owner)
  const before = recorder.sent.length
  await Promise.all(['bob', 'eve', 'alice'].map((owner) => creates(100, owner)))
  const sent = recorder.sent.slice(before).map(({ keys }) => keys.length)
  assert.deepEqual(sent.sort(), [3, 6])
})

/** Groups that all are stored, and those who were in them, once `release` is called. */
function groupsOf() {
  const groups: string[] = []
  const running: (() => void)[] = []
  const created = new CreateGroups((creates) => {
    groups.push(creates.map(({ owner }) => owner).join())
    return new Promise((resolve) => running.push(() => resolve('stored')))
  })
  let id = 0n
  const create = (owner: string): Promise<unknown> => {
    id += 1n
    return created.create({ owner, key: `${owner}/${id}`, plant: plant(id), since: 0 })
  }
  const release = (): void => running.splice(0).forEach((end) => end())
  return { groups, created, create, release }
}

test('an owner is apart for a minute', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { groups, created, create, release } = groupsOf()
  const createBoth = async (): Promise<readonly string[]> => {
    const both = Promise.all([create('alice'), create('bob')])
    await nextTick()
    await nextTick()
    release()
    await both
    return groups.splice(0)
  }
  created.setApart('bob')
  created.setApart('bob')
  assert.deepEqual(await createBoth(), ['alice', 'bob'])
  t.mock.timers.tick(59_999)
  assert.deepEqual(await createBoth(), ['alice', 'bob'])
  t.mock.timers.tick(1)
  assert.deepEqual(await createBoth(), ['alice,bob'])
})

/** The answer to a transaction on a plant that etcd has: it is compared, and one is counted. */
const EXISTS: readonly Field[] = [
  [1, [[3, 7]]],
  [2, 1],
  [3, [[1, [[4, 1]]]]],
]
const NOT_PUT = EXISTS.slice(0, 1)
const PUT = EXISTS.slice(0, 2)

test("an owner's lists and long plants delay no short create of any owner", async (t) => {
  const groups: string[] = []
  let release = (): void => {}
  const released = new Promise<void>((resolve) => (release = resolve))
  const isOf = (owner: string, key: string): boolean =>
    key.includes(Buffer.from(owner).toString('base64url'))
  const endpoint = await servingGrpc(t, async (call) => {
    const { message } = call
    const isList = isRead(call)
    if (isList || message.length > GROUP_MAX_BYTES / GROUP_MAX) {
      await released
      if (!isList) return PUT
      const isAlone = call.path.endsWith('/Range')
      return isAlone ? NOT_PUT : readAnswer(...new Message(message).messages(2).map(() => []))
    }
    const keys = new Message(message)
      .messages(2)
      .flatMap((operation) => operation.messages(2))
      .map((put) => put.text(1))
    if (keys.length === 0) return EXISTS
    groups.push(keys.map((key) => (isOf('mallory', key) ? 'mallory' : 'other')).join())
    return keys.some((key) => isOf('mallory', key)) ? NOT_PUT : PUT
  })
  const timing = { ...PATIENT, attempt: PATIENT.call }
  const store = await openStore(t, { ...configOf([endpoint]), timing })
  // They take all slots that such calls have, and more wait.
  const long: Promise<unknown>[] = []
  for (let id = 0n; id < 200n; id++) {
    for (const owner of ['mallory', `lister ${id}`])
      long.push(Promise.resolve(store.list(owner, ALL).next()))
    long.push(store.create('mallory', plant(id, 'x'.repeat(10_000))))
  }
  const both = (id: bigint): Promise<unknown> =>
    Promise.all(['mallory', 'bob'].map((owner) => store.create(owner, plant(id))))
  assert.deepEqual(await both(1000n), ['stored', 'stored'])
  assert.deepEqual(groups.splice(0).sort(), ['mallory', 'mallory,other', 'other'])
  for (let id = 1001n; id < 1010n; id++) {
    assert.deepEqual(await both(id), ['stored', 'stored'])
    assert.deepEqual(groups.splice(0).sort(), ['mallory', 'other'])
  }
  const alone = plants(2000, RUNNING_MAX).map((each) => store.create('mallory', each))
  for (let id = 3000n; id < 3020n; id++)
    assert.equal(await store.create(`bob ${id}`, plant(id)), 'stored')
  await Promise.all(alone)
  release()
  await Promise.all(long)
})

test('creates that wait while their owner is set apart leave the queue of all', async () => {
  const { groups, created, create, release } = groupsOf()
  const all: Promise<unknown>[] = []
  for (let i = 0; i < RUNNING_MAX; i++) {
    all.push(create('alice'))
    await nextTick()
  }
  all.push(...['mallory', 'bob', 'mallory', 'eve', 'mallory'].map(create))
  await nextTick()
  created.setApart('mallory')
  const turn = async (): Promise<void> => {
    release()
    for (let i = 0; i < 3; i++) await nextTick()
  }
  await turn()
  assert.deepEqual(groups.slice(RUNNING_MAX), ['bob,eve', 'mallory,mallory,mallory'])
  await turn()
  await Promise.all(all.splice(0))
  // So they do if no other create waits.
  for (let i = 0; i < RUNNING_MAX; i++) {
    all.push(create('alice'))
    await nextTick()
  }
  all.push(create('bob'), create('bob'))
  await nextTick()
  created.setApart('bob')
  await turn()
  assert.equal(groups.at(-1), 'bob,bob')
  await turn()
  await Promise.all(all)
})

test('a conflict and a repeat in a group are told so, and spoil no other create', async (t) => {
  const config = await configured()
  const { store, sent } = await recorded(t, config)
  await fill(config, 'alice', [plant(3n, 'old'), plant(5n, 'same', 'tag')])
  const all = [...plants(0, 3), plant(3n, 'new'), plant(4n), plant(5n, 'same', 'tag'), plant(6n)]
  const outcomes = await createAll(store, all)
  const stored = 'stored'
  assert.deepEqual(outcomes, [stored, stored, stored, 'conflict', stored, stored, stored])
  assert.equal(sent[0]?.keys.length, all.length)
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
  // The three others go alone, and do not undo the group.
  assert.deepEqual(lengths(recorder), [3, 1, 1, 1])
  assert.equal((await namesIn(recorder.store))[1], 'a')
})

test('a full cluster: a group has 507 for what is new, and the truth for the rest', async (t) => {
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

testSecured('a user of etcd may put in groups under its prefix, and nowhere else', async (t) => {
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

test('a group has at most 128 plants and 1 MiB, however long names and owners are', async (t) => {
  const recorder = await recorded(t, await configured())
  const owner = 'é/'.repeat(500)
  const long = ['x'.repeat(1_000_000), '\0'.repeat(130_000), 'é'.repeat(5000), 'y'.repeat(1400)]
  // As JSON a NUL has 6 bytes, "é" 2, and "x" 1.
  const short = ['\0', 'é', 'x'].map((character) => character.repeat(650))
  const all = [
    ...plants(0, 300),
    ...long.map((name, i) => plant(BigInt(1000 + i), name)),
    ...Array.from({ length: 300 }, (_, i) => plant(BigInt(2000 + i), short[i % 3])),
  ]
  const outcomes = await Promise.all([
    createAll(recorder.store, all),
    createAll(recorder.store, all, owner),
  ])
  assert.deepEqual(tally(outcomes.flat()), { stored: 2 * all.length })
  assert.equal(Math.max(...lengths(recorder)), GROUP_MAX)
  for (const { bytes, keys } of recorder.sent) {
    const isAlone = keys.length === 1
    assert.ok(isAlone || bytes <= GROUP_MAX_BYTES, `${keys.length} plants, ${bytes} bytes`)
  }
  assert.ok(recorder.sent.length < all.length / 2, 'most plants are in groups')
})

test('a cut connection leaves all of a group open, and repeating them is safe', async (t) => {
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

test('2,048 creates of an owner may wait; one more is refused, and no other owner', async (t) => {
  const recorder = await recorded(t, await configured())
  const { store } = recorder
  recorder.held = 'mallory'
  const running = await occupy(recorder, 'mallory')
  const count = WAITING_MAX / 2 + 100
  const crowd = createAll(store, plants(0, count), 'mallory')
  const bob = store.create('bob', plant(1n))
  recorder.held = undefined
  await Promise.all(running)
  const expected = { stored: WAITING_MAX / 2, StoreUnavailable: 100 }
  assert.deepEqual(tally(await crowd), expected)
  assert.equal(await bob, 'stored')
  const first = recorder.sent.findIndex(({ keys }) => keys.some((key) => key.includes('Ym9i')))
  assert.equal(first, RUNNING_MAX, 'bob is in the first group that waited')
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

test('a create that waits for others has its answer within the time of a call', async (t) => {
  const endpoint = await servingGrpc(t, () => 'hang')
  const timing = { attempt: 500, call: 1500, probe: 100 }
  const store = await openStore(t, { ...configOf([endpoint]), timing })
  const took: number[] = []
  const creates = Array.from({ length: 30 }, async (_, i) => {
    for (let tick = 0; tick < i; tick++) await nextTick()
    const startedAt = performance.now()
    await assert.rejects(store.create('alice', plant(BigInt(i))))
    took.push(performance.now() - startedAt)
  })
  await Promise.all(creates)
  // One group after the other, each with its own time, would take twice as long.
  assert.ok(Math.max(...took) < 2 * timing.call, `${Math.max(...took)} ms`)
})

test('in a group, the old creates end in their time, and the young one has its own', async (t) => {
  let puts = 0
  const endpoint = await servingGrpc(t, async ({ message }) => {
    // In a readiness probe it is no put.
    const [operation] = new Message(message).messages(2)
    if (operation?.messages(2).length === 1) puts += 1
    if (puts > 0 && puts <= RUNNING_MAX) return 'hang'
    if (puts > RUNNING_MAX) await sleep(1000)
    return PUT
  })
  const timing = { attempt: PATIENCE_MS, call: 3000, probe: 3000 }
  const store = await openStore(t, { ...configOf([endpoint]), timing })
  // The last of these wait for a group until their time is over.
  const old = createAll(store, plants(0, 5 * GROUP_MAX))
  await sleep(2000)
  assert.equal(await store.create('bob', plant(1n)), 'stored')
  assert.deepEqual(tally(await old), { StoreUnavailable: 5 * GROUP_MAX })
})
