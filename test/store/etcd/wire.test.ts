import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { type PlantChunk, PlantTooLarge } from '../../../dist/plants/store.js'
import { StoreFull, StoreUnavailable } from '../../../dist/plants/store.js'
import type { EtcdConfig } from '../../../dist/store/etcd/client.js'
import type { EtcdStore } from '../../../dist/store/etcd/store.js'
import { readAll } from '../../contract/store.contract.ts'
import { ALL, configOf, hasty, openStore, PATIENT } from '../../support/etcd-store.ts'
import { serving } from '../../support/serving.ts'
import { until } from '../../support/time.ts'

/** A status with JSON, or with text as it is; no answer at all; a connection cut in mid-answer. */
type Reply = readonly [status: number, body: unknown] | 'hang' | 'cut'

interface Asked {
  readonly path: string
  readonly body: string
  readonly authorization: string | undefined
  readonly accept: string | undefined
}

interface Scripted {
  readonly endpoint: string
  /** The requests, without the readiness probes. */
  readonly asked: readonly Asked[]
  /** Adds answers for the next requests. */
  script(...replies: readonly Reply[]): void
}

const TXN = 'POST /v3/kv/txn application/json'
const RANGE = 'POST /v3/kv/range application/json'
const ALICE = 'plants/YWxpY2U/'
const ALICE_END = base64('plants/YWxpY2U0')
const SEVEN = base64(`${ALICE}8000000000000007`)
const PREFIX = base64('plants/')
/** No create revision is below 0. Written out, because etcd ignores a misspelled member. */
const NEVER = `{"key":"${PREFIX}","target":"CREATE","result":"LESS","create_revision":"0"}`
const PROBE =
  `{"compare":[${NEVER}],` +
  `"success":[{"request_delete_range":{"key":"${PREFIX}"}}],` +
  `"failure":[{"request_range":{"key":"${PREFIX}","count_only":true}}]}`

const HEADER = { cluster_id: '1', member_id: '2', revision: '7', raft_term: '3' }
const PUT = ok({ succeeded: true, responses: [{ response_put: { header: { revision: '7' } } }] })
const NOT_PUT = counted(1)
const NO_TOKEN = refused(400, 'etcdserver: user name is empty', 3)
const NO_SPACE = refused(429, 'etcdserver: mvcc: database space exceeded', 8)
const TOO_LARGE = refused(400, 'etcdserver: request is too large', 3)
const AUTH_IS_OFF = refused(412, 'etcdserver: authentication is not enabled', 9)
const USER = { user: { name: 'p', password: 'x' } }

function base64(text: string): string {
  return Buffer.from(text).toString('base64')
}

function ok(members: object = {}): Reply {
  return [200, { header: HEADER, ...members }]
}

/** A transaction that did not put, and counted its keys. */
function counted(...counts: readonly number[]): Reply {
  const responses = counts.map((count) => ({
    response_range: { header: HEADER, ...(count === 0 ? {} : { count: String(count) }) },
  }))
  return ok({ responses })
}

function refused(status: number, message: string, code: number): Reply {
  return [status, { error: message, message, code }]
}

/** A server that answers as etcd's gateway would, by script. */
async function scripted(t: TestContext, probe: Reply = ok()): Promise<Scripted> {
  const asked: Asked[] = []
  const replies: Reply[] = []
  const endpoint = await serving(t, (req, res) => {
    let body = ''
    req.setEncoding('utf8').on('data', (text: string) => (body += text))
    req.on('end', () => {
      const isProbe = body === PROBE
      const { authorization, accept, 'content-type': type } = req.headers
      if (!isProbe)
        asked.push({ path: `${req.method} ${req.url} ${type}`, body, authorization, accept })
      const reply = isProbe ? probe : replies.shift()
      if (reply === undefined || reply === 'hang') return
      if (reply === 'cut') {
        res.writeHead(200, { 'Content-Length': 1000 }).write('{"header":')
        setTimeout(() => res.destroy(), 5)
        return
      }
      const [status, content] = reply
      res.writeHead(status).end(typeof content === 'string' ? content : JSON.stringify(content))
    })
  })
  return { endpoint, asked, script: (...more) => void replies.push(...more) }
}

