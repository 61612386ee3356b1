import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { ALL, plant, readAll } from '../../contract/store.contract.ts'
import { gateway, NO_ETCD } from '../../support/etcd.ts'
import { base64, type FakeReply, fakeEtcd } from '../../support/etcd-fake.ts'
import { configOf, configured, enableUsers, fill, namesIn } from '../../support/etcd-store.ts'
import { openStore, startCluster, testUnless } from '../../support/etcd-store.ts'
import { call, post } from '../../support/http.ts'
import { sampled } from '../../support/scale.ts'
import { startService } from '../../support/service.ts'
import { token } from '../../support/tokens.ts'
import { verdict } from '../../support/verdict.ts'

const testEtcd = testUnless(NO_ETCD)

function base64url(text: string): string {
  return Buffer.from(text).toString('base64url')
}

testEtcd("a deployment whose prefix is inside an owner's range is not shown to it", async (t) => {
  const outer = await configured()
  const owner = 'i\u025e'
  const inner = { ...outer, prefix: `${outer.prefix}${base64url(owner)}/` }
  assert.ok(inner.prefix.endsWith('/acme/'))
  const [{ port }, other] = [await startService(t, { etcd: outer }), await openStore(t, inner)]
  const secrets = Array.from({ length: 40 }, (_, id) => plant(BigInt(id), 'secret'))
  await fill(inner, 'victim', secrets)
  const by = { token: token(owner) }
  assert.equal((await post(port, { id: 1, name: 'own' }, by)).status, 200)
  for (const path of ['/plants', '/plants?limit=10', '/plants?limit=36', '/plants?limit=40']) {
    const reply = await call(port, { ...by, path })
    assert.ok(!reply.text.includes('secret'), path)
    assert.equal(verdict(reply), 'storageUnavailable')
  }
  assert.equal((await call(port, { ...by, path: '/plants?limit=1' })).text, '[{"name":"own"}]')
  assert.equal((await namesIn(other, 'victim')).length, 40)
})

for (const text of [
  ...['{}', '[]', '"ok"', '0', 'null', '{"status":"ok"}', '{"header":{}}'],
  ...['{"header":{"revision":"7"}}', '{"header":{"cluster_id":"1"}}'],
]) {
  test(`an answer without cluster and revision is no list: ${text}`, async (t) => {
    const answer = (): FakeReply => [200, text]
    const { endpoint } = await fakeEtcd(t, answer, answer)
    const store = await openStore(t, configOf([endpoint]))
    for (const limit of [undefined, 5]) {
      const list = readAll(store.list('alice', { ...ALL, limit }))
      await assert.rejects(list, StoreUnavailable)
    }
    await assert.rejects(store.create('alice', plant(1n)), StoreUnavailable)
    assert.match(store.unavailableReason() ?? '', /is not etcd's/)
  })
}

for (const asks of sampled(['a user', 'no user'], 2)) {
  testEtcd(`members that ask for ${asks} and restart in turn fail no call`, async (t) => {
    const cluster = await startCluster(t, 3)
    const user = asks === 'a user' ? await enableUsers(cluster) : undefined
    const store = await openStore(t, { ...configOf(cluster.endpoints), user })
    let isRunning = true
    let id = 0n
    const failures = new Set<string>()
    const clients = Array.from({ length: 16 }, async (_, i) => {
      while (isRunning) {
        const done: Promise<unknown> =
          i % 2 === 0
            ? store.create('alice', plant(id++))
            : readAll(store.list('alice', { ...ALL, limit: 5 }))
        await done.catch((error: unknown) => failures.add(String(error)))
        await sleep(10)
      }
    })
    for (const member of cluster.members) {
      await member.end('SIGTERM')
      cluster.startMember(member)
      await cluster.ready()
    }
    isRunning = false
    await Promise.all(clients)
    assert.deepEqual([...failures], [])
  })
}

for (const value of ['', 'junk', '{}', '[]', 'null', '{"name":1}', '{"name":"x","tag":null}']) {
  testEtcd(`a foreign value fails only the lists of its owner: ${value}`, async (t) => {
    const etcd = await configured()
    const { port } = await startService(t, { etcd })
    const key = `${etcd.prefix}${base64url('mallory')}/8000000000000001`
    const put = { key: base64(key), value: base64(value) }
    await gateway(etcd.endpoints.join(), '/v3/kv/put', put)
    const by = { token: token('mallory') }
    for (const path of ['/plants', '/plants?limit=1']) {
      const { status } = await call(port, { ...by, path })
      assert.ok(status >= 500, `${status}`)
    }
    assert.equal(verdict(await post(port, { id: 1, name: 'x' }, by)), 'idTaken')
    assert.equal((await post(port, { id: 2, name: 'x' }, by)).status, 200)
    assert.equal((await call(port)).text, '[]')
  })
}
