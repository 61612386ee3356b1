import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { exportStore } from '../../../dist/cli/export.js'
import { importStore } from '../../../dist/cli/import.js'
import { Progress } from '../../../dist/cli/progress.js'
import { readConfig } from '../../../dist/settings/read.js'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import type { EtcdConfig } from '../../../dist/store/etcd/client.js'
import { EtcdStore } from '../../../dist/store/etcd/store.js'
import { plant, readAll, shown } from '../../contract/store.contract.ts'
import {
  ALL,
  configOf,
  configured,
  fill,
  hasty,
  namesIn,
  openStore,
  proxyTo,
  startCluster,
  testUnless,
} from '../../support/etcd-store.ts'
import { gateway } from '../../support/etcd.ts'
import { etcdctl, NO_ETCDCTL, NO_SECURED_ETCD, SecuredCluster } from '../../support/etcd-tls.ts'
import { call, post, type Reply } from '../../support/http.ts'
import { run } from '../../support/process.ts'
import { THOROUGH } from '../../support/scale.ts'
import { startService, temporaryDirectory } from '../../support/service.ts'
import { until } from '../../support/time.ts'
import { token } from '../../support/tokens.ts'
import { verdict } from '../../support/verdict.ts'

const test = testUnless(NO_ETCDCTL)
const testSecured = testUnless(NO_SECURED_ETCD)

function names({ json }: Reply): readonly string[] {
  // The service's own list.
  return (json() as readonly { readonly name: string }[]).map(({ name }) => name)
}

async function readyStatus(adminPort: number): Promise<number> {
  return (await call(adminPort, { path: '/readyz' })).status
}

test('a key is prefix, base64url of the owner, sign-flipped id; a value is JSON', async (t) => {
  const config = await configured()
  const store = await openStore(t, config)
  for (const id of [-1n, 0n, 1n])
    await store.create('a/\u0000é', plant(id, 'Oak', id === 0n ? undefined : 'old'))
  const owner = `${config.prefix}${Buffer.from('a/\u0000é').toString('base64url')}`
  assert.equal(
    etcdctl(config.endpoints.join(), ['get', '--prefix', config.prefix]),
    `${owner}/7fffffffffffffff\n{"name":"Oak","tag":"old"}\n` +
      `${owner}/8000000000000000\n{"name":"Oak"}\n` +
      `${owner}/8000000000000001\n{"name":"Oak","tag":"old"}\n`,
  )
})

test('plants that release 2.0.0 stored are listed, are the same, and get company', async (t) => {
  const config = await configured()
  // As that release wrote them, after the prefix; values in base64.
  const stored = [
    [
      'YsO4Yi8_Pg/0000000000000000',
      'eyJuYW1lIjoiXHUwMDAwIPCfjLUgXCLDpFwiIC8g4oCoIiwidGFnIjoiIn0=',
    ],
    ['YsO4Yi8_Pg/8000000000000000', 'eyJuYW1lIjoiIn0='],
    ['YsO4Yi8_Pg/ffffffffffffffff', 'eyJuYW1lIjoiT2FrIiwidGFnIjoib2xkfyJ9'],
    ['YWxpY2U/8000000000000007', 'eyJuYW1lIjoiTW9uc3RlcmEiLCJ0YWciOiJpbmRvb3IifQ=='],
  ] as const
  for (const [key, value] of stored) {
    const message = { key: Buffer.from(config.prefix + key).toString('base64'), value }
    const { status } = await gateway(config.endpoints.join(), '/v3/kv/put', message)
    assert.equal(status, 200)
  }
  const store = await openStore(t, config)
  const owner = 'b\u00f8b/?>'
  const first = plant(-(2n ** 63n), '\u0000 \u{1f335} "\u00e4" / \u2028', '')
  const last = plant(2n ** 63n - 1n, 'Oak', 'old\u007f')
  const listed = [first, plant(0n, ''), last].map(shown)
  assert.deepEqual(await readAll(store.list(owner, ALL)), listed)
  assert.deepEqual(await namesIn(store), ['Monstera'])
  for (const each of [first, plant(0n, ''), last])
    assert.equal(await store.create(owner, each), 'stored')
  assert.equal(await store.create(owner, plant(0n, 'other')), 'conflict')
  assert.equal(await store.create(owner, plant(1n, 'new')), 'stored')
  assert.deepEqual(await readAll(store.list(owner, ALL)), listed.toSpliced(2, 0, { name: 'new' }))
})