function open(
  t: TestContext,
  endpoints: readonly string[],
  options: Partial<EtcdConfig> = {},
): Promise<EtcdStore> {
  const timing = { ...PATIENT, attemptMs: PATIENT.callMs }
  return openStore(t, { ...configOf(endpoints), timing, ...options })
}

/** A store over one scripted server. */
async function setUp(
  t: TestContext,
  options: Partial<EtcdConfig> = {},
): Promise<Scripted & { readonly store: EtcdStore }> {
  const server = await scripted(t)
  return { ...server, store: await open(t, [server.endpoint], options) }
}

function tokens(asked: readonly Asked[]): readonly (string | undefined)[] {
  return asked.map(({ authorization }) => authorization)
}

function create(store: EtcdStore, id: bigint, name = 'x'): Promise<unknown> {
  return store.create('alice', { id, name })
}

function unavailable(message: string) {
  return (error: unknown): boolean => error instanceof StoreUnavailable && error.message === message
}

function kv(id: string, plant: unknown): unknown {
  return {
    key: base64(`${ALICE}${id}`),
    create_revision: '5',
    mod_revision: '5',
    version: '1',
    value: base64(JSON.stringify(plant)),
  }
}

test('a create is exactly one transaction: put where the key was never created', async (t) => {
  const { store, asked, script } = await setUp(t)
  script(PUT)
  assert.equal(await store.create('alice', { id: 7n, name: 'Oak', tag: '' }), 'stored')
  const value = base64('{"name":"Oak","tag":""}')
  const body =
    `{"compare":[{"key":"${SEVEN}","target":"CREATE","result":"EQUAL","create_revision":"0"}],` +
    `"success":[{"request_put":{"key":"${SEVEN}","value":"${value}"}}],` +
    `"failure":[{"request_range":{"key":"${SEVEN}","count_only":true}}]}`
  const accept = 'application/json'
  assert.deepEqual(asked, [{ path: TXN, body, authorization: undefined, accept }])
})

test('if a create did not put, etcd compares, and does not send what is there', async (t) => {
  const { store, asked, script } = await setUp(t)
  const oak = { id: 7n, name: 'Oak', tag: 'old' }
  const compared = (succeeded?: boolean, count?: string): Reply =>
    ok({ succeeded, responses: [{ response_range: { header: HEADER, count } }] })
  script(NOT_PUT, compared(true, '1'))
  assert.equal(await store.create('alice', oak), 'stored')
  const range = `[{"request_range":{"key":"${SEVEN}","count_only":true}}]`
  const value = base64('{"name":"Oak","tag":"old"}')
  const body =
    `{"compare":[{"key":"${SEVEN}","target":"VALUE","result":"EQUAL","value":"${value}"}],` +
    `"success":${range},"failure":${range}}`
  const [, second] = asked
  assert.deepEqual([asked.length, second?.path, second?.body], [2, TXN, body])
  script(NOT_PUT, compared(undefined, '1'))
  assert.equal(await store.create('alice', oak), 'conflict')
  // Deleted by hand between the two.
  script(NOT_PUT, compared())
  await assert.rejects(store.create('alice', oak), StoreUnavailable)
})

test('a group is exactly one flat transaction: all comparisons, then all puts', async (t) => {
  const { store, asked, script } = await setUp(t)
  script(PUT)
  const oaks = [7n, 8n].map((id) => store.create('alice', { id, name: `Oak ${id}` }))
  assert.deepEqual(await Promise.all(oaks), ['stored', 'stored'])
  const keys = [7, 8].map((id) => base64(`${ALICE}800000000000000${id}`))
  const unused = '"target":"CREATE","result":"EQUAL","create_revision":"0"'
  const compare = keys.map((key) => `{"key":"${key}",${unused}}`)
  const puts = keys.map((key, i) => {
    const value = base64(`{"name":"Oak ${7 + i}"}`)
    return `{"request_put":{"key":"${key}","value":"${value}"}}`
  })
  const counts = keys.map((key) => `{"request_range":{"key":"${key}","count_only":true}}`)
  const body =
    `{"compare":[${compare.join()}],"success":[${puts.join()}],` + `"failure":[${counts.join()}]}`
  assert.deepEqual(
    asked.map((each) => [each.path, each.body]),
    [[TXN, body]],
  )
})

