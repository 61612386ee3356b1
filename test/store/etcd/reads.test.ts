import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { PlantRange } from '../../../dist/plants/store.js'
import { Message } from '../../../dist/store/etcd/protobuf.js'
import type { EtcdConfig, EtcdStore } from '../../../dist/store/etcd/store.js'
import { plant, readAll } from '../../contract/store.contract.ts'
import { NO_ETCD } from '../../support/etcd.ts'
import {
  ALL,
  configOf,
  configured,
  fill,
  hasty,
  openStore,
  PATIENT,
  startCluster,
  testUnless,
} from '../../support/etcd-store.ts'
import { NO_SECURED_ETCD, SecuredCluster } from '../../support/etcd-tls.ts'
import {
  type Field,
  type GrpcReply,
  isRead,
  passingGrpc,
  readAnswer,
  type Refusal,
  servingGrpc,
} from '../../support/serving-grpc.ts'
import { until } from '../../support/time.ts'

const test = testUnless(NO_ETCD)
const testSecured = testUnless(NO_SECURED_ETCD)
const READS_MAX = 16
const RUNNING_MAX = 4

/** Whose ranges a call reads, and "alone" if it is not a transaction. */
type Sent = readonly string[]

function sentBy(path: string, message: Buffer, prefix: string): Sent {
  const isAlone = path.endsWith('/Range')
  const fields = new Message(message)
  const ranges = isAlone ? [fields] : fields.messages(2).flatMap((each) => each.messages(1))
  const owners = ranges.map((range) => {
    const [owner = ''] = range.text(1).slice(prefix.length).split('/')
    return Buffer.from(owner, 'base64url').toString()
  })
  return isAlone ? [...owners, 'alone'] : owners
}

interface Recorder {
  readonly store: EtcdStore
  readonly sent: Sent[]
  isHeld: boolean
}

/** A store that reaches etcd through a server which records what is read, and may hold it. */
async function recorded(t: TestContext, config: EtcdConfig): Promise<Recorder> {
  const sent: Sent[] = []
  let recorder: Recorder | undefined
  const endpoint = await passingGrpc(t, config, (call) => {
    if (!isRead(call)) return undefined
    sent.push(sentBy(call.path, call.message, config.prefix))
    return recorder?.isHeld ? until('it is passed on', () => !recorder?.isHeld) : undefined
  })
  const timing = { ...PATIENT, attempt: PATIENT.call }
  const store = await openStore(t, { ...config, endpoints: [endpoint], timing })
  recorder = { store, sent, isHeld: false }
  return recorder
}

async function names(store: EtcdStore, owner: string, range: PlantRange = ALL): Promise<string> {
  return (await readAll(store.list(owner, range))).map(({ name }) => name).join()
}

function plantsOf(owner: string, count: number, letters = 0) {
  return Array.from({ length: count }, (_, i) =>
    plant(BigInt(i), `${owner} ${i}`.padEnd(letters, '.')),
  )
}

test('lists of one tick are read in calls of 16, and each has its own plants', async (t) => {
  const config = await configured()
  const owners = Array.from({ length: 40 }, (_, i) => `owner ${i}`)
  for (const [i, owner] of owners.entries()) await fill(config, owner, plantsOf(owner, i))
  const { store, sent } = await recorded(t, config)
  const limits = [undefined, 1, 20, 0] as const
  const listed = owners.map((owner, i) =>
    names(store, owner, { after: 0n, limit: limits[i % limits.length] }),
  )
  for (const [i, list] of (await Promise.all(listed)).entries()) {
    const expected = plantsOf(owners[i] ?? '', i).slice(1, 1 + (limits[i % limits.length] ?? i))
    assert.equal(list, expected.map(({ name }) => name).join())
  }
  const together = sent.filter((owners) => !owners.includes('alone'))
  // A limit of 0 asks nothing.
  assert.deepEqual(together.map(({ length }) => length).sort(), [30 - READS_MAX, READS_MAX])
  assert.equal(new Set(together.flat()).size, 30)
})

