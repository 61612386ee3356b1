import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { exportToFile } from '../../../dist/store/sqljs/inspect.js'
import { importStore } from '../../../dist/cli/import.js'
import { Progress } from '../../../dist/cli/progress.js'
import type { EtcdConfig } from '../../../dist/store/etcd/client.js'
import { EtcdStore } from '../../../dist/store/etcd/etcd-store.js'
import { ALL, plant, readAll, shown } from '../../contract/store.contract.ts'
import { gateway, NO_ETCD } from '../../support/etcd.ts'
import { base64 } from '../../support/etcd-fake.ts'
import { configOf, configured, fill, hasty, hurry, namesIn } from '../../support/etcd-store.ts'
import { openStore, proxyTo, startCluster, testUnless } from '../../support/etcd-store.ts'
import { untilReadiness } from '../../support/etcd-store.ts'
import { call, post, type Reply } from '../../support/http.ts'
import { command } from '../../support/process.ts'
import { startService, temporaryDirectory } from '../../support/service.ts'
import { until } from '../../support/time.ts'
import { token } from '../../support/tokens.ts'
import { verdict } from '../../support/verdict.ts'

const test = testUnless(NO_ETCD)

function names({ json }: Reply): readonly string[] {
  // The service's own list.
  return (json() as readonly { readonly name: string }[]).map(({ name }) => name)
}

test('plants that release 2.0.0 stored are listed, are the same, and get company', async (t) => {
  const config = await configured()
  // As that release wrote them, after the prefix; values in base64.
  for (const [key, value] of [
    ['YsO4Yi8_Pg/0000000000000000', 'eyJuYW1lIjoiXHUwMDAwIPCfjLUgXCLDpFwiIC8g4oCoIiwidGFnIjoiIn0='],
    ['YsO4Yi8_Pg/8000000000000000', 'eyJuYW1lIjoiIn0='],
    ['YsO4Yi8_Pg/ffffffffffffffff', 'eyJuYW1lIjoiT2FrIiwidGFnIjoib2xkfyJ9'],
    ['YWxpY2U/8000000000000007', 'eyJuYW1lIjoiTW9uc3RlcmEiLCJ0YWciOiJpbmRvb3IifQ=='],
  ] as const) {
    const message = { key: base64(config.prefix + key), value }
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
    for (let id = 0; id > -4; id--) {
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

test('413 if etcd finds a plant too large; a full body of a long owner fits', async (t) => {
  const { port } = await startService(t, { etcd: await configured(), maxBodyBytes: 4 * 2 ** 20 })
  // etcd has a message for each.
  for (const bytes of [1_600_000, 2_100_000])
    assert.equal(verdict(await post(port, { id: 1, name: 'x'.repeat(bytes) })), 'bodyTooLarge')
  const long = { token: token('o'.repeat(8500)) }
  const name = 'x'.repeat(2 ** 20 - 30)
  assert.equal((await post(port, { id: 1, name }, long)).status, 200)
  const { text } = await call(port, { ...long, path: '/plants?limit=1' })
  assert.equal(text.length, name.length + '[{"name":""}]'.length)
  assert.equal((await call(port)).text, '[]', 'nothing of a refused plant is stored')
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
  // They share a transaction.
  const plants = [
    { id: 1000, name },
    { id: 0, name },
    { id: 1, name: 'x' },
    { id: 1001, name: 'x' },
  ]
  const replies = await Promise.all(plants.map((each) => post(port, each)))
  assert.deepEqual(replies.map(verdict), ['storageFull', 200, 'idTaken', 'storageFull'])
  assert.equal(names(await call(port)).length, kept)
  assert.equal((await call(adminPort, { path: '/readyz' })).status, 200)
  assert.equal((await fetch(`${cluster.endpoints.join()}/health`)).status, 503, 'etcd is unhealthy')
  // As an operator does with etcdctl: make room, then take the alarm back.
  const range = { key: base64('full/'), range_end: base64('full0') }
  // etcd's own answer.
  const { header } = (await cluster.ask('/v3/kv/deleterange', range)) as {
    readonly header: { readonly revision: string; readonly member_id: string }
  }
  await cluster.ask('/v3/kv/compaction', { revision: header.revision, physical: true })
  await cluster.ask('/v3/maintenance/defragment', {})
  const disarm = { action: 'DEACTIVATE', memberID: header.member_id, alarm: 'NOSPACE' }
  await cluster.ask('/v3/maintenance/alarm', disarm)
  assert.equal((await post(port, { id: 1000, name: 'small' })).status, 200)
})

test('readiness follows etcd, with a reason; a start does not wait for etcd', async (t) => {
  hurry(t)
  const config = await configured()
  const proxy = await proxyTo(t, config)
  proxy.mode = 'refuse'
  const etcd = { ...config, endpoints: [proxy.endpoint], ...hasty(100, 300) }
  const { port, adminPort } = await startService(t, { etcd })
  await untilReadiness(adminPort, 503)
  assert.equal(verdict(await post(port, { id: 1, name: 'x' })), 'storageUnavailable')
  assert.equal(verdict(await call(port)), 'storageUnavailable')
  proxy.mode = 'pass'
  await untilReadiness(adminPort, 200)
  // A loaded machine may take longer than this service waits.
  await until(
    'plants are kept',
    async () => (await post(port, { id: 1, name: 'x' })).status === 200,
  )
  proxy.mode = 'hang'
  await untilReadiness(adminPort, 503, /"storage":"etcd did not answer in time: .*timed out/)
  proxy.mode = 'pass'
  await untilReadiness(adminPort, 200)
})

test('import stores the embedded plants in etcd; check and export name etcdctl', async (t) => {
  const directory = await temporaryDirectory()
  const etcd = await configured()
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
  await exportToFile(embedded.dataDirectory, file)
  await fill(etcd, 'bob', [plant(1n, 'other')])
  const lines: string[] = []
  const progress = new Progress((line) => lines.push(line))
  const importTo = (config: EtcdConfig) =>
    importStore((log) => EtcdStore.open(config, log), file, progress)
  await assert.rejects(importTo(etcd), /^Error: 2 of 3 plants stored/)
  assert.deepEqual(lines, [
    'not imported: owner "bob", id 1: the store has another plant with this id\n',
  ])
  const store = await openStore(t, etcd)
  assert.deepEqual(await namesIn(store), ['alice', 'alice'])
  const env = {
    PLANTS_ETCD_ENDPOINTS: etcd.endpoints.join(),
    PLANTS_ETCD_PREFIX: `${etcd.prefix}fresh/`,
  }
  const stdout = `3 plants read from ${file}; all of them are in the store\n`
  assert.deepEqual(await command(['import', file], env), { status: 0, stdout, stderr: '' })
  await assert.rejects(
    importTo({ ...etcd, endpoints: ['http://127.0.0.1:1'], ...hasty(100, 200) }),
    /^Error: nothing can be kept at the moment: etcd did not answer in time: .*ECONNREFUSED/,
  )
  for (const line of [['check'], ['export', join(directory, 'other.db')]]) {
    const { status, stderr } = await command(line, env)
    assert.equal(status, 1)
    assert.match(stderr, /is for the embedded store: .*etcdctl/)
  }
})