test('of a transaction that did not put, the free keys share one more', async (t) => {
  const { store, asked, script } = await setUp(t)
  const [first, same, third, other] = [6n, 7n, 8n, 9n]
  const compared = (succeeded: boolean): Reply =>
    ok({ succeeded, responses: [{ response_range: { header: HEADER, count: '1' } }] })
  script(counted(0, 1, 0, 1), PUT, compared(true), compared(false))
  const creates = [first, same, third, other].map((id) => create(store, id))
  const outcomes = await Promise.all(creates)
  assert.deepEqual([outcomes[0], outcomes[2]], ['stored', 'stored'])
  assert.deepEqual([outcomes[1], outcomes[3]].sort(), ['conflict', 'stored'])
  // The keys that each transaction compares.
  const compares = asked.map(({ body }) => {
    // The store's own requests.
    const { compare } = JSON.parse(body) as { compare: { key: string }[] }
    return compare.map(({ key }) => Buffer.from(key, 'base64').toString().at(-1)).join('')
  })
  assert.deepEqual(compares.sort(), ['6789', '68', '7', '9'])
})

test('a group that etcd refuses is created one by one, unless an attempt was open', async (t) => {
  const { store, asked, script } = await setUp(t)
  const two = (): Promise<unknown> =>
    Promise.all([7n, 8n].map((id) => create(store, id).catch((error: unknown) => error)))
  for (const refusal of [
    TOO_LARGE,
    refused(400, 'etcdserver: too many operations in txn request', 3),
    refused(403, 'etcdserver: permission denied', 7),
  ]) {
    script(refusal, PUT, PUT)
    assert.deepEqual(await two(), ['stored', 'stored'])
  }
  assert.equal(asked.length, 9)
  // The open attempt may still put both: neither "full" nor "too large" would be certain.
  for (const refusal of [NO_SPACE, TOO_LARGE]) {
    script([503, 'left open'], refusal)
    const errors = await two()
    assert.ok(Array.isArray(errors) && errors.every((each) => each instanceof StoreUnavailable))
  }
  assert.equal(asked.length, 13)
})

test('a list is ranges, each from the key after the last one of the page before', async (t) => {
  const { store, asked, script } = await setUp(t)
  script(
    ok({
      kvs: [kv('7fffffffffffffff', { name: 'a' }), kv('8000000000000000', { name: 'b' })],
      more: true,
      count: '4',
    }),
    ok({
      kvs: [kv('8000000000000005', { name: 'later' }), kv('8000000000000007', { name: 'c' })],
      more: true,
      count: '3',
    }),
    // "more" is false, so the gateway leaves it out.
    ok({ kvs: [kv('8000000000000009', { name: 'd', tag: 't' })], count: '1' }),
  )
  assert.deepEqual(await readAll(store.list('alice', ALL)), [
    { name: 'a' },
    { name: 'b' },
    { name: 'later' },
    { name: 'c' },
    { name: 'd', tag: 't' },
  ])
  const range = (first: string, limit: string): readonly [string, string] => [
    RANGE,
    JSON.stringify({ key: base64(first), range_end: ALICE_END, limit }),
  ]
  assert.deepEqual(
    asked.map(({ path, body }) => [path, body]),
    [
      range(ALICE, '32'),
      range(`${ALICE}8000000000000000\0`, '128'),
      range(`${ALICE}8000000000000007\0`, '512'),
    ],
  )
})

