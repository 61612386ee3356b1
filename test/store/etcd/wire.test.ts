import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { PlantTooLarge, StoreFull, StoreUnavailable } from '../../../dist/plants/store.js'
import { binary, Message } from '../../../dist/store/etcd/protobuf.js'
import type { EtcdConfig, EtcdStore } from '../../../dist/store/etcd/store.js'
import { readAll } from '../../contract/store.contract.ts'
import { ALL, configOf, hasty, openStore, PATIENT } from '../../support/etcd-store.ts'
import {
  type Field,
  type GrpcCall,
  type GrpcReply,
  readAnswer,
  type Refusal,
  servingGrpc,
  written,
} from '../../support/serving-grpc.ts'
import { stopClock, until } from '../../support/time.ts'

interface Scripted {
  readonly endpoint: string
  /** The calls, without the readiness probes. */
  readonly asked: readonly GrpcCall[]
  /** Adds answers for the next calls. */
  script(...replies: readonly GrpcReply[]): void
}

const TXN = 'POST /etcdserverpb.KV/Txn application/grpc'
const RANGE = 'POST /etcdserverpb.KV/Range application/grpc'
const ALICE = 'plants/YWxpY2U/'
const ALICE_END = 'plants/YWxpY2U0'
const SEVEN = `${ALICE}8000000000000007`
const PREFIX = 'plants/'

// The numbers are those of etcd's rpc.proto: written out, because etcd ignores unknown fields.
/** Succeeds if the key was never created. */
const unused = (key: string): Field => [
  1,
  [
    [1, 0],
    [2, 1],
    [3, key],
    [5, 0],
  ],
]
const put = (key: string, value: string): Field => [
  2,
  [
    [
      2,
      [
        [1, key],
        [2, binary(value)],
      ],
    ],
  ],
]
const range = (first: string, limit: number, keysOnly = 0): readonly Field[] => [
  [1, first],
  [2, ALICE_END],
  [3, limit],
  [8, keysOnly],
]
/** A transaction that reads ranges and compares nothing. */
const reads = (...ranges: readonly (readonly Field[])[]): readonly Field[] =>
  ranges.map((each) => [2, [[1, each]]])
const COUNT_PREFIX: Field = [
  1,
  [
    [1, PREFIX],
    [9, 1],
  ],
]
/** No create revision is below 0. */
const PROBE = written([
  [
    1,
    [
      [1, 2],
      [2, 1],
      [3, PREFIX],
      [5, 0],
    ],
  ],
  [2, [[3, [[1, PREFIX]]]]],
  [3, [COUNT_PREFIX]],
])

function header(revision = 7): Field {
  return [
    1,
    [
      [1, 1],
      [2, 2],
      [3, revision],
      [4, 3],
    ],
  ]
}

const PUT = ok([2, 1], [3, [[2, [header()]]]])
const NOT_PUT = ok()
const NO_TOKEN = refused(3, 'etcdserver: user name is empty')
const NO_SPACE = refused(8, 'etcdserver: mvcc: database space exceeded')
const TOO_LARGE = refused(3, 'etcdserver: request is too large')
const AUTH_IS_OFF = refused(9, 'etcdserver: authentication is not enabled')
const USER = { user: { name: 'p', password: 'x' } }

function ok(...fields: readonly Field[]): readonly Field[] {
  return [header(), ...fields]
}

function refused(code: number, message: string): Refusal {
  return { code, message }
}

/** A server that answers as a member of etcd would, by script. */
async function scripted(t: TestContext, probe: GrpcReply = ok()): Promise<Scripted> {
  const asked: GrpcCall[] = []
  const replies: GrpcReply[] = []
  const endpoint = await servingGrpc(t, (call) => {
    if (call.message.equals(PROBE)) return probe
    asked.push(call)
    return replies.shift() ?? 'hang'
  })
  return { endpoint, asked, script: (...more) => void replies.push(...more) }
}

/** What was called, as fields. */
function assertAsked(asked: readonly GrpcCall[], ...expected: [string, readonly Field[]][]): void {
  assert.deepEqual(
    asked.map(({ target, message }) => [target, message.toString('hex')]),
    expected.map(([target, message]) => [target, written(message).toString('hex')]),
  )
}

