import assert from 'node:assert/strict'
import { test } from 'node:test'
import { temporaryDirectorySync } from '../../support/directories.ts'
import { Member, NO_ETCD } from '../../support/etcd.ts'
import { fakeEtcd } from '../../support/etcd-fake.ts'
import { configOf, openStore, testUnless } from '../../support/etcd-store.ts'
import { call, post } from '../../support/http.ts'
import { startService } from '../../support/service.ts'
import { until } from '../../support/time.ts'
import { verdict } from '../../support/verdict.ts'

const NO_GATEWAY = [404, '404 page not found\n'] as const

test('a gateway that is off on every endpoint fails each call at once', async (t) => {
  const off = await fakeEtcd(t, () => NO_GATEWAY)
  // As long as a test waits: only a failure at once is in time.
  const store = await openStore(t, configOf([off.endpoint, off.endpoint]))
  const reason = /etcd's gateway is off: see enable-grpc-gateway$/
  await assert.rejects(store.create('alice', { id: 1n, name: 'x' }), { message: reason })
  assert.equal(off.asked.length, 2)
})

testUnless(NO_ETCD)('a member without its gateway is named by readiness', async (t) => {
  const flags = ['--enable-grpc-gateway=false']
  const member = await Member.create('m1', temporaryDirectorySync(), { cheap: true, flags })
  t.after(() => member.end())
  member.start(`m1=${member.peerUrl}`)
  const isUp = () => fetch(`${member.endpoint}/health`).then(({ ok }) => ok, () => false)
  await until('it is up', isUp)
  const { port, adminPort } = await startService(t, { etcd: configOf([member.endpoint]) })
  assert.equal(verdict(await post(port, { id: 1, name: 'x' })), 'storageUnavailable')
  const { status, text } = await call(adminPort, { path: '/readyz' })
  assert.equal(status, 503)
  assert.match(text, /enable-grpc-gateway/)
})