test('an answer without entries is an empty list; a limit of 0 asks nothing', async (t) => {
  const { store, asked, script } = await setUp(t)
  script(ok())
  assert.deepEqual(await readAll(store.list('alice', { after: -1n, limit: 20 })), [])
  const key = base64(`${ALICE}7fffffffffffffff\0`)
  assert.equal(asked[0]?.body, JSON.stringify({ key, range_end: ALICE_END, limit: '20' }))
  assert.deepEqual(await readAll(store.list('alice', { after: undefined, limit: 0 })), [])
  assert.equal(asked.length, 1)
  const last = 2n ** 63n - 1n
  script(ok())
  assert.deepEqual(await readAll(store.list('alice', { after: last, limit: undefined })), [])
  const afterAll = { key: base64(`${ALICE}ffffffffffffffff\0`), range_end: ALICE_END, limit: '32' }
  assert.equal(asked[1]?.body, JSON.stringify(afterAll))
})

test('plants that are deleted by hand while they are listed leave no empty chunk', async (t) => {
  const { store, script } = await setUp(t)
  const first = ok({ kvs: [kv('8000000000000000', { name: 'a' })], more: true, count: '2' })
  for (const limit of [undefined, 20]) {
    script(first, ok())
    const list = store.list('alice', { after: undefined, limit })
    assert.deepEqual(await readAll(list), [{ name: 'a' }])
  }
})

test('a list that fails after its first page rejects, and does not end', async (t) => {
  const { store, script } = await setUp(t, hasty(1000))
  const no: Reply = [503, 'no']
  const first = ok({ kvs: [kv('8000000000000000', { name: 'a' })], more: true, count: '2' })
  script(first, no, no, no, no)
  const list = await store.list('alice', ALL)
  assert.equal((await list.next()).value?.json, '[{"name":"a"}]')
  await assert.rejects(async () => list.next(), StoreUnavailable)
})

test('a failure that may pass is repeated on the next endpoint, which stays in use', async (t) => {
  const failures: readonly Reply[] = [
    'hang',
    'cut',
    [503, { error: 'etcdserver: no leader', code: 14 }],
    [503, 'upstream is gone'],
    [200, 'no JSON'],
    [500, { message: 'x', code: 2 }],
    [429, { message: 'etcdserver: too many requests', code: 8 }],
  ]
  for (const failure of failures) {
    const [first, second] = [await scripted(t), await scripted(t)]
    const store = await open(t, [first.endpoint, second.endpoint], {
      timing: { ...PATIENT, attemptMs: failure === 'hang' ? 1000 : PATIENT.callMs },
    })
    first.script(failure)
    second.script(PUT, PUT)
    for (const id of [1n, 2n]) assert.equal(await create(store, id), 'stored', String(failure))
    assert.deepEqual([first.asked.length, second.asked.length], [1, 2], String(failure))
    assert.equal(first.asked[0]?.body, second.asked[0]?.body)
  }
})

test('a refused connection: the next endpoint is used; with none left, undecided', async (t) => {
  const closed = 'http://127.0.0.1:1'
  const { endpoint, script } = await scripted(t)
  const store = await open(t, [closed, endpoint])
  script(PUT)
  assert.equal(await create(store, 1n), 'stored')
  const none = await open(t, [closed], hasty(50, 150))
  assert.match(none.unavailableReason() ?? '', /ECONNREFUSED/)
  await assert.rejects(create(none, 1n), StoreUnavailable)
  await assert.rejects(readAll(none.list('alice', ALL)), StoreUnavailable)
})

test('the token is sent without "Bearer", and is the same for all calls', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  script(ok({ token: 'abc.12' }), PUT, PUT)
  const store = await open(t, [endpoint], { user: { name: 'p', password: 'sec"ret' } })
  for (const id of [1n, 2n]) await create(store, id)
  assert.deepEqual(
    asked.map(({ path, authorization }) => [path.split(' ')[1], authorization]),
    [
      ['/v3/auth/authenticate', undefined],
      ['/v3/kv/txn', 'abc.12'],
      ['/v3/kv/txn', 'abc.12'],
    ],
  )
  assert.equal(asked[0]?.body, '{"name":"p","password":"sec\\"ret"}')
})