test('what comes while four calls run is the next call, and owners take turns', async (t) => {
  const recorder = await recorded(t, await configured())
  const { store, sent } = recorder
  recorder.isHeld = true
  const running: Promise<string>[] = []
  for (let i = 0; i < RUNNING_MAX; i++) {
    running.push(names(store, 'mallory'))
    await until('it runs', () => sent.length > i)
  }
  for (let i = 0; i < 100; i++) running.push(names(store, 'mallory'))
  for (const owner of ['bob', 'eve']) running.push(names(store, owner))
  recorder.isHeld = false
  await Promise.all(running)
  assert.deepEqual(sent[RUNNING_MAX]?.slice(0, 4), ['mallory', 'bob', 'eve', 'mallory'])
})

test('a long page is read alone, and so are the next lists of its owner; no other is', async (t) => {
  const config = await configured()
  const long = ['long', 'long later'] as const
  await fill(config, 'long', plantsOf('long', 40, 2000))
  // Its first plants are short; the others make a page that even one call does not return.
  const later = plantsOf('long later', 32).map((each, i) =>
    i < 4 ? each : { ...each, name: 'x'.repeat(200_000) },
  )
  for (const each of later) await fill(config, 'long later', [each])
  const short = ['alice', 'bob', 'eve'] as const
  for (const owner of short) await fill(config, owner, plantsOf(owner, 50))
  const { store, sent } = await recorded(t, config)
  const listAll = async (): Promise<void> => {
    const listed = await Promise.all([...short, ...long].map((owner) => names(store, owner)))
    for (const [i, owner] of short.entries())
      assert.equal(listed[i], plantsOf(owner, 50).map(({ name }) => name).join())
    assert.equal(listed[3], plantsOf('long', 40, 2000).map(({ name }) => name).join())
    assert.equal(listed[4], later.map(({ name }) => name).join())
  }
  await listAll()
  const [together, ...tried] = sent.filter((owners) => !owners.includes('alone'))
  assert.deepEqual(together, [...short, ...long])
  assert.deepEqual(tried.flat().sort(), [...short, ...long].sort())
  for (let round = 0; round < 3; round++) {
    sent.length = 0
    await listAll()
    assert.deepEqual(sent.filter((owners) => !owners.includes('alone')), [short])
  }
})

test('a cluster that takes few operations in a transaction: each list is read alone', async (t) => {
  const cluster = await startCluster(t, 1, { flags: ['--max-txn-ops', '2'] })
  const config = configOf(cluster.endpoints)
  const owners = Array.from({ length: 8 }, (_, i) => `owner ${i}`)
  for (const owner of owners)
    for (const each of plantsOf(owner, 3)) await fill(config, owner, [each])
  const store = await openStore(t, config)
  const listed = await Promise.all(owners.map((owner) => names(store, owner)))
  assert.deepEqual(
    listed,
    owners.map((owner) => `${owner} 0,${owner} 1,${owner} 2`),
  )
})

testSecured('a user of etcd may read lists under its prefix, and no others', async (t) => {
  const secured = await SecuredCluster.shared(t)
  await secured.ask('auth/enable')
  const config = secured.config()
  const outside = { ...config, prefix: `elsewhere/${config.prefix}` }
  const [inner, outer] = [await openStore(t, config), await openStore(t, outside)]
  await inner.create('alice', plant(1n, 'Oak'))
  const owners = ['alice', 'bob', 'eve']
  const listed = (store: EtcdStore) =>
    Promise.all(owners.map((owner) => names(store, owner).catch((error: Error) => error.name)))
  assert.deepEqual(await listed(inner), ['Oak', '', ''])
  assert.deepEqual(await listed(outer), owners.map(() => 'StoreUnavailable'))
})

/** A page of an owner's only plant. */
function page(owner: string, name: string): readonly Field[] {
  const key = `plants/${Buffer.from(owner).toString('base64url')}/8000000000000001`
  return [
    [2, [[1, key], [2, 5], [5, JSON.stringify({ name })]]],
    [4, 1],
  ]
}

