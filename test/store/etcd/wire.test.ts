import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { PlantTooLarge, StoreFull, StoreUnavailable } from '../../../dist/plants/store.js'
import type { ClientOptions } from '../../../dist/store/etcd/client.js'
import { EtcdStore } from '../../../dist/store/etcd/store.js'
import { readAll } from '../../contract/store.contract.ts'
import { NO_TLS, PATIENT } from '../../support/etcd-store.ts'
import { stopClock, until } from '../../support/time.ts'

/**
 * A status with JSON, or with text as it is; 'hang' never answers, 'cut' ends the connection in
 * mid-answer.
 */
type Reply = readonly [status: number, body: unknown] | 'hang' | 'cut'

interface Asked {
  readonly path: string
  readonly body: string
  readonly authorization: string | undefined
  readonly accept: string | undefined
}

interface Scripted {
  readonly endpoint: string
  /** What was asked, but for the probe of readiness. */
  readonly asked: readonly Asked[]
  /** Answers to come, in turn. */
  script(...replies: readonly Reply[]): void
}

const PREFIX = base64('plants/')
/** No create revision is below 0. Written out: etcd ignores a member that is misspelt. */
const NEVER = `{"key":"${PREFIX}","target":"CREATE","result":"LESS","create_revision":"0"}`
const PROBE =
  `{"compare":[${NEVER}],` +
  `"success":[{"request_delete_range":{"key":"${PREFIX}"}}],` +
  `"failure":[{"request_range":{"key":"${PREFIX}","count_only":true}}]}`
const HEADER = { cluster_id: '1', member_id: '2', revision: '7', raft_term: '3' }
const PUT = [
  200,
  { header: HEADER, succeeded: true, responses: [{ response_put: { header: { revision: '7' } } }] },
] as const
const NO_TOKEN = [
  400,
  { error: 'etcdserver: user name is empty', message: 'etcdserver: user name is empty', code: 3 },
] as const
const NO_SPACE = [
  429,
  {
    error: 'etcdserver: mvcc: database space exceeded',
    message: 'etcdserver: mvcc: database space exceeded',
    code: 8,
  },
] as const
const ALICE = 'plants/YWxpY2U/'
const SEVEN = base64(`${ALICE}8000000000000007`)

function base64(text: string): string {
  return Buffer.from(text).toString('base64')
}

function tokenOf(token: string): Reply {
  return [200, { header: HEADER, token }]
}

/** A server that says what it is told to, as etcd's gateway would, and keeps what it was asked. */
async function scripted(
  t: TestContext,
  probe: Reply = [200, { header: HEADER }],
): Promise<Scripted> {
  const asked: Asked[] = []
  const replies: Reply[] = []
  const server = createServer((req, res) => {
    let body = ''
    req.setEncoding('utf8').on('data', (text: string) => (body += text))
    req.on('end', () => {
      const isProbe = body === PROBE
      const { authorization, accept, 'content-type': type } = req.headers
      const path = `${req.method} ${req.url} ${type}`
      if (!isProbe) asked.push({ path, body, authorization, accept })
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
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => {
    server.close()
    server.closeAllConnections()
  })
  // It listens on TCP.
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked,
    script: (...more) => void replies.push(...more),
  }
}

async function open(
  t: TestContext,
  endpoints: readonly string[],
  options: Partial<ClientOptions> = {},
): Promise<EtcdStore> {
  const config = {
    prefix: 'plants/',
    user: undefined,
    tls: NO_TLS,
    timing: { ...PATIENT, attempt: PATIENT.call },
    ...options,
    endpoints,
  }
  const store = await EtcdStore.open(config, () => {})
  t.after(() => store.close())
  return store
}

function kv(id: string, plant: unknown, createRevision = '5'): unknown {
  return {
    key: base64(`${ALICE}${id}`),
    create_revision: createRevision,
    mod_revision: createRevision,
    version: '1',
    value: base64(JSON.stringify(plant)),
  }
}

test('a create is exactly one transaction: put where the key was never created', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const store = await open(t, [endpoint])
  script(PUT)
  assert.equal(await store.create('alice', { id: 7n, name: 'Oak', tag: '' }), 'stored')
  const value = base64('{"name":"Oak","tag":""}')
  assert.deepEqual(asked, [
    {
      path: 'POST /v3/kv/txn application/json',
      body:
        `{"compare":[{"key":"${SEVEN}","target":"CREATE","result":"EQUAL","create_revision":"0"}],` +
        `"success":[{"request_put":{"key":"${SEVEN}","value":"${value}"}}]}`,
      authorization: undefined,
      accept: 'application/json',
    },
  ])
})

test('where a create did not put, etcd compares; what is there comes in no answer', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const store = await open(t, [endpoint])
  const oak = { id: 7n, name: 'Oak', tag: 'old' }
  const outcome = (succeeded: boolean | undefined, count: string | undefined): Reply => [
    200,
    { header: HEADER, succeeded, responses: [{ response_range: { header: HEADER, count } }] },
  ]
  script([200, { header: HEADER }], outcome(true, '1'))
  assert.equal(await store.create('alice', oak), 'stored')
  const range = `[{"request_range":{"key":"${SEVEN}","count_only":true}}]`
  const value = base64('{"name":"Oak","tag":"old"}')
  assert.deepEqual(
    asked.slice(1).map(({ path, body }) => [path, body]),
    [
      [
        'POST /v3/kv/txn application/json',
        `{"compare":[{"key":"${SEVEN}","target":"VALUE","result":"EQUAL","value":"${value}"}],` +
          `"success":${range},"failure":${range}}`,
      ],
    ],
  )
  script([200, { header: HEADER }], outcome(undefined, '1'))
  assert.equal(await store.create('alice', oak), 'conflict')
  // Deleted by hand between the two.
  script([200, { header: HEADER }], outcome(undefined, undefined))
  await assert.rejects(store.create('alice', oak), StoreUnavailable)
})