test('two instances: what one acknowledged is in the next list of the other', async (t) => {
  const etcd = await configured()
  const [one, other] = [await startService(t, { etcd }), await startService(t, { etcd })]
  for (const path of ['/plants', '/plants?limit=3', '/plants?limit=50']) {
    const owner = { token: token(`owner of ${path}`) }
    for (let id = 0; id > (THOROUGH ? -20 : -8); id--) {
      const name = `${path} ${id}`
      const { port } = id % 2 === 0 ? one : other
      assert.equal((await post(port, { id, name }, owner)).status, 200)
      // Each list must also replace what a list before it showed.
      for (const each of [other, one, other])
        assert.equal(names(await call(each.port, { path, ...owner }))[0], name)
    }
  }
  assert.ok(!existsSync(one.dataDirectory), 'nothing is written to the data directory')
})

test('two instances: paging continues on the other; one of two creates wins', async (t) => {
  const etcd = await configured()
  const ports = [(await startService(t, { etcd })).port, (await startService(t, { etcd })).port]
  const [one = 0, other = 0] = ports
  const plants = Array.from({ length: 90 }, (_, id) => plant(BigInt(id)))
  await fill(etcd, 'alice', plants)
  const found: string[] = []
  let path: string | undefined = '/plants?limit=40'
  for (let i = 0; path !== undefined; i++) {
    const page: Reply = await call(i % 2 === 0 ? one : other, { path })
    found.push(...names(page))
    const next = /^<(.*)>; rel="next"$/.exec(String(page.headers['link'] ?? ''))?.[1]
    path = next?.replace('?', '/plants?')
  }
  assert.deepEqual(
    found,
    plants.map(({ name }) => name),
  )
  const both = [post(one, { id: 100, name: 'a' }), post(other, { id: 100, name: 'b' })]
  assert.deepEqual((await Promise.all(both)).map(({ status }) => status).sort(), [200, 409])
})

test('413 if etcd finds a plant too large; a full body of a long owner fits', async (t) => {
  const { port } = await startService(t, { etcd: await configured(), maxBodyBytes: 4 * 2 ** 20 })
  for (const bytes of [1_600_000, 2_100_000])
    assert.equal(verdict(await post(port, { id: 1, name: 'x'.repeat(bytes) })), 'bodyTooLarge')
  const long = { token: token('o'.repeat(8500)) }
  const name = 'x'.repeat(2 ** 20 - 30)
  assert.equal((await post(port, { id: 1, name }, long)).status, 200)
  const { text } = await call(port, { ...long, path: '/plants?limit=1' })
  assert.equal(text.length, name.length + '[{"name":""}]'.length)
  assert.equal((await call(port)).text, '[]', 'nothing of a refused plant is stored')
})

test('plants of 1 MB after small ones are listed whole, in smaller pages', async (t) => {
  const store = await openStore(t, await configured())
  const large = 'x'.repeat(1_000_000)
  const plants = [
    ...Array.from({ length: 16 }, (_, i) => plant(BigInt(i), `${i}`)),
    ...Array.from({ length: THOROUGH ? 40 : 4 }, (_, i) => plant(BigInt(100 + i), `${i} ${large}`)),
    plant(1000n),
  ]
  for (const each of plants) assert.equal(await store.create('alice', each), 'stored')
  const found = await namesIn(store)
  // Not deepEqual: describing a difference of megabytes takes it minutes.
  assert.equal(found.length, plants.length)
  assert.ok(found.every((name, i) => name === plants[i]?.name))
})

test('a full etcd: 507 to new plants, 200 to stored ones, lists, green, recovers', async (t) => {
  const cluster = await startCluster(t, 1, { flags: ['--quota-backend-bytes', '5000000'] })
  const etcd = configOf(cluster.endpoints, 'full/')
  const { port, adminPort } = await startService(t, { etcd })
  const name = 'x'.repeat(1_000_000)
  let kept = 0
  let reply = await post(port, { id: 0, name })
  for (; reply.status === 200; reply = await post(port, { id: kept, name })) {
    kept += 1
    assert.ok(kept < 40)
  }
  assert.equal(verdict(reply), 'storageFull')
  assert.equal((await post(port, { id: 0, name })).status, 200)
  assert.equal((await post(port, { id: 0, name: 'other' })).status, 409)
  assert.equal(verdict(await post(port, { id: 1000, name: 'small' })), 'storageFull')
  assert.equal(names(await call(port)).length, kept)
  assert.equal(await readyStatus(adminPort), 200)
  const endpoint = cluster.endpoints.join()
  assert.equal((await fetch(`${endpoint}/health`)).status, 503, 'etcd calls itself unhealthy')
  // As an operator does: make room, then take the alarm back.
  etcdctl(endpoint, ['del', '--prefix', 'full/'])
  const status = etcdctl(endpoint, ['endpoint', 'status', '--write-out=json'])
  etcdctl(endpoint, ['compact', /"revision":(\d+)/.exec(status)?.[1] ?? ''])
  etcdctl(endpoint, ['defrag'])
  etcdctl(endpoint, ['alarm', 'disarm'])
  assert.equal((await post(port, { id: 1000, name: 'small' })).status, 200)
})