/** A store over a server that answers reads as the function says. */
async function answeredBy(
  t: TestContext,
  answer: (owners: Sent) => GrpcReply,
  options: Partial<EtcdConfig> = {},
): Promise<EtcdStore> {
  const endpoint = await servingGrpc(t, (call) =>
    isRead(call) ? answer(sentBy(call.path, call.message, 'plants/')) : readAnswer(),
  )
  return openStore(t, { ...configOf([endpoint]), ...options })
}

test('pages that are not those of the owners, one for each, are no lists', async (t) => {
  const [alice, bob] = [page('alice', 'a'), page('bob', 'b')]
  for (const pages of [[bob, alice], [alice, alice], [alice], [alice, bob, bob], []]) {
    const store = await answeredBy(t, () => readAnswer(...pages), hasty(1000))
    const [ofAlice, ofBob] = await Promise.allSettled(
      ['alice', 'bob'].map((owner) => names(store, owner)),
    )
    for (const [list, own] of [[ofAlice, 'a'], [ofBob, 'b']] as const)
      assert.ok(list?.status === 'rejected' || list?.value === own, JSON.stringify(pages))
    assert.ok([ofAlice, ofBob].some((list) => list?.status === 'rejected'))
  }
  const headless: readonly Field[] = [[1, [[3, 7]]], [3, [[1, alice]]], [3, [[1, bob]]]]
  const store = await answeredBy(t, () => headless)
  for (const owner of ['alice', 'bob']) await assert.rejects(names(store, owner), /no revision/)
})

test('a group that etcd refuses is read one by one; a list alone has the reason', async (t) => {
  const refusal: Refusal = { code: 7, message: 'etcdserver: permission denied' }
  const store = await answeredBy(t, (owners) => {
    if (owners.includes('eve')) return refusal
    return readAnswer(...owners.map((owner) => page(owner, owner)))
  })
  const [alice, bob, eve] = await Promise.allSettled(
    ['alice', 'bob', 'eve'].map((owner) => names(store, owner)),
  )
  assert.deepEqual([alice, bob], ['alice', 'bob'].map((value) => ({ status: 'fulfilled', value })))
  assert.match(String(eve?.status === 'rejected' && eve.reason), /permission denied/)
})

test('a list that waits for others has its answer within the time of a call', async (t) => {
  const timing = { attempt: 500, call: 1500, probe: 100 }
  const store = await answeredBy(t, () => 'hang', { timing })
  const startedAt = performance.now()
  const lists = Array.from({ length: 10 * READS_MAX }, (_, i) => store.list(`owner ${i}`, ALL))
  const ended = await Promise.allSettled(lists)
  assert.ok(ended.every(({ status }) => status === 'rejected'))
  assert.ok(performance.now() - startedAt < 2 * timing.call)
})

test('in a group, the old list ends in its time, and the young one has its own', async (t) => {
  const timing = { attempt: 1500, call: 1500, probe: 100 }
  let asked = 0
  const store = await answeredBy(
    t,
    () => {
      asked += 1
      return 'hang'
    },
    { timing },
  )
  const endOf = async (owner: string): Promise<number> => {
    await assert.rejects(async () => store.list(owner, ALL))
    return performance.now()
  }
  const running: Promise<number>[] = []
  for (let i = 0; i < RUNNING_MAX; i++) {
    running.push(endOf('alice'))
    await until('it runs', () => asked > i)
  }
  const old = endOf('alice')
  await sleep(1000)
  const young = endOf('bob')
  assert.ok((await young) - (await old) > 500)
  await Promise.all(running)
})

test('a close ends the lists that wait for others', async (t) => {
  let asked = 0
  const store = await answeredBy(t, () => {
    asked += 1
    return 'hang'
  })
  const lists = Array.from({ length: 200 }, (_, i) => store.list(`owner ${i}`, ALL))
  const ended = Promise.allSettled(lists)
  await until('four calls run', () => asked === RUNNING_MAX)
  await store.close()
  assert.ok((await ended).every(({ status }) => status === 'rejected'))
  assert.equal(asked, RUNNING_MAX)
})