test('a list is ranges from the last key on; int64s are strings, and what is left out is false, zero or empty', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const store = await open(t, [endpoint])
  script(
    [
      200,
      {
        header: HEADER,
        kvs: [kv('7fffffffffffffff', { name: 'a' }), kv('8000000000000000', { name: 'b' })],
        more: true,
        count: '4',
      },
    ],
    [
      200,
      {
        header: { ...HEADER, revision: '9' },
        kvs: [
          kv('8000000000000005', { name: 'later' }, '8'),
          kv('8000000000000007', { name: 'c' }),
        ],
        more: true,
        count: '3',
      },
    ],
    [
      200,
      {
        header: { ...HEADER, revision: '9' },
        kvs: [kv('8000000000000009', { name: 'd', tag: 't' }, '7')],
        count: '1',
      },
    ],
  )
  assert.deepEqual(await readAll(store.list('alice', { after: undefined, limit: undefined })), [
    { name: 'a' },
    { name: 'b' },
    { name: 'c' },
    { name: 'd', tag: 't' },
  ])
  const range = (first: string, limit: number): string =>
    JSON.stringify({
      key: base64(first),
      range_end: base64('plants/YWxpY2U0'),
      limit: String(limit),
    })
  assert.deepEqual(
    asked.map(({ path }) => path),
    Array.from({ length: 3 }, () => 'POST /v3/kv/range application/json'),
  )
  assert.equal(asked[0]?.body, range(ALICE, 32))
  assert.equal(asked[1]?.body, range(`${ALICE}8000000000000000\0`, 128))
  assert.equal(asked[2]?.body, range(`${ALICE}8000000000000007\0`, 512))
})

test('an empty list, and one of which etcd leaves everything out, is empty; a limit of 0 asks nothing', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const store = await open(t, [endpoint])
  script([200, { header: HEADER }])
  assert.deepEqual(await readAll(store.list('alice', { after: -1n, limit: 20 })), [])
  assert.equal(
    asked[0]?.body,
    JSON.stringify({
      key: base64(`${ALICE}7fffffffffffffff\0`),
      range_end: base64('plants/YWxpY2U0'),
      limit: '20',
    }),
  )
  assert.deepEqual(await readAll(store.list('alice', { after: undefined, limit: 0 })), [])
  assert.deepEqual(
    await readAll(store.list('alice', { after: 2n ** 63n - 1n, limit: undefined })),
    [],
  )
  assert.equal(asked.length, 1)
})

test('a list that fails on its way rejects, rather than ends', async (t) => {
  const { endpoint, script } = await scripted(t)
  const store = await open(t, [endpoint], { timing: { attempt: 1000, call: 1000, probe: 1000 } })
  script(
    [200, { header: HEADER, kvs: [kv('8000000000000000', { name: 'a' })], more: true, count: '2' }],
    [503, 'no'],
    [503, 'no'],
    [503, 'no'],
    [503, 'no'],
  )
  const list = await store.list('alice', { after: undefined, limit: undefined })
  assert.equal(String(await list.next()), '[{"name":"a"}]')
  await assert.rejects(async () => list.next(), StoreUnavailable)
})

test('whatever another endpoint may answer otherwise is asked of the next one, and that one is kept', async (t) => {
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
      timing: { ...PATIENT, attempt: failure === 'hang' ? 1000 : PATIENT.call },
    })
    first.script(failure)
    second.script(PUT, PUT)
    for (const id of [1n, 2n])
      assert.equal(await store.create('alice', { id, name: 'x' }), 'stored', String(failure))
    assert.deepEqual([first.asked.length, second.asked.length], [1, 2], String(failure))
    assert.equal(first.asked[0]?.body, second.asked[0]?.body)
  }
})

