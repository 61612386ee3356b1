import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
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
  servingGrpc,
} from '../../support/serving-grpc.ts'
import { until } from '../../support/time.ts'

const test = testUnless(NO_ETCD)
const testSecured = testUnless(NO_SECURED_ETCD)
const READS_MAX = 16
const SLOTS = 64

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

/** The groups that were sent. */
function together(sent: readonly Sent[]): readonly Sent[] {
  return sent.filter((owners) => !owners.includes('alone'))
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
  const groups = together(sent)
  // A limit of 0 asks nothing.
  assert.deepEqual(groups.map(({ length }) => length).sort(), [30 - READS_MAX, READS_MAX])
  assert.equal(new Set(groups.flat()).size, 30)
})

test('an owner has one read in a group; what comes meanwhile is read alone', async (t) => {
  const { store, sent } = await recorded(t, await configured())
  const others = ['alice', 'bob', 'eve'] as const
  const owners = [...Array.from({ length: 50 }, () => 'mallory'), ...others, ...others]
  await Promise.all(owners.map((owner) => names(store, owner)))
  assert.deepEqual(together(sent), [['mallory', ...others]])
  assert.equal(sent.length - 1, 49 + others.length)
  // Afterwards it may be in a group again.
  sent.length = 0
  await names(store, 'mallory')
  assert.deepEqual(sent, [['mallory']])
})

test('a long page and the next lists of its owner are read alone, others are not', async (t) => {
  const config = await configured()
  const long = ['long', 'long later'] as const
  await fill(config, 'long', plantsOf('long', 40, 2000))
  // Its first plants are short; the others make a page that even one call does not return.
  const later = plantsOf('long later', 32).map((each, i) =>
    i < 4 ? each : { ...each, name: 'x'.repeat(200_000) },
  )
  for (const each of later) await fill(config, 'long later', [each])
  const short = ['alice', 'bob', 'eve'] as const
  for (const owner of short) await fill(config, owner, plantsOf(owner, 20))
  const { store, sent } = await recorded(t, config)
  const listAll = async (): Promise<void> => {
    const listed = await Promise.all([...short, ...long].map((owner) => names(store, owner)))
    for (const [i, owner] of short.entries())
      assert.equal(
        listed[i],
        plantsOf(owner, 20)
          .map(({ name }) => name)
          .join(),
      )
    assert.equal(
      listed[3],
      plantsOf('long', 40, 2000)
        .map(({ name }) => name)
        .join(),
    )
    assert.equal(listed[4], later.map(({ name }) => name).join())
  }
  await listAll()
  assert.deepEqual(together(sent), [[...short, ...long]])
  // The group's answer was too long.
  for (const owner of short)
    assert.ok(sent.some(([name, alone]) => name === owner && alone === 'alone'))
  for (let round = 0; round < 3; round++) {
    sent.length = 0
    await listAll()
    assert.deepEqual(together(sent), [short])
  }
})

