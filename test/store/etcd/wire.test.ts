import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import type { EtcdConfig } from '../../../dist/store/etcd/client.js'
import type { EtcdStore } from '../../../dist/store/etcd/etcd-store.js'
import { ALL, readAll } from '../../contract/store.contract.ts'
import { type Asked, base64, type FakeReply, fakeEtcd, HEADER } from '../../support/etcd-fake.ts'
import { kv, ok, PUT, refused } from '../../support/etcd-fake.ts'
import { configOf, hasty, openStore, outcomes, PATIENT } from '../../support/etcd-store.ts'

const TXN = '/v3/kv/txn'
const RANGE = '/v3/kv/range'
const ALICE = 'plants/YWxpY2U/'
const ALICE_END = base64('plants/YWxpY2U0')
const SEVEN = base64(`${ALICE}8000000000000007`)
const PREFIX = base64('plants/')

const NO_TOKEN = refused(400, 'etcdserver: user name is empty', 3)
const NO_SPACE = refused(429, 'etcdserver: mvcc: database space exceeded', 8)
const TOO_LARGE = refused(400, 'etcdserver: request is too large', 3)
const AUTH_IS_OFF = refused(412, 'etcdserver: authentication is not enabled', 9)
const DENIED = refused(403, 'etcdserver: permission denied', 7)
const USER = { user: { name: 'p', password: 'sec"ret' } }

function open(
  t: TestContext,
  endpoints: readonly string[],
  options: Partial<EtcdConfig> = {},
): Promise<EtcdStore> {
  const timing = { ...PATIENT, attemptMs: PATIENT.callMs }
  return openStore(t, { ...configOf(endpoints), timing, ...options })
}

/** A store over one server. */
async function setUp(t: TestContext, options: Partial<EtcdConfig> = {}) {
  const fake = await fakeEtcd(t)
  return { ...fake, store: await open(t, [fake.endpoint], options) }
}

function paths(asked: readonly Asked[]): readonly (readonly [path: string, body: string])[] {
  return asked.map(({ path, body }) => [path, body])
}

function create(store: EtcdStore, id: bigint, name = 'x'): Promise<string> {
  return store.create('alice', { id, name })
}

/** An answer with plants of these names by the last digits of their keys. */
function page(names: Readonly<Record<string, string>>, more = true): FakeReply {
  const kvs = Object.entries(names).map(([id, name]) => kv(id, { name }))
  // The gateway leaves out what is false.
  return ok({ kvs, ...(more ? { more } : {}), count: '9' })
}

for (const owners of [['alice'], ['alice', 'bob']]) {
  test(`creates of ${owners.join(' and ')} are one flat transaction, for new keys`, async (t) => {
    const { store, asked, script } = await setUp(t)
    script(PUT)
    const oak = { id: 7n, name: 'Oak', tag: '' }
    const created = await Promise.all(owners.map((owner) => store.create(owner, oak)))
    assert.deepEqual(new Set(created), new Set(['stored']))
    const keys = [SEVEN, base64('plants/Ym9i/8000000000000007')].slice(0, owners.length)
    const unused = '"target":"CREATE","result":"EQUAL","create_revision":"0"'
    const compare = keys.map((key) => `{"key":"${key}",${unused}}`)
    const value = base64('{"name":"Oak","tag":""}')
    const puts = keys.map((key) => `{"request_put":{"key":"${key}","value":"${value}"}}`)
    const counts = keys.map((key) => `{"request_range":{"key":"${key}","count_only":true}}`)
    const branches = `"success":[${puts.join()}],"failure":[${counts.join()}]`
    assert.deepEqual(paths(asked), [[TXN, `{"compare":[${compare.join()}],${branches}}`]])
    const { authorization, accept, 'content-type': type } = asked[0]?.headers ?? {}
    const json = 'application/json'
    assert.deepEqual([authorization, accept, type], [undefined, json, json])
  })
}

