import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { plant, readAll } from '../../contract/store.contract.ts'
import { gateway, NO_ETCD } from '../../support/etcd.ts'
import {
  ALL,
  configOf,
  configured,
  fill,
  hasty,
  openStore,
  startCluster,
  testUnless,
} from '../../support/etcd-store.ts'
import { call, post } from '../../support/http.ts'
import { startProcess } from '../../support/process.ts'
import { LONG } from '../../support/scale.ts'
import { startService, temporaryDirectory } from '../../support/service.ts'
import { serving } from '../../support/serving.ts'
import { token } from '../../support/tokens.ts'
import { verdict } from '../../support/verdict.ts'

const testEtcd = testUnless(NO_ETCD)
const testLong = testUnless(NO_ETCD ?? (LONG || undefined))

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
  assert.equal((await readAll(other.list('victim', ALL))).length, 40)
})

test('an answer without a revision is unavailable, and never an empty list', async (t) => {
  for (const text of ['{}', '[]', '"ok"', '0', 'null', '{"status":"ok"}', '{"header":{}}']) {
    const endpoint = await serving(t, (_, res) => res.end(text))
    const store = await openStore(t, { ...configOf([endpoint]), ...hasty(100, 200) })
    await assert.rejects(readAll(store.list('alice', ALL)), StoreUnavailable, text)
    const page = readAll(store.list('alice', { ...ALL, limit: 5 }))
    await assert.rejects(page, StoreUnavailable, text)
    await assert.rejects(store.create('alice', plant(1n)), StoreUnavailable, text)
    assert.notEqual(store.unavailableReason(), undefined, text)
  }
})

testEtcd('members that restart one after the other, as in an upgrade, fail no call', async (t) => {
  const cluster = await startCluster(t, 3)
  const store = await openStore(t, configOf(cluster.endpoints))
  let isRunning = true
  let id = 0n
  const failures = new Set<string>()
  const clients = Array.from({ length: 16 }, async (_, i) => {
    while (isRunning) {
      const done: Promise<unknown> =
        i % 2 === 0
          ? store.create('alice', plant(id++))
          : readAll(store.list('alice', { after: undefined, limit: 5 }))
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

testEtcd('a foreign value under the prefix fails only the lists of its owner', async (t) => {
  const etcd = await configured()
  const { port } = await startService(t, { etcd })
  const base64 = (text: string): string => Buffer.from(text).toString('base64')
  const values = ['', 'junk', '{}', '[]', 'null', '{"name":1}', '{"name":"x","tag":null}']
  for (const [i, value] of values.entries()) {
    const owner = `owner${i}`
    const key = `${etcd.prefix}${base64url(owner)}/8000000000000001`
    const put = { key: base64(key), value: base64(value) }
    await gateway(etcd.endpoints.join(), '/v3/kv/put', put)
    const by = { token: token(owner) }
    for (const path of ['/plants', '/plants?limit=1']) {
      const { status } = await call(port, { ...by, path })
      assert.ok(status >= 500, `${value}: ${status}`)
    }
    assert.equal(verdict(await post(port, { id: 1, name: 'x' }, by)), 'idTaken')
    assert.equal((await post(port, { id: 2, name: 'x' }, by)).status, 200)
  }
  assert.equal((await call(port)).text, '[]')
})

test('a call ends when its time is over, though a login took most of it', async (t) => {
  const header = { revision: '7' }
  let isUp = false
  let puts = 0
  const endpoint = await serving(t, (req, res) => {
    req.resume()
    const isPut = req.url === '/v3/kv/txn'
    if (isUp && isPut) puts += 1
    const body = isPut ? { header, succeeded: true } : { header, token: 'x' }
    if (isUp) setTimeout(() => res.end(JSON.stringify(body)), 500)
    else res.writeHead(503).end()
  })
  const store = await openStore(t, {
    ...configOf([endpoint]),
    user: { name: 'p', password: 'x' },
    timing: { attemptMs: 600, callMs: 700 },
  })
  isUp = true
  await assert.rejects(store.create('alice', plant(1n)), StoreUnavailable)
  assert.ok(puts <= 1)
})

test('no call waits longer than its time for a login that a younger one began', async (t) => {
  const endpoint = await serving(t, (req) => void req.resume())
  const timing = { attemptMs: 1000, callMs: 1250 }
  const user = { name: 'p', password: 'x' }
  const store = await openStore(t, { ...configOf([endpoint]), user, timing })
  const calls = Array.from({ length: 80 }, async (_, i) => {
    await sleep(25 * i)
    const startedAt = performance.now()
    const isList = i % 2 === 0
    const list = (): Promise<unknown> => readAll(store.list('alice', ALL))
    await assert.rejects(isList ? list() : store.create('alice', plant(1n)))
    return performance.now() - startedAt
  })
  // After a login of 1 s has failed, the next one would hold it for another second.
  const longestMs = Math.max(...(await Promise.all(calls)))
  assert.ok(longestMs < timing.callMs + timing.attemptMs / 2, `${longestMs} ms`)
})

testLong('20 stalled readers of large plants hold some MiB each; the process lives', async (t) => {
  const config = await configured()
  const store = await openStore(t, config)
  // One page of all would be 30 MB.
  for (let id = 0n; id < 23n; id++) await store.create('alice', plant(id, 'x'.repeat(1_000_000)))
  const env = {
    PLANTS_ETCD_ENDPOINTS: config.endpoints.join(),
    PLANTS_ETCD_PREFIX: config.prefix,
    NODE_OPTIONS: '--max-old-space-size=256',
  }
  const { port } = await startProcess(t, await temporaryDirectory(), env)
  const headers = `Host: x\r\nAuthorization: Bearer ${token('alice')}`
  for (let i = 0; i < 20; i++) {
    const socket = connect(port, '127.0.0.1')
    t.after(() => socket.destroy())
    socket.write(`GET /plants HTTP/1.1\r\n${headers}\r\n\r\n`)
    await once(socket, 'readable')
  }
  assert.equal((await post(port, { id: 1, name: 'x' }, { token: token('bob') })).status, 200)
})