for (const [status, message, code] of [
  [401, 'etcdserver: invalid auth token', 16],
  [400, 'etcdserver: revision of auth store is old', 3],
] as const) {
  test(`the token is renewed once on "${message}"`, async (t) => {
    const { endpoint, asked, script } = await scripted(t)
    const stale = refused(status, message, code)
    script(ok({ token: 'one.1' }), stale, ok({ token: 'two.2' }), PUT)
    script(stale, ok({ token: 'three.3' }), stale)
    const store = await open(t, [endpoint], USER)
    assert.equal(await create(store, 1n), 'stored')
    await assert.rejects(create(store, 2n), unavailable(message))
    const sent = [undefined, 'one.1', undefined, 'two.2', 'two.2', undefined, 'three.3']
    assert.deepEqual(tokens(asked), sent)
  })
}

test('a login that one member does not answer is repeated on the next', async (t) => {
  const [dead, alive] = [await scripted(t), await scripted(t)]
  dead.script('cut', 'cut', 'cut')
  alive.script(ok({ token: 'good.1' }), PUT)
  const store = await open(t, ['http://127.0.0.1:1', dead.endpoint, alive.endpoint], USER)
  assert.equal(store.unavailableReason(), undefined)
  assert.equal(await create(store, 7n), 'stored')
  assert.equal(dead.asked.length, 1)
})

test('a user configured before the cluster asks for one gets a token once it does', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  script(AUTH_IS_OFF, PUT, NO_TOKEN, ok({ token: 'one.1' }), PUT)
  const store = await open(t, [endpoint], USER)
  for (const id of [1n, 2n]) assert.equal(await create(store, id), 'stored')
  assert.deepEqual(tokens(asked), [undefined, undefined, undefined, undefined, 'one.1'])
})

test('a refused login is repeated once a second, however many calls there are', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const message = 'etcdserver: authentication failed, invalid user ID or password'
  script([400, { error: message, code: 3 }])
  const store = await open(t, [endpoint], USER)
  const settings = 'PLANTS_ETCD_USERNAME and PLANTS_ETCD_PASSWORD_FILE, or the option etcdUsername'
  const reason = `${message}; look at ${settings}`
  assert.equal(store.unavailableReason(), reason)
  t.mock.timers.tick(999)
  for (let id = 0n; id < 50n; id++) await assert.rejects(create(store, id), unavailable(reason))
  assert.equal(asked.length, 1)
  t.mock.timers.tick(1)
  script(ok({ token: 'one.1' }), PUT)
  assert.equal(await create(store, 1n), 'stored')
  assert.equal(asked.length, 3)
})

test('a call denied without a token gets one, once; a call with a token does not', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const denied: Reply = [403, { error: 'etcdserver: permission denied', code: 7 }]
  script(AUTH_IS_OFF, denied, ok({ token: 'one.1' }), PUT, denied)
  const store = await open(t, [endpoint], USER)
  assert.equal(await create(store, 1n), 'stored')
  for (let id = 2n; id < 4n; id++) {
    await assert.rejects(create(store, id), StoreUnavailable)
    script(denied)
  }
  assert.deepEqual(tokens(asked), [undefined, undefined, undefined, 'one.1', 'one.1', 'one.1'])
})

test('a refused client certificate is reported, and the call is not repeated', async (t) => {
  const { store, asked, script } = await setUp(t)
  // As etcd's embed/serve.go writes it.
  const said = 'CommonName of client sending a request against gateway will be ignored'
  script([400, `${said} and not used as expected\n`])
  const reason = 'etcd refuses the client certificate, because it has a CommonName'
  await assert.rejects(create(store, 1n), unavailable(reason))
  assert.equal(asked.length, 1)
})

test('a full cluster that refuses the probe is ready if it can be read', async (t) => {
  const { endpoint, asked, script } = await scripted(t, NO_SPACE)
  script(ok())
  const store = await open(t, [endpoint])
  assert.equal(store.unavailableReason(), undefined)
  const [read] = asked
  assert.equal(read?.body, JSON.stringify({ key: PREFIX }))
  assert.equal(read?.path, RANGE)
})