test('if a create did not put, etcd compares, and does not send what is there', async (t) => {
  const { store, asked, script } = await setUp(t)
  const oak = { id: 7n, name: 'Oak', tag: 'old' }
  const counted = (succeeded?: boolean, count?: string): FakeReply =>
    ok({ succeeded, responses: [{ response_range: { header: HEADER, count } }] })
  const notPut = counted(undefined, '1')
  script(notPut, counted(true, '1'))
  assert.equal(await store.create('alice', oak), 'stored')
  const range = `[{"request_range":{"key":"${SEVEN}","count_only":true}}]`
  const value = base64('{"name":"Oak","tag":"old"}')
  const body =
    `{"compare":[{"key":"${SEVEN}","target":"VALUE","result":"EQUAL","value":"${value}"}],` +
    `"success":${range},"failure":${range}}`
  assert.deepEqual(paths(asked).slice(1), [[TXN, body]])
  script(notPut, counted(undefined, '1'))
  assert.equal(await store.create('alice', oak), 'conflict')
  // Deleted by hand between the two.
  script(notPut, counted())
  await assert.rejects(store.create('alice', oak), StoreUnavailable)
})

for (const [what, refusal] of [
  ['full', NO_SPACE],
  ['too large', TOO_LARGE],
] as const) {
  for (const ids of [[7n], [7n, 8n]]) {
    test(`${ids.length} "${what}" after an attempt that was left open: undecided`, async (t) => {
      const { store, asked, script } = await setUp(t)
      script([503, 'left open'], refusal, ok())
      const created = await outcomes(ids.map((id) => create(store, id)))
      assert.deepEqual(
        created,
        ids.map(() => 'StoreUnavailable'),
      )
      assert.equal(asked.length, 2)
    })
  }
}

test('a list is ranges, each from the key after the last one of the page before', async (t) => {
  const { store, asked, script } = await setUp(t)
  script(
    page({ '7fffffffffffffff': 'a', '8000000000000000': 'b' }),
    page({ '8000000000000005': 'later', '8000000000000007': 'c' }),
    page({ '8000000000000009': 'd' }, false),
  )
  const listed = await readAll(store.list('alice', ALL))
  assert.deepEqual(
    listed,
    ['a', 'b', 'later', 'c', 'd'].map((name) => ({ name })),
  )
  const range = (first: string, limit: string): readonly [string, string] => [
    RANGE,
    JSON.stringify({ key: base64(first), range_end: ALICE_END, limit }),
  ]
  assert.deepEqual(paths(asked), [
    range(ALICE, '32'),
    range(`${ALICE}8000000000000000\0`, '128'),
    range(`${ALICE}8000000000000007\0`, '512'),
  ])
})

test('an answer without entries is an empty list; a limit of 0 asks nothing', async (t) => {
  const { store, asked, script } = await setUp(t)
  for (const [after, limit, first, wanted] of [
    [-1n, 20, '7fffffffffffffff\0', '20'],
    [undefined, 0],
    [2n ** 63n - 1n, undefined, 'ffffffffffffffff\0', '32'],
  ] as const) {
    const before = asked.length
    if (wanted) script(ok())
    assert.deepEqual(await readAll(store.list('alice', { ...ALL, after, limit })), [])
    const message = { key: base64(`${ALICE}${first}`), range_end: ALICE_END, limit: wanted }
    assert.deepEqual(paths(asked).slice(before), wanted ? [[RANGE, JSON.stringify(message)]] : [])
  }
})

test('plants that are deleted by hand while they are listed leave no empty chunk', async (t) => {
  const { store, script } = await setUp(t)
  for (const limit of [undefined, 20]) {
    script(page({ '8000000000000000': 'a' }), ok())
    const list = store.list('alice', { ...ALL, limit })
    assert.deepEqual(await readAll(list), [{ name: 'a' }])
  }
})