test('a refused connection goes on to the next endpoint; with none left the create is undecided when its time is over', async (t) => {
  const { endpoint, script } = await scripted(t)
  const store = await open(t, ['http://127.0.0.1:1', endpoint])
  script(PUT)
  assert.equal(await store.create('alice', { id: 1n, name: 'x' }), 'stored')
  const none = await open(t, ['http://127.0.0.1:1'], {
    timing: { attempt: 50, call: 150, probe: 150 },
  })
  assert.match(none.unavailableReason() ?? '', /ECONNREFUSED/)
  await assert.rejects(none.create('alice', { id: 1n, name: 'x' }), StoreUnavailable)
  await assert.rejects(none.list('alice', { after: undefined, limit: undefined }), StoreUnavailable)
})

test('the token is sent as it is, and is the same for all calls', async (t) => {
  const { endpoint, asked, script } = await scripted(t, [200, { header: HEADER }])
  script(tokenOf('abc.12'), PUT, PUT)
  const store = await open(t, [endpoint], { user: { name: 'p', password: 'sec"ret' } })
  for (const id of [1n, 2n]) await store.create('alice', { id, name: 'x' })
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
    const stale: Reply = [status, { error: message, message, code }]
    script(tokenOf('one.1'), stale, tokenOf('two.2'), PUT, stale, tokenOf('three.3'), stale)
    const store = await open(t, [endpoint], { user: { name: 'p', password: 'x' } })
    assert.equal(await store.create('alice', { id: 1n, name: 'x' }), 'stored')
    await assert.rejects(
      store.create('alice', { id: 2n, name: 'x' }),
      (error) => error instanceof StoreUnavailable && error.message === message,
    )
    assert.deepEqual(
      asked.map(({ authorization }) => authorization),
      [undefined, 'one.1', undefined, 'two.2', 'two.2', undefined, 'three.3'],
    )
  })
}

test('a user may be configured before the cluster asks for one, and gets a token once it does', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const off: Reply = [
    412,
    {
      error: 'etcdserver: authentication is not enabled',
      message: 'etcdserver: authentication is not enabled',
      code: 9,
    },
  ]
  script(off, PUT, NO_TOKEN, tokenOf('one.1'), PUT)
  const store = await open(t, [endpoint], { user: { name: 'p', password: 'x' } })
  for (const id of [1n, 2n]) assert.equal(await store.create('alice', { id, name: 'x' }), 'stored')
  assert.deepEqual(
    asked.map(({ authorization }) => authorization),
    [undefined, undefined, undefined, undefined, 'one.1'],
  )
})

test('a refused login is repeated once a second, however many calls there are', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const clock = stopClock(t)
  const message = 'etcdserver: authentication failed, invalid user ID or password'
  script([400, { error: message, code: 3 }])
  const store = await open(t, [endpoint], { user: { name: 'p', password: 'x' } })
  assert.equal(store.unavailableReason(), message)
  const create = (id: bigint): Promise<unknown> => store.create('alice', { id, name: 'x' })
  clock.pass(999)
  for (let id = 0n; id < 50n; id++) {
    await assert.rejects(
      create(id),
      (error) => error instanceof StoreUnavailable && error.message === message,
    )
  }
  assert.equal(asked.length, 1)
  clock.pass(1)
  script(tokenOf('one.1'), PUT)
  assert.equal(await create(1n), 'stored')
  assert.equal(asked.length, 3)
})

test('a call denied without a token asks for one, once; with one it does not', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const denied: Reply = [403, { error: 'etcdserver: permission denied', code: 7 }]
  const off: Reply = [412, { error: 'etcdserver: authentication is not enabled', code: 9 }]
  script(off, denied, tokenOf('one.1'), PUT, denied)
  const store = await open(t, [endpoint], { user: { name: 'p', password: 'x' } })
  assert.equal(await store.create('alice', { id: 1n, name: 'x' }), 'stored')
  for (let id = 2n; id < 4n; id++) {
    await assert.rejects(store.create('alice', { id, name: 'x' }), StoreUnavailable)
    script(denied)
  }
  const tokens = asked.map(({ authorization }) => authorization)
  assert.deepEqual(tokens, [undefined, undefined, undefined, 'one.1', 'one.1', 'one.1'])
})

test('a refused client certificate is told as it is, and is not tried for seconds', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const store = await open(t, [endpoint])
  // As etcd's embed/serve.go writes it.
  const said = 'CommonName of client sending a request against gateway will be ignored'
  script([400, `${said} and not used as expected\n`])
  await assert.rejects(
    store.create('alice', { id: 1n, name: 'x' }),
    (error) => error instanceof StoreUnavailable && /has a CommonName$/.test(error.message),
  )
  assert.equal(asked.length, 1)
})