test('full: a stored plant stays stored; StoreFull only if no attempt was left open', async (t) => {
  const { store, asked, script } = await setUp(t)
  const oak = ok({ kvs: [kv('8000000000000007', { name: 'Oak' })], count: '1' })
  const [absent, leftOpen] = [ok(), [503, 'left open'] as const]
  script(NO_SPACE, oak)
  assert.equal(await create(store, 7n, 'Oak'), 'stored')
  assert.equal(asked[1]?.body, `{"key":"${SEVEN}"}`)
  script(NO_SPACE, oak)
  assert.equal(await create(store, 7n, 'Elm'), 'conflict')
  script(NO_SPACE, absent)
  await assert.rejects(create(store, 7n, 'Oak'), StoreFull)
  script(leftOpen, NO_SPACE)
  await assert.rejects(create(store, 7n, 'Oak'), StoreUnavailable)
  await until('it is ready', () => store.unavailableReason() === undefined)
  script(PUT)
  assert.equal(await create(store, 7n, 'Oak'), 'stored')
})

test('both messages of etcd for a request that is too large are PlantTooLarge', async (t) => {
  const { store, script } = await setUp(t)
  const larger = 'grpc: received message larger than max (2200061 vs. 2097152)'
  script([400, { error: 'etcdserver: request is too large', code: 3 }])
  script([429, { error: larger, code: 8 }])
  for (let i = 0; i < 2; i++) await assert.rejects(create(store, 7n), PlantTooLarge)
})

test('too large for one member is undecided if another attempt was left open', async (t) => {
  const [first, second] = [await scripted(t), await scripted(t)]
  const store = await open(t, [first.endpoint, second.endpoint])
  first.script('cut')
  second.script(TOO_LARGE)
  await assert.rejects(create(store, 7n), StoreUnavailable)
})

test('the range of an owner contains no beginning of another range', async (t) => {
  const { store, asked, script } = await setUp(t)
  for (const owner of ['', 'a', 'ab', 'abc', 'a/', '/', '\0']) {
    script(ok())
    await readAll(store.list(owner, ALL))
  }
  const text = (encoded: string): string => Buffer.from(encoded, 'base64').toString('latin1')
  const ranges = asked
    // The store's own requests.
    .map(({ body }) => JSON.parse(body) as { key: string; range_end: string })
    .map(({ key, range_end: end }) => [text(key), text(end)] as const)
  assert.equal(ranges.length, 7)
  for (const [i, [first, end]] of ranges.entries()) {
    for (const [j, [other]] of ranges.entries())
      if (i !== j) assert.ok(other < first || other >= end, `${first} ${other}`)
  }
})

test('a page asks for no more than its limit; its last chunk says that more follow', async (t) => {
  const { store, asked, script } = await setUp(t)
  const entries = (from: number, count: number): unknown[] =>
    Array.from({ length: count }, (_, i) =>
      kv((2n ** 63n + BigInt(from + i)).toString(16), { name: 'x' }),
    )
  script(
    ok({ kvs: entries(0, 32), more: true, count: '5000' }),
    ok({ kvs: entries(32, 128), more: true, count: '4968' }),
    ok({ kvs: entries(160, 40), more: true, count: '4840' }),
  )
  const list = store.list('alice', { after: undefined, limit: 200 })
  const chunks: (PlantChunk | undefined)[] = []
  for (const _ of [1, 2, 3, 4]) chunks.push((await list.next()).value)
  assert.deepEqual(
    chunks.map((chunk) => chunk && [chunk.count, chunk.cutAt]),
    [[32, 31n], [128, 159n], [40, 199n], undefined],
  )
  // The store's own requests.
  const limits = asked.map(({ body }) => (JSON.parse(body) as { limit: string }).limit)
  assert.deepEqual(limits, ['32', '128', '40'])
})