test('an owner with more than 10,000 plants delays one group a minute', async (t) => {
  const config = await configured()
  await fill(config, 'many', plantsOf('many', 10_001))
  await fill(config, 'some', plantsOf('some', 10_000))
  const { store, sent } = await recorded(t, config)
  const first = { after: undefined, limit: 1 }
  for (const expected of [['some', 'many'], ['some'], ['some']]) {
    sent.length = 0
    await Promise.all(['some', 'many'].map((owner) => names(store, owner, first)))
    assert.deepEqual(together(sent), [expected])
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
  assert.deepEqual(
    await listed(outer),
    owners.map(() => 'StoreUnavailable'),
  )
})

/** A page of an owner's only plant, which has the owner's name. */
function page(owner: string): readonly Field[] {
  const key = `plants/${Buffer.from(owner).toString('base64url')}/8000000000000001`
  return [
    [
      2,
      [
        [1, key],
        [2, 5],
        [5, JSON.stringify({ name: owner })],
      ],
    ],
    [4, 1],
  ]
}

const DENIED: GrpcReply = { code: 7, message: 'etcdserver: permission denied' }

/** A store over a server that answers groups of reads, and reads alone, as the functions say. */
async function answeredBy(
  t: TestContext,
  answer: (owners: Sent) => GrpcReply,
  options: Partial<EtcdConfig> = {},
  answerAlone = (owner: string): GrpcReply => [[1, [[3, 7]]], ...page(owner)],
): Promise<EtcdStore> {
  const endpoint = await servingGrpc(t, (call) => {
    if (!isRead(call)) return readAnswer()
    const owners = sentBy(call.path, call.message, 'plants/')
    const [owner = ''] = owners
    return owners.includes('alone') ? answerAlone(owner) : answer(owners)
  })
  return openStore(t, { ...configOf([endpoint]), ...options })
}

test('pages that are not those of the owners, one for each, are no lists', async (t) => {
  const [alice, bob] = [page('alice'), page('bob')]
  const listed = async (answer: readonly Field[]) => {
    const store = await answeredBy(t, () => answer)
    const lists = ['alice', 'bob'].map((owner) => names(store, owner).catch(String))
    return Promise.all(lists)
  }
  const isNone = "StoreUnavailable: among an owner's keys etcd holds one that is not a plant's"
  assert.deepEqual(await listed(readAnswer(bob, alice)), [isNone, isNone])
  assert.deepEqual(await listed(readAnswer(alice, alice)), ['alice', isNone])
  // These are no answer to the two reads, so each is read alone.
  const headless: readonly Field[] = [
    [1, [[3, 7]]],
    [3, [[1, alice]]],
    [3, [[1, bob]]],
  ]
  for (const pages of [[alice], [[]], [alice, bob, bob], []])
    assert.deepEqual(await listed(readAnswer(...pages)), ['alice', 'bob'])
  assert.deepEqual(await listed(headless), ['alice', 'bob'])
})

for (const failure of [
  DENIED,
  { code: 14, message: 'etcdserver: no leader' },
  [403, 'a proxy does not let it pass'],
  'cut',
  'hang',
] satisfies readonly GrpcReply[])
  test(`lists are read one by one if their group fails: ${JSON.stringify(failure)}`, async (t) => {
    const timing = { ...PATIENT, attempt: 500 }
    const store = await answeredBy(t, () => failure, { timing })
    const owners = ['alice', 'bob', 'eve']
    assert.deepEqual(await Promise.all(owners.map((owner) => names(store, owner))), owners)
  })

test('an owner is alone for a minute if its list could not be read', async (t) => {
  const groups: Sent[] = []
  const answer = (owners: Sent): GrpcReply => {
    groups.push(owners)
    return owners.includes('mallory') ? DENIED : readAnswer(...owners.map((each) => page(each)))
  }
  const readAlone = (owner: string): GrpcReply =>
    owner === 'mallory' ? DENIED : [[1, [[3, 7]]], ...page(owner)]
  const store = await answeredBy(t, answer, {}, readAlone)
  for (const expected of [['mallory', 'bob'], ['bob'], ['bob']]) {
    groups.length = 0
    const [mallory, bob] = ['mallory', 'bob'].map((owner) => names(store, owner))
    await assert.rejects(async () => mallory, /permission denied/)
    assert.equal(await bob, 'bob')
    assert.deepEqual(groups, [expected])
  }
})

test('a list without an answer ends in the time of a call, slot and group included', async (t) => {
  const timing = { attempt: 2500, call: 3000, probe: 100 }
  const store = await answeredBy(
    t,
    () => 'hang',
    { timing },
    () => DENIED,
  )
  const startedAt = performance.now()
  const lists = Array.from({ length: 2 * SLOTS }, (_, i) => readAll(store.list(`owner ${i}`, ALL)))
  const ended = await Promise.allSettled(lists)
  assert.ok(ended.every(({ status }) => status === 'rejected'))
  // Those that waited for a slot would take 5 s with the whole time of an attempt.
  assert.ok(performance.now() - startedAt < 4500)
})

test('a close ends the lists that wait for others', async (t) => {
  let asked = 0
  const store = await answeredBy(t, () => {
    asked += 1
    return 'hang'
  })
  const lists = Array.from({ length: 200 }, (_, i) => readAll(store.list(`owner ${i}`, ALL)))
  const ended = Promise.allSettled(lists)
  await until('all slots are taken', () => asked === SLOTS / READS_MAX)
  await store.close()
  assert.ok((await ended).every(({ status }) => status === 'rejected'))
  assert.equal(asked, SLOTS / READS_MAX)
})