test('readiness follows etcd, with a reason; a start does not wait for etcd', async (t) => {
  const config = await configured()
  const proxy = await proxyTo(t, config)
  proxy.mode = 'refuse'
  const etcd = { ...config, endpoints: [proxy.endpoint], ...hasty(100, 300) }
  const { port, adminPort } = await startService(t, { etcd })
  assert.equal(await readyStatus(adminPort), 503)
  assert.equal(verdict(await post(port, { id: 1, name: 'x' })), 'storageUnavailable')
  assert.equal(verdict(await call(port)), 'storageUnavailable')
  proxy.mode = 'pass'
  await until('it is ready', async () => (await readyStatus(adminPort)) === 200)
  // A loaded machine may take longer than this service waits.
  await until(
    'plants are kept',
    async () => (await post(port, { id: 1, name: 'x' })).status === 200,
  )
  proxy.mode = 'hang'
  await until('the reason is told', async () => {
    const { status, text } = await call(adminPort, { path: '/readyz' })
    return status === 503 && /"storage":"etcd did not answer in time: .*timed out/.test(text)
  })
  proxy.mode = 'pass'
  await until('it is ready again', async () => (await readyStatus(adminPort)) === 200)
})

test('a list that etcd breaks off destroys the connection, and never ends well', async (t) => {
  const config = await configured()
  const proxy = await proxyTo(t, config)
  const name = 'x'.repeat(2000)
  await fill(
    config,
    'alice',
    Array.from({ length: 160 }, (_, i) => plant(BigInt(i), name)),
  )
  // The first page is shorter, the second one longer.
  proxy.answerMaxBytes = 200_000
  const etcd = { ...config, endpoints: [proxy.endpoint], ...hasty(1000, 1500) }
  const { port } = await startService(t, { etcd })
  const headers = { authorization: `Bearer ${token('alice')}` }
  const ask = () => fetch(`http://127.0.0.1:${port}/plants`, { headers })
  let response = await ask()
  await until('a list has begun', async () => response.ok || (response = await ask()).ok)
  proxy.mode = 'refuse'
  await assert.rejects(response.text())
})

test('a create whose answer is lost is stored by the next endpoint, or undecided', async (t) => {
  const config = await configured()
  const [lossy, good] = [await proxyTo(t, config), await proxyTo(t, config)]
  const onlyLossy = { ...config, endpoints: [lossy.endpoint] }
  const both = await openStore(t, { ...config, endpoints: [lossy.endpoint, good.endpoint] })
  const impatient = await openStore(t, { ...onlyLossy, ...hasty(200) })
  const alone = await openStore(t, onlyLossy)
  lossy.mode = 'drop-answers'
  assert.equal(await both.create('alice', plant(1n, 'a')), 'stored')
  const { dropped } = lossy
  assert.ok(dropped >= 1)
  // Repeated until an answer was dropped, so that etcd has certainly carried it out.
  do await assert.rejects(impatient.create('alice', plant(2n, 'b')), StoreUnavailable)
  while (lossy.dropped === dropped)
  lossy.mode = 'pass'
  assert.equal(await alone.create('alice', plant(2n, 'b')), 'stored')
  assert.equal(await alone.create('alice', plant(2n, 'c')), 'conflict')
  assert.deepEqual(await readAll(alone.list('alice', ALL)), [{ name: 'a' }, { name: 'b' }])
})