function open(
  t: TestContext,
  endpoints: readonly string[],
  options: Partial<EtcdConfig> = {},
): Promise<EtcdStore> {
  const timing = { ...PATIENT, attempt: PATIENT.call }
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

function tokens(asked: readonly GrpcCall[]): readonly (string | undefined)[] {
  return asked.map(({ token }) => token)
}

function create(store: EtcdStore, id: bigint, name = 'x'): Promise<unknown> {
  return store.create('alice', { id, name })
}

function unavailable(message: string) {
  return (error: unknown): boolean => error instanceof StoreUnavailable && error.message === message
}

function entry(id: string, plant: unknown, createRevision = 5): Field {
  const value = binary(JSON.stringify(plant))
  return [
    2,
    [
      [1, `${ALICE}${id}`],
      [2, createRevision],
      [3, createRevision],
      [4, 1],
      [5, value],
    ],
  ]
}

const MORE: Field = [3, 1]
const count = (plants: number): Field => [4, plants]

test('a create is exactly one transaction: put where the key was never created', async (t) => {
  const { store, asked, script } = await setUp(t)
  script(PUT)
  assert.equal(await store.create('alice', { id: 7n, name: 'Oak', tag: '' }), 'stored')
  assertAsked(asked, [TXN, [unused(SEVEN), put(SEVEN, '{"name":"Oak","tag":""}')]])
  assert.equal(asked[0]?.token, undefined)
  // As protoc writes it.
  const key = Buffer.from(SEVEN).toString('hex')
  const value = Buffer.from('{"name":"Oak","tag":""}').toString('hex')
  const compare = `0a270800` + `1001` + `1a1f${key}` + `2800`
  assert.equal(asked[0]?.message.toString('hex'), `${compare}123c123a0a1f${key}1217${value}`)
})

test('if a create did not put, etcd compares, and does not send what is there', async (t) => {
  const { store, asked, script } = await setUp(t)
  const oak = { id: 7n, name: 'Oak', tag: 'old' }
  const counted = (...counts: readonly Field[]): Field => [3, [[1, [header(), ...counts]]]]
  script(NOT_PUT, ok([2, 1], counted(count(1))))
  assert.equal(await store.create('alice', oak), 'stored')
  const counting: Field = [
    1,
    [
      [1, SEVEN],
      [9, 1],
    ],
  ]
  const value = '{"name":"Oak","tag":"old"}'
  const compare: Field = [
    1,
    [
      [1, 0],
      [2, 3],
      [3, SEVEN],
      [7, value],
    ],
  ]
  const compared: Field[] = [compare, [2, [counting]], [3, [counting]]]
  assertAsked(asked, [TXN, [unused(SEVEN), put(SEVEN, value)]], [TXN, compared])
  script(NOT_PUT, ok(counted(count(1))))
  assert.equal(await store.create('alice', oak), 'conflict')
  // Deleted by hand between the two.
  script(NOT_PUT, ok(counted()))
  await assert.rejects(store.create('alice', oak), StoreUnavailable)
})

test('a group is exactly one flat transaction: all comparisons, then all puts', async (t) => {
  const { store, asked, script } = await setUp(t)
  script(PUT)
  const oaks = [7n, 8n].map((id) => store.create('alice', { id, name: `Oak ${id}` }))
  assert.deepEqual(await Promise.all(oaks), ['stored', 'stored'])
  const [seven, eight] = [7, 8].map((id): [string, string] => [
    `${ALICE}800000000000000${id}`,
    `{"name":"Oak ${id}"}`,
  ]) as [[string, string], [string, string]]
  const compares = [unused(seven[0]), unused(eight[0])]
  assertAsked(asked, [TXN, [...compares, put(...seven), put(...eight)]])
})

test('a group that etcd refuses is created one by one, unless an attempt was open', async (t) => {
  const { store, asked, script } = await setUp(t)
  const two = (): Promise<unknown> =>
    Promise.all([7n, 8n].map((id) => create(store, id).catch((error: unknown) => error)))
  for (const refusal of [
    TOO_LARGE,
    refused(3, 'etcdserver: too many operations in txn request'),
    refused(7, 'etcdserver: permission denied'),
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

test('a list: a transaction, then ranges, each from the key after the last one', async (t) => {
  const { store, asked, script } = await setUp(t)
  script(
    readAnswer([
      entry('7fffffffffffffff', { name: 'a' }),
      entry('8000000000000000', { name: 'b' }),
      MORE,
      count(4),
    ]),
    [
      header(9),
      entry('8000000000000005', { name: 'later' }, 8),
      entry('8000000000000007', { name: 'c' }),
      MORE,
      count(3),
    ],
    // "more" is false, so etcd leaves it out.
    [header(9), entry('8000000000000009', { name: 'd', tag: 't' }, 7), count(1)],
  )
  assert.deepEqual(await readAll(store.list('alice', ALL)), [
    { name: 'a' },
    { name: 'b' },
    { name: 'c' },
    { name: 'd', tag: 't' },
  ])
  assertAsked(
    asked,
    [TXN, reads(range(ALICE, 32))],
    [RANGE, range(`${ALICE}8000000000000000\0`, 128)],
    [RANGE, range(`${ALICE}8000000000000007\0`, 512)],
  )
})

test('an answer without entries is an empty list; a limit of 0 asks nothing', async (t) => {
  const { store, asked, script } = await setUp(t)
  script(readAnswer([]))
  assert.deepEqual(await readAll(store.list('alice', { after: -1n, limit: 20 })), [])
  assert.deepEqual(await readAll(store.list('alice', { after: undefined, limit: 0 })), [])
  const last = 2n ** 63n - 1n
  script(readAnswer([]))
  assert.deepEqual(await readAll(store.list('alice', { after: last, limit: undefined })), [])
  assertAsked(
    asked,
    [TXN, reads(range(`${ALICE}7fffffffffffffff\0`, 20))],
    [TXN, reads(range(`${ALICE}ffffffffffffffff\0`, 32))],
  )
})

test('a list that fails after its first page rejects, and does not end', async (t) => {
  const { store, script } = await setUp(t, hasty(1000))
  const no: GrpcReply = [503, 'no']
  const first = readAnswer([entry('8000000000000000', { name: 'a' }), MORE, count(2)])
  script(first, no, no, no, no)
  const list = store.list('alice', ALL)
  assert.equal((await list.next()).value?.json, '[{"name":"a"}]')
  await assert.rejects(async () => list.next(), StoreUnavailable)
})

test('a failure that may pass is repeated on the next endpoint, which stays in use', async (t) => {
  const failures: readonly GrpcReply[] = [
    'hang',
    'cut',
    refused(14, 'etcdserver: no leader'),
    refused(1, 'context canceled'),
    [503, 'upstream is gone'],
    [200, 'not of gRPC'],
    refused(2, 'x'),
    refused(8, 'etcdserver: too many requests'),
  ]
  for (const failure of failures) {
    const [first, second] = [await scripted(t), await scripted(t)]
    const store = await open(t, [first.endpoint, second.endpoint], {
      timing: { ...PATIENT, attempt: failure === 'hang' ? 1000 : PATIENT.call },
    })
    first.script(failure)
    second.script(PUT, PUT)
    for (const id of [1n, 2n]) assert.equal(await create(store, id), 'stored', String(failure))
    assert.deepEqual([first.asked.length, second.asked.length], [1, 2], String(failure))
    assert.deepEqual(first.asked[0]?.message, second.asked[0]?.message)
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

test('the token is the same for all calls', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  script(ok([2, 'abc.12']), PUT, PUT)
  const store = await open(t, [endpoint], { user: { name: 'p', password: 'sec"ret' } })
  for (const id of [1n, 2n]) await create(store, id)
  const login = 'POST /etcdserverpb.Auth/Authenticate application/grpc'
  assert.deepEqual(
    asked.map(({ target, token }) => [target, token]),
    [
      [login, undefined],
      [TXN, 'abc.12'],
      [TXN, 'abc.12'],
    ],
  )
  assert.deepEqual(
    asked[0]?.message,
    written([
      [1, 'p'],
      [2, 'sec"ret'],
    ]),
  )
})

for (const [code, message] of [
  [16, 'etcdserver: invalid auth token'],
  [3, 'etcdserver: revision of auth store is old'],
] as const) {
  test(`the token is renewed once on "${message}"`, async (t) => {
    const { endpoint, asked, script } = await scripted(t)
    const stale = refused(code, message)
    script(ok([2, 'one.1']), stale, ok([2, 'two.2']), PUT)
    script(stale, ok([2, 'three.3']), stale)
    const store = await open(t, [endpoint], USER)
    assert.equal(await create(store, 1n), 'stored')
    await assert.rejects(create(store, 2n), unavailable(message))
    const sent = [undefined, 'one.1', undefined, 'two.2', 'two.2', undefined, 'three.3']
    assert.deepEqual(tokens(asked), sent)
  })
}

test('a user configured before the cluster asks for one gets a token once it does', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  script(AUTH_IS_OFF, PUT, NO_TOKEN, ok([2, 'one.1']), PUT)
  const store = await open(t, [endpoint], USER)
  for (const id of [1n, 2n]) assert.equal(await create(store, id), 'stored')
  assert.deepEqual(tokens(asked), [undefined, undefined, undefined, undefined, 'one.1'])
})

test('a refused login is repeated once a second, however many calls there are', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const clock = stopClock(t)
  const message = 'etcdserver: authentication failed, invalid user ID or password'
  script(refused(3, message))
  const store = await open(t, [endpoint], USER)
  const settings = 'PLANTS_ETCD_USERNAME and PLANTS_ETCD_PASSWORD_FILE, or the option etcdUsername'
  const reason = `${message}; look at ${settings}`
  assert.equal(store.unavailableReason(), reason)
  clock.pass(999)
  for (let id = 0n; id < 50n; id++) await assert.rejects(create(store, id), unavailable(reason))
  assert.equal(asked.length, 1)
  clock.pass(1)
  script(ok([2, 'one.1']), PUT)
  assert.equal(await create(store, 1n), 'stored')
  assert.equal(asked.length, 3)
})

test('a call denied without a token gets one, once; a call with a token does not', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const denied = refused(7, 'etcdserver: permission denied')
  script(AUTH_IS_OFF, denied, ok([2, 'one.1']), PUT, denied)
  const store = await open(t, [endpoint], USER)
  assert.equal(await create(store, 1n), 'stored')
  for (let id = 2n; id < 4n; id++) {
    await assert.rejects(create(store, id), StoreUnavailable)
    script(denied)
  }
  assert.deepEqual(tokens(asked), [undefined, undefined, undefined, 'one.1', 'one.1', 'one.1'])
})

test('a full cluster that refuses the probe is ready if it can be read', async (t) => {
  const { endpoint, asked, script } = await scripted(t, NO_SPACE)
  script(ok())
  const store = await open(t, [endpoint])
  assert.equal(store.unavailableReason(), undefined)
  assertAsked(asked, [RANGE, [[1, PREFIX]]])
})

test('full: a stored plant stays stored; StoreFull only if no attempt was left open', async (t) => {
  const { store, asked, script } = await setUp(t)
  const oak = ok(entry('8000000000000007', { name: 'Oak' }), count(1))
  const [absent, leftOpen] = [ok(), [503, 'left open'] as const]
  script(NO_SPACE, oak)
  assert.equal(await create(store, 7n, 'Oak'), 'stored')
  assert.deepEqual(asked[1]?.message, written([[1, SEVEN]]))
  script(NO_SPACE, oak)
  assert.equal(await create(store, 7n, 'Elm'), 'conflict')
  script(NO_SPACE, absent)
  await assert.rejects(create(store, 7n, 'Oak'), StoreFull)
  script(leftOpen, NO_SPACE, absent)
  await assert.rejects(create(store, 7n, 'Oak'), StoreUnavailable)
  await until('it is ready', () => store.unavailableReason() === undefined)
  script(PUT)
  assert.equal(await create(store, 7n, 'Oak'), 'stored')
})

test('both messages of etcd for a request that is too large are PlantTooLarge', async (t) => {
  const { store, script } = await setUp(t)
  const larger = 'grpc: received message larger than max (2200061 vs. 2097152)'
  script(TOO_LARGE, refused(8, larger))
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
    script(readAnswer([]))
    await store.list(owner, ALL).next()
  }
  const ranges = asked
    .flatMap(({ message }) => new Message(message).messages(2))
    .flatMap((operation) => operation.messages(1))
    .map((message) => [message.text(1), message.text(2)] as const)
  assert.equal(ranges.length, 7)
  for (const [i, [first, end]] of ranges.entries()) {
    for (const [j, [other]] of ranges.entries())
      if (i !== j) assert.ok(other < first || other >= end, `${first} ${other}`)
  }
})

test('a long list finds its cut by keys alone, without plants created later', async (t) => {
  const { store, asked, script } = await setUp(t)
  const entries = (from: number, plants: number, createRevision?: number): Field[] =>
    Array.from({ length: plants }, (_, i) =>
      entry((2n ** 63n + BigInt(from + i)).toString(16), { name: 'x' }, createRevision),
    )
  script(
    readAnswer([...entries(0, 16), MORE, count(5000)]),
    ok(...entries(16, 40), ...entries(100, 5, 8), MORE, count(9)),
    ok(...entries(200, 944), MORE, count(9)),
  )
  await store.list('alice', { after: undefined, limit: 1000 }).next()
  const keysAfter = (id: string, limit: number): [string, readonly Field[]] => [
    RANGE,
    range(`${ALICE}${id}\0`, limit, 1),
  ]
  assertAsked(asked.slice(1), keysAfter('800000000000000f', 32), keysAfter('8000000000000068', 128))
})
