import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { ALL, plant, readAll } from '../../contract/store.contract.ts'
import { NO_ETCD } from '../../support/etcd.ts'
import { type Asked, type FakeReply, fakeEtcd, HEADER, keysPut } from '../../support/etcd-fake.ts'
import { ok, PUT, refused } from '../../support/etcd-fake.ts'
import { configOf, hurry, namesIn, openStore, startCluster } from '../../support/etcd-store.ts'
import { testUnless, untilReadiness } from '../../support/etcd-store.ts'
import { call, post } from '../../support/http.ts'
import { startService } from '../../support/service.ts'
import { gate, until } from '../../support/time.ts'
import { verdict } from '../../support/verdict.ts'

const testEtcd = testUnless(NO_ETCD)
const OTHER = /another cluster than before.* a cluster restored .* needs every instance restarted/
const PAST = /answered from the past.* a cluster restored .* needs every instance restarted/

type Header = Partial<typeof HEADER>
/** Undefined is that of the cluster. */
type Says = { header: Header | undefined }

/** What a member with this header says to any call: puts succeed, lists are empty. */
function replyOf(header: Header | undefined, asked: Asked): FakeReply {
  const isPut = keysPut(asked).length > 0
  if (header === undefined) return isPut ? PUT : ok()
  return [200, { header: { ...HEADER, ...header }, ...(isPut ? { succeeded: true } : {}) }]
}

/** A member that answers with the header that `says` has, also to probes of readiness. */
async function member(t: TestContext, says: Says) {
  const answer = (asked: Asked): FakeReply => replyOf(says.header, asked)
  return fakeEtcd(t, answer, answer)
}

function putsTo({ asked }: { readonly asked: readonly Asked[] }): number {
  return asked.filter((each) => keysPut(each).length > 0).length
}

for (const [what, header, reason] of [
  ['another cluster', { cluster_id: '9', revision: '900' }, OTHER],
  ['a lower revision', { revision: '6' }, PAST],
] as const) {
  test(`an answer with ${what} is none; readiness says so, until it is over`, async (t) => {
    hurry(t)
    const says: Says = { header: undefined }
    const fake = await member(t, says)
    const { port, adminPort } = await startService(t, { etcd: configOf([fake.endpoint]) })
    assert.equal((await post(port, { id: 1, name: 'x' })).status, 200)
    assert.equal((await call(port)).text, '[]')
    says.header = header
    for (const reply of [await call(port), await post(port, { id: 1, name: 'y' })])
      assert.equal(verdict(reply), 'storageUnavailable')
    await untilReadiness(adminPort, 503, reason)
    says.header = undefined
    await untilReadiness(adminPort, 200)
    assert.equal((await post(port, { id: 1, name: 'x' })).status, 200)
    assert.equal((await call(port)).text, '[]')
  })
}

test('creates do not raise a revision of the past until it passes for the present', async (t) => {
  let revision = 7
  const raise = (asked: Asked): FakeReply => {
    if (keysPut(asked).length > 0) revision += 1
    return replyOf({ revision: String(revision) }, asked)
  }
  const { endpoint } = await fakeEtcd(t, raise, raise)
  const store = await openStore(t, configOf([endpoint]))
  assert.equal(await store.create('alice', plant(1n)), 'stored')
  revision = 1
  for (let id = 2n; id < 20n; id++)
    await assert.rejects(store.create('alice', plant(id)), StoreUnavailable)
  assert.ok(revision < 3, `${revision}`)
  await assert.rejects(namesIn(store), StoreUnavailable)
})

test('an endpoint of another cluster gets one put; another endpoint serves', async (t) => {
  let failing = 0
  const good = await fakeEtcd(t, (asked) => (failing-- > 0 ? [503, ''] : replyOf(undefined, asked)))
  const other = await member(t, { header: { cluster_id: '9' } })
  const store = await openStore(t, configOf([good.endpoint, other.endpoint]))
  for (let id = 1n; id < 4n; id++) {
    failing = 1
    assert.equal(await store.create('alice', plant(id)), 'stored')
  }
  assert.deepEqual([putsTo(good), putsTo(other)], [6, 1])
})

test('a call that failed before it met another cluster does not ask that one again', async (t) => {
  const says: Says = { header: undefined }
  let failing = 0
  const answer = (asked: Asked): FakeReply =>
    failing-- > 0 ? [503, ''] : replyOf(says.header, asked)
  const fake = await fakeEtcd(t, answer)
  const store = await openStore(t, configOf([fake.endpoint]))
  assert.equal(await store.create('alice', plant(1n)), 'stored')
  says.header = { cluster_id: '9' }
  failing = 1
  const before = fake.asked.length
  await assert.rejects(readAll(store.list('alice', ALL)), OTHER)
  assert.equal(fake.asked.length - before, 2)
})

const REFUSALS = ['etcdserver: request is too large', 'etcdserver: mvcc: database space exceeded']

for (const message of REFUSALS) {
  test(`"${message}": of another cluster's member it is no answer`, async (t) => {
    let failing = 1
    const good = await fakeEtcd(t, (each) => (failing-- > 0 ? [503, ''] : replyOf(undefined, each)))
    const header = { ...HEADER, cluster_id: '9' }
    const other = await fakeEtcd(
      t,
      () => refused(400, message, 3),
      () => [200, { header }],
    )
    const store = await openStore(t, configOf([good.endpoint, other.endpoint]))
    // A refusal is final only in the first attempt of a call, which the second create begins there.
    for (const id of [1n, 2n]) assert.equal(await store.create('alice', plant(id)), 'stored')
    assert.equal(putsTo(other), 1)
  })
}

test('an answer that a later call overtakes is not of the past', async (t) => {
  const { opened, open } = gate()
  let calls = 0
  const { endpoint } = await fakeEtcd(t, async (asked) => {
    const revision = calls++ === 0 ? '8' : '9'
    if (revision === '8') await opened
    return replyOf({ revision }, asked)
  })
  const store = await openStore(t, configOf([endpoint]))
  const slow = namesIn(store, 'bob')
  await until('it is asked', () => calls === 1)
  assert.deepEqual(await namesIn(store), [])
  open()
  assert.deepEqual(await slow, [])
})

testEtcd('a member that was wiped is no empty store, until every instance restarts', async (t) => {
  hurry(t)
  const cluster = await startCluster(t, 1)
  const [member = assert.fail()] = cluster.members
  const etcd = configOf(cluster.endpoints)
  const { port, adminPort } = await startService(t, { etcd })
  for (const id of [1, 2, 3, 4]) assert.equal((await post(port, { id, name: 'x' })).status, 200)
  await member.end()
  member.wipe()
  cluster.startMember(member)
  await cluster.ready()
  assert.equal(verdict(await call(port)), 'storageUnavailable')
  for (let id = 1; id < 20; id++)
    assert.equal(verdict(await post(port, { id, name: 'y' })), 'storageUnavailable')
  assert.equal(verdict(await call(port)), 'storageUnavailable')
  await untilReadiness(adminPort, 503, PAST)
  const restarted = await startService(t, { etcd })
  assert.equal((await call(restarted.port)).status, 200)
})