test('a list that fails after its first page rejects, and does not end', async (t) => {
  const { store, script } = await setUp(t, hasty(300))
  script(page({ '8000000000000000': 'a' }), DENIED)
  const list = await store.list('alice', ALL)
  assert.equal((await list.next()).value?.json, '[{"name":"a"}]')
  await assert.rejects(async () => list.next(), StoreUnavailable)
})

for (const [what, failure] of [
  ['no answer', 'hang'],
  ['a connection that is cut', 'cut'],
  ['a refused connection', undefined],
  ['no leader', refused(503, 'etcdserver: no leader', 14)],
  ['503 of a proxy', [503, 'upstream is gone']],
  ['200 without JSON', [200, 'no JSON']],
  ['500', [500, { message: 'x', code: 2 }]],
  ['a gateway that is off', [404, '404 page not found\n']],
  ['429', refused(429, 'etcdserver: too many requests', 8)],
  ['a stopping member up to 3.5', refused(408, 'context canceled', 1)],
  ['a stopping member from 3.6', refused(499, 'context canceled', 1)],
] as const) {
  test(`${what} is repeated on the next endpoint, which stays in use`, async (t) => {
    const [first, second] = [await fakeEtcd(t), await fakeEtcd(t)]
    const endpoints = [failure ? first.endpoint : 'http://127.0.0.1:1', second.endpoint]
    const store = await open(t, endpoints, {
      timing: { ...PATIENT, attemptMs: failure === 'hang' ? 300 : PATIENT.callMs },
    })
    if (failure) first.script(failure)
    second.script(PUT, PUT)
    for (const id of [1n, 2n]) assert.equal(await create(store, id), 'stored')
    assert.deepEqual([first.asked.length, second.asked.length], [failure ? 1 : 0, 2])
    if (failure) assert.equal(first.asked[0]?.body, second.asked[0]?.body)
  })
}

const [ONE, TWO, THREE] = [1, 2, 3].map((number) => ok({ token: `token.${number}` }))
const STALE = refused(401, 'etcdserver: invalid auth token', 16)
const OLD = refused(400, 'etcdserver: revision of auth store is old', 3)
/** What creates become: stored or unavailable; and the number of each call's token. */
for (const [what, replies, created, sent] of [
  ['is the same for all calls', [ONE, PUT, PUT], 'ss', '-11'],
  ['is renewed once if invalid', [ONE, STALE, TWO, PUT, STALE, THREE, STALE], 'su', '-1-22-3'],
  ['is renewed once if old', [ONE, OLD, TWO, PUT, OLD, THREE, OLD], 'su', '-1-22-3'],
  ['is renewed once if etcd hangs up', [ONE, 'cut', TWO, PUT], 's', '-1-2'],
  ['is renewed once if etcd fails', [ONE, [500, ''], TWO, PUT], 's', '-1-2'],
  ['comes once etcd asks for one', [AUTH_IS_OFF, PUT, NO_TOKEN, ONE, PUT], 'ss', '----1'],
  ['comes once a call is denied', [AUTH_IS_OFF, DENIED, ONE, PUT, DENIED, DENIED], 'suu', '---111'],
] as const) {
  test(`the token ${what}`, async (t) => {
    const { endpoint, asked, script } = await fakeEtcd(t)
    script(...replies.map((reply) => reply ?? 'hang'))
    const store = await open(t, [endpoint], USER)
    for (const outcome of created) {
      const [each] = await outcomes([create(store, 1n)])
      assert.equal(each, outcome === 's' ? 'stored' : 'StoreUnavailable')
    }
    const tokens = asked.map(({ headers }) => headers.authorization)
    // Without "Bearer".
    const wanted = [...sent].map((number) => (number === '-' ? undefined : `token.${number}`))
    assert.deepEqual(tokens, wanted)
    const login = ['/v3/auth/authenticate', '{"name":"p","password":"sec\\"ret"}']
    assert.deepEqual(paths(asked)[0], login)
  })
}