test('users: a right password works, also after a restart of etcd', async (t) => {
  const cluster = await startCluster(t, 1, { flags: ['--auth-token-ttl', '2'] })
  const endpoint = cluster.endpoints.join()
  for (const command of [
    'user add root:pw',
    'user grant-role root root',
    'user add p:secret',
    'role add plants',
    'role grant-permission plants --prefix=true readwrite plants/',
    'user grant-role p plants',
  ])
    etcdctl(endpoint, command.split(' '))
  const config = { ...configOf(cluster.endpoints), user: { name: 'p', password: 'secret' } }
  const store = await openStore(t, config)
  assert.equal(await store.create('alice', plant(1n)), 'stored', 'users are not asked for yet')
  etcdctl(endpoint, ['auth', 'enable'])
  assert.equal(await store.create('alice', plant(2n)), 'stored')
  etcdctl(endpoint, ['--user', 'root:pw', 'role', 'grant-permission', 'plants', 'read', 'x'])
  assert.equal(await store.create('alice', plant(3n)), 'stored')
  const [member] = cluster.members
  assert.ok(member)
  await member.end()
  cluster.startMember(member)
  assert.equal(await store.create('alice', plant(4n)), 'stored')
  assert.equal((await namesIn(store)).length, 4)
  await until('it is ready', () => store.unavailableReason() === undefined)
  // A wrong password, missing rights and a missing user are named, though etcd is healthy.
  for (const [other, reason] of [
    [{ ...config, user: { name: 'p', password: 'wrong' } }, /authentication failed/],
    [{ ...config, prefix: 'other/' }, /permission denied/],
    [{ ...config, user: undefined }, /user name is empty/],
  ] as const) {
    const refused = await openStore(t, other)
    assert.match(refused.unavailableReason() ?? '', reason)
    await assert.rejects(refused.create('alice', plant(1n)), StoreUnavailable)
    assert.equal((await fetch(`${endpoint}/health`)).status, 200, 'etcd calls itself healthy')
  }
})

testSecured('TLS: nothing works without the CA or the client certificate', async (t) => {
  const { authority, endpoints } = await SecuredCluster.shared(t)
  const ca = { PLANTS_ETCD_CA_FILE: authority.file('ca.pem') }
  const client = {
    PLANTS_ETCD_CERT_FILE: authority.file('client.pem'),
    PLANTS_ETCD_KEY_FILE: authority.file('client.key'),
  }
  const start = (files: Readonly<Record<string, string>>) => {
    const env = { PLANTS_ETCD_ENDPOINTS: endpoints.join(), ...files }
    return startService(t, { etcd: readConfig(env, 'storage').etcd })
  }
  const { port, adminPort } = await start({ ...ca, ...client })
  await until('it is ready', async () => (await readyStatus(adminPort)) === 200)
  assert.equal((await post(port, { id: 1, name: 'x' })).status, 200)
  const refused = async (wrong: Readonly<Record<string, string>>, reason: RegExp) => {
    const { adminPort } = await start(wrong)
    await until(`the reason is ${reason}`, async () => {
      const { status, text } = await call(adminPort, { path: '/readyz' })
      assert.equal(status, 503)
      return reason.test(text)
    })
  }
  await Promise.all([
    refused(client, /self.signed|unable to (?:get|verify)/),
    refused(ca, /certificate required|bad certificate|ECONNRESET|socket hang up/),
  ])
})

test('import stores the embedded plants in etcd; check and export name etcdctl', async (t) => {
  const directory = await temporaryDirectory()
  const etcd = await configured()
  const { endpoints, prefix } = etcd
  const env = { PLANTS_ETCD_ENDPOINTS: endpoints.join(), PLANTS_ETCD_PREFIX: prefix }
  const embedded = await startService(t)
  for (const [id, owner] of [
    ['-9223372036854775808', 'alice'],
    ['9223372036854775807', 'alice'],
    ['1', 'bob'],
  ] as const) {
    const body = `{"id":${id},"name":"${owner}"}`
    assert.equal((await post(embedded.port, body, { token: token(owner) })).status, 200)
  }
  const file = join(directory, 'plants.db')
  await exportStore(embedded.dataDirectory, file)
  const server = await startService(t, { etcd })
  const bob = { token: token('bob') }
  assert.equal((await post(server.port, { id: 1, name: 'other' }, bob)).status, 200)
  const lines: string[] = []
  const progress = new Progress((line) => lines.push(line))
  const importTo = (config: EtcdConfig) =>
    importStore((log) => EtcdStore.open(config, log), file, progress)
  await assert.rejects(importTo(etcd), /^Error: 2 of 3 plants stored/)
  assert.deepEqual(lines, [
    'not imported: owner "bob", id 1: the store has another plant with this id\n',
  ])
  assert.deepEqual((await call(server.port)).json(), [{ name: 'alice' }, { name: 'alice' }])
  const fresh = await run(['import', file], { ...env, PLANTS_ETCD_PREFIX: `${prefix}fresh/` })
  const stdout = `3 plants read from ${file}; all of them are in the store\n`
  assert.deepEqual(fresh, { status: 0, stdout, stderr: '' })
  await assert.rejects(
    importTo({ ...etcd, endpoints: ['http://127.0.0.1:1'], ...hasty(100, 200) }),
    /^Error: nothing can be kept at the moment: etcd did not answer in time: .*ECONNREFUSED/,
  )
  for (const command of [['check'], ['export', join(directory, 'other.db')]]) {
    const { status, stderr } = await run(command, env)
    assert.equal(status, 1)
    assert.match(stderr, /is for the embedded store: .*etcdctl/)
  }
})