test('a full cluster is ready: after a probe that it refuses comes a read', async (t) => {
  const { endpoint, asked, script } = await scripted(t, NO_SPACE)
  script([200, { header: HEADER }])
  const store = await open(t, [endpoint])
  assert.equal(store.unavailableReason(), undefined)
  const [read] = asked
  assert.equal(read?.body, JSON.stringify({ key: PREFIX }))
  assert.equal(read?.path, 'POST /v3/kv/range application/json')
})

test('without space a create looks whether its plant is there; not there, the store is full, unless an attempt was left open', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const store = await open(t, [endpoint])
  const found: Reply = [
    200,
    { header: HEADER, kvs: [kv('8000000000000007', { name: 'Oak' })], count: '1' },
  ]
  script(
    NO_SPACE,
    found,
    NO_SPACE,
    found,
    NO_SPACE,
    [200, { header: HEADER }],
    [503, 'left open'],
    NO_SPACE,
    [200, { header: HEADER }],
    PUT,
  )
  assert.equal(await store.create('alice', { id: 7n, name: 'Oak' }), 'stored')
  assert.equal(asked[1]?.body, `{"key":"${SEVEN}"}`)
  assert.equal(await store.create('alice', { id: 7n, name: 'Elm' }), 'conflict')
  await assert.rejects(store.create('alice', { id: 7n, name: 'Oak' }), StoreFull)
  await assert.rejects(store.create('alice', { id: 7n, name: 'Oak' }), StoreUnavailable)
  await until('there is no unavailableReason', () => store.unavailableReason() === undefined)
  assert.equal(await store.create('alice', { id: 7n, name: 'Oak' }), 'stored')
})

test('both ways in which etcd calls a request too large are the plant’s own fault', async (t) => {
  const { endpoint, script } = await scripted(t)
  const store = await open(t, [endpoint])
  script(
    [400, { error: 'etcdserver: request is too large', code: 3 }],
    [429, { error: 'grpc: received message larger than max (2200061 vs. 2097152)', code: 8 }],
  )
  for (let i = 0; i < 2; i++)
    await assert.rejects(store.create('alice', { id: 7n, name: 'x' }), PlantTooLarge)
})

test('a request that one member takes for too large is undecided where an attempt at another was left open', async (t) => {
  const [first, second] = [await scripted(t), await scripted(t)]
  const store = await open(t, [first.endpoint, second.endpoint])
  first.script('cut')
  second.script([400, { error: 'etcdserver: request is too large', code: 3 }])
  await assert.rejects(store.create('alice', { id: 7n, name: 'x' }), StoreUnavailable)
})

test('no owner’s keys begin as another’s do, and a cut list is found by its keys where it is long', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const store = await open(t, [endpoint])
  for (const owner of ['', 'a', 'ab', 'abc', 'a/', '/', '\0']) {
    script([200, { header: HEADER }])
    await store.list(owner, { after: undefined, limit: undefined })
  }
  const ranges = asked
    .map(({ body }) => JSON.parse(body) as { key: string; range_end: string })
    .map(
      ({ key, range_end }) =>
        [
          Buffer.from(key, 'base64').toString('latin1'),
          Buffer.from(range_end, 'base64').toString('latin1'),
        ] as const,
    )
  for (const [i, [first, end]] of ranges.entries()) {
    for (const [j, [other]] of ranges.entries())
      if (i !== j) assert.ok(other < first || other >= end, `${first} ${other}`)
  }
})

test('where a list that is long is cut is found by its keys, those of later plants left out', async (t) => {
  const { endpoint, asked, script } = await scripted(t)
  const store = await open(t, [endpoint])
  const entries = (from: number, count: number, createRevision?: string): unknown[] =>
    Array.from({ length: count }, (_, i) =>
      kv((2n ** 63n + BigInt(from + i)).toString(16), { name: 'x' }, createRevision),
    )
  script(
    [200, { header: HEADER, kvs: entries(0, 16), more: true, count: '5000' }],
    [
      200,
      {
        header: HEADER,
        kvs: [...entries(16, 40), ...entries(100, 5, '8')],
        more: true,
        count: '9',
      },
    ],
    [200, { header: HEADER, kvs: entries(200, 944), more: true, count: '9' }],
  )
  const list = await store.list('alice', { after: undefined, limit: 1000 })
  assert.equal(list.cutAt, 1143n)
  const keysBehind = (id: string, limit: string): unknown => ({
    key: base64(`${ALICE}${id}\0`),
    range_end: base64('plants/YWxpY2U0'),
    limit,
    keys_only: true,
  })
  assert.deepEqual(
    asked.slice(1).map(({ body }) => JSON.parse(body) as unknown),
    [keysBehind('800000000000000f', '32'), keysBehind('8000000000000068', '128')],
  )
})
