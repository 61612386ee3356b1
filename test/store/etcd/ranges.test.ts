import assert from 'node:assert/strict'
import { test as testAlways } from 'node:test'
import type { PlantStore } from '../../../dist/plants/store.js'
import { AnswerTooLong, EtcdRefusal } from '../../../dist/store/etcd/gateway.js'
import { type Query, SharedRanges } from '../../../dist/store/etcd/ranges.js'
import type { Page } from '../../../dist/store/etcd/wire.js'
import { plant, readAll } from '../../contract/store.contract.ts'
import { NO_ETCD } from '../../support/etcd.ts'
import {
  ALL,
  configured,
  fill,
  hasty,
  openStore,
  proxyTo,
  testUnless,
} from '../../support/etcd-store.ts'
import { NO_SECURED_ETCD, SecuredCluster } from '../../support/etcd-tls.ts'

const test = testUnless(NO_ETCD)
const testSecured = testUnless(NO_SECURED_ETCD)
const SHARED_MAX = 8
const OWNERS = Array.from({ length: 3 * SHARED_MAX + 1 }, (_, i) => `owner ${i}`)

type Answer = (firsts: readonly string[]) => readonly Page[] | Error

function pageOf(first: string): Page {
  return { entries: [{ key: first }], more: false }
}

/** Reads ranges without a cluster: each transaction is answered by the function. */
function shared(answer: Answer) {
  const sent: string[] = []
  const ranges = new SharedRanges(async (queries: readonly Query[]) => {
    const firsts = queries.map(({ first }) => first)
    sent.push(firsts.join(''))
    const pages = answer(firsts)
    if (pages instanceof Error) throw pages
    return pages
  })
  const read = (first: string, isShared = true): Promise<string | undefined> =>
    ranges.page({ first, end: 'z', limit: 32, deadline: 1 }, isShared).then(
      ({ entries }) => entries[0]?.key,
      (error: unknown) => String(error),
    )
  const readEach = (firsts: string): Promise<readonly (string | undefined)[]> =>
    Promise.all([...firsts].map((first) => read(first)))
  return { sent, read, readEach }
}

testAlways('ranges of one tick share calls of at most eight, and each has its page', async () => {
  const { sent, read, readEach } = shared((firsts) => firsts.map(pageOf))
  const alone = read('z', false)
  assert.deepEqual(await readEach('abcdefghijklmnopqrs'), [...'abcdefghijklmnopqrs'])
  assert.equal(await alone, 'z')
  assert.deepEqual(sent, ['z', 'abcdefgh', 'ijklmnop', 'qrs'])
  // The next tick.
  assert.deepEqual(await readEach('ab'), ['a', 'b'])
  assert.deepEqual(sent.slice(4), ['ab'])
})

testAlways('a shared call that is refused or too long is read one by one', async () => {
  for (const error of [new AnswerTooLong('long'), new EtcdRefusal('denied')]) {
    const { sent, readEach } = shared((firsts) =>
      firsts.includes('b') ? error : firsts.map(pageOf),
    )
    assert.deepEqual(await readEach('abc'), ['a', String(error), 'c'])
    assert.deepEqual(sent, ['abc', 'a', 'b', 'c'])
  }
})

testAlways('without an answer all lists of a shared call fail; it is not repeated', async () => {
  const { sent, readEach } = shared(() => new Error('no answer'))
  assert.deepEqual(await readEach('ab'), ['Error: no answer', 'Error: no answer'])
  assert.deepEqual(sent, ['ab'])
})

testAlways('an answer without one of the ranges is an error, not an empty list', async () => {
  const { readEach } = shared(([first = '']) => [pageOf(first)])
  const error = 'Error: etcd has not answered every range'
  assert.deepEqual(await readEach('ab'), [error, error])
})

/** Reads all owners' lists in one tick: the names in each, or the error. */
function listEach(store: PlantStore): Promise<readonly string[]> {
  const failed = (error: unknown): string => (error instanceof Error ? error.name : 'no error')
  const read = async (owner: string): Promise<string> =>
    (await readAll(store.list(owner, ALL))).map(({ name }) => name).join()
  return Promise.all(OWNERS.map((owner) => read(owner).catch(failed)))
}

test('lists that are read together have their own plants alone', async (t) => {
  const config = await configured()
  const counts = OWNERS.map((_, at) => (at * 7) % 50)
  const expected = OWNERS.map((owner, at) =>
    Array.from({ length: counts[at] ?? 0 }, (_, id) => `${owner}, ${id}`),
  )
  for (const [at, owner] of OWNERS.entries()) {
    const plants = (expected[at] ?? []).map((name, id) => plant(BigInt(id), name))
    await fill(config, owner, plants)
  }
  const store = await openStore(t, config)
  assert.deepEqual(
    await listEach(store),
    expected.map((names) => names.join()),
  )
})

test('lists that are too long together are each whole', async (t) => {
  const config = await configured()
  const large = 'x'.repeat(400_000)
  for (const [at, owner] of OWNERS.entries())
    await fill(config, owner, at % 2 === 0 ? [1n, 2n, 3n].map((id) => plant(id, large)) : [])
  const store = await openStore(t, config)
  const lengths = (await listEach(store)).map((names) => names.length)
  assert.deepEqual(
    lengths,
    OWNERS.map((_, at) => (at % 2 === 0 ? 1_200_002 : 0)),
  )
})

test('a cut connection fails the lists that were read together; then they are read', async (t) => {
  const config = await configured()
  for (const owner of OWNERS) await fill(config, owner, [plant(1n, owner)])
  const proxy = await proxyTo(t, config)
  const store = await openStore(t, { ...config, endpoints: [proxy.endpoint], ...hasty(200) })
  for (const mode of ['drop-answers', 'refuse', 'hang'] as const) {
    proxy.mode = mode
    const failed = OWNERS.map(() => 'StoreUnavailable')
    assert.deepEqual(await listEach(store), failed, mode)
  }
  proxy.mode = 'pass'
  assert.deepEqual(await listEach(store), OWNERS)
})

testSecured('a user of etcd reads together under its prefix, and nowhere else', async (t) => {
  const secured = await SecuredCluster.shared(t)
  const config = secured.config()
  await secured.ask('auth/enable')
  const outside = { ...config, prefix: `elsewhere/${config.prefix}` }
  const [inner, outer] = [await openStore(t, config), await openStore(t, outside)]
  for (const owner of OWNERS) assert.equal(await inner.create(owner, plant(1n, owner)), 'stored')
  assert.deepEqual(await listEach(inner), OWNERS)
  assert.deepEqual(
    await listEach(outer),
    OWNERS.map(() => 'StoreUnavailable'),
  )
  await secured.ask('auth/disable')
})