test('a token is dropped once every endpoint has failed, and not before', async (t) => {
  const [first, second] = [await fakeEtcd(t), await fakeEtcd(t)]
  first.script(ONE ?? 'hang', 'cut')
  second.script('cut', TWO ?? 'hang', PUT)
  const store = await open(t, [first.endpoint, second.endpoint], USER)
  assert.equal(await create(store, 1n), 'stored')
  const tokens = (each: typeof first) => each.asked.map(({ headers }) => headers.authorization)
  assert.deepEqual(tokens(first), [undefined, 'token.1'])
  assert.deepEqual(tokens(second), ['token.1', undefined, 'token.2'])
})

test('a token that etcd has not refused is dropped at most once a second', async (t) => {
  let logins = 0
  const answer = ({ path }: Asked): FakeReply => {
    if (path === TXN) return [503, '']
    logins += 1
    return ok({ token: `token.${logins}` })
  }
  const { endpoint } = await fakeEtcd(t, answer)
  const store = await open(t, [endpoint], { ...USER, ...hasty(500) })
  const startedAt = performance.now()
  for (let id = 0n; id < 3n; id++)
    await outcomes(Array.from({ length: 20 }, () => create(store, id)))
  const seconds = Math.ceil((performance.now() - startedAt) / 1000)
  assert.ok(logins > 1 && logins <= 2 + seconds, `${logins} in ${seconds} s`)
})

test('a login that one member does not answer is repeated on the next', async (t) => {
  const [dead, alive] = [await fakeEtcd(t), await fakeEtcd(t)]
  dead.script('cut', 'cut', 'cut')
  alive.script(ok({ token: 'good.1' }), PUT)
  const store = await open(t, ['http://127.0.0.1:1', dead.endpoint, alive.endpoint], USER)
  assert.equal(store.unavailableReason(), undefined)
  assert.equal(await create(store, 7n), 'stored')
  assert.equal(dead.asked.length, 1)
})

test('a refused login is repeated once a second, however many calls there are', async (t) => {
  const { endpoint, asked, script } = await fakeEtcd(t)
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const message = 'etcdserver: authentication failed, invalid user ID or password'
  script([400, { error: message, code: 3 }])
  const store = await open(t, [endpoint], USER)
  const settings = 'PLANTS_ETCD_USERNAME and PLANTS_ETCD_PASSWORD_FILE, or the option etcdUsername'
  const reason = `${message}; look at ${settings}`
  assert.equal(store.unavailableReason(), reason)
  t.mock.timers.tick(999)
  for (let id = 0n; id < 50n; id++)
    await assert.rejects(create(store, id), { name: 'StoreUnavailable', message: reason })
  assert.equal(asked.length, 1)
  t.mock.timers.tick(1)
  script(ok({ token: 'one.1' }), PUT)
  assert.equal(await create(store, 1n), 'stored')
  assert.equal(asked.length, 3)
})

test('a full cluster that refuses the probe is ready if it can be read', async (t) => {
  const answer = ({ path }: Asked): FakeReply => (path === TXN ? NO_SPACE : ok())
  const { endpoint, probes } = await fakeEtcd(t, undefined, answer)
  const store = await open(t, [endpoint])
  assert.equal(store.unavailableReason(), undefined)
  // No create revision is below 0. Written out, because etcd ignores a misspelled member.
  const probe =
    `{"compare":[{"key":"${PREFIX}","target":"CREATE","result":"LESS","create_revision":"0"}],` +
    `"success":[{"request_delete_range":{"key":"${PREFIX}"}}],` +
    `"failure":[{"request_range":{"key":"${PREFIX}","count_only":true}}]}`
  assert.deepEqual(paths(probes)[0], [TXN, probe])
  assert.deepEqual(paths(probes)[1], [RANGE, JSON.stringify({ key: PREFIX })])
})
