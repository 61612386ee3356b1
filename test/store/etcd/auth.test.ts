import assert from 'node:assert/strict'
import { readWithoutKeys } from '../../../dist/cli/settings.js'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import type { EtcdStore } from '../../../dist/store/etcd/etcd-store.js'
import { plant } from '../../contract/store.contract.ts'
import { NO_ETCD } from '../../support/etcd.ts'
import { pemFile } from '../../support/etcd-pem.ts'
import { hasty, namesIn, openStore, outcomes, testUnless } from '../../support/etcd-store.ts'
import { untilReadiness } from '../../support/etcd-store.ts'
import { permission, PLANTS, SecuredCluster } from '../../support/etcd-tls.ts'
import { call, post } from '../../support/http.ts'
import { sampled } from '../../support/scale.ts'
import { startService } from '../../support/service.ts'
import { until } from '../../support/time.ts'
import { verdict } from '../../support/verdict.ts'

const test = testUnless(NO_ETCD)

/** Creates the next plant, lists all of them, and sees readiness green. */
async function works(store: EtcdStore, id: bigint): Promise<void> {
  assert.equal(await store.create('alice', plant(id)), 'stored')
  assert.equal((await namesIn(store)).length, Number(id))
  await until('it is ready', () => store.unavailableReason() === undefined)
}

async function assertUnavailable(store: EtcdStore, id: bigint, reason: RegExp): Promise<void> {
  await assert.rejects(
    store.create('alice', plant(id)),
    (error) => error instanceof StoreUnavailable && reason.test(error.message),
  )
  await until('readiness says why', () => reason.test(store.unavailableReason() ?? ''))
}

/** A change of etcd, after which tokens are stale, missing, or not asked for. */
const CHANGES: readonly ((secured: SecuredCluster) => Promise<void>)[] = [
  (secured) => secured.ask('auth/enable'),
  (secured) => secured.ask('auth/disable'),
  (secured) => secured.ask('auth/enable'),
  (secured) => secured.ask('auth/role/grant', { name: 'rw', perm: permission('READ', 'other') }),
  async ({ cluster }) => {
    const [member = assert.fail()] = cluster.members
    await member.end()
    cluster.startMember(member)
  },
]

for (const isOn of sampled([true, false], 2)) {
  test(`auth ${isOn ? 'on' : 'off'} at the start, then changed: each call works`, async (t) => {
    const secured = await SecuredCluster.shared(t)
    if (isOn) await secured.ask('auth/enable')
    const store = await openStore(t, secured.config())
    let id = 1n
    await works(store, id++)
    for (const change of CHANGES) {
      await change(secured)
      await works(store, id++)
    }
  })
}

test('a changed password is named, and works again when it is restored', async (t) => {
  const secured = await SecuredCluster.shared(t)
  await secured.ask('auth/enable')
  const store = await openStore(t, secured.config())
  await works(store, 1n)
  await secured.ask('auth/user/changepw', { ...PLANTS, password: 'other' })
  const settings = 'look at PLANTS_ETCD_USERNAME and PLANTS_ETCD_PASSWORD_FILE, or '
  await assertUnavailable(store, 2n, new RegExp(`authentication failed.*; ${settings}`))
  await secured.ask('auth/user/changepw', PLANTS)
  await until('it is ready again', () => store.unavailableReason() === undefined)
  await works(store, 2n)
})

test('a missing user, and a prefix without rights, are named at the start', async (t) => {
  const secured = await SecuredCluster.shared(t)
  await secured.ask('auth/enable')
  for (const [change, reason] of [
    [{ user: undefined }, /user name is empty; look at PLANTS_ETCD_USERNAME/],
    [{ prefix: 'else/' }, /permission denied; the user of etcd needs readwrite on else\/$/],
  ] as const) {
    const store = await openStore(t, { ...secured.config(), ...change })
    assert.match(store.unavailableReason() ?? '', reason)
    await assertUnavailable(store, 1n, reason)
  }
})

test('a user of etcd shares calls under its prefix, and reaches nothing else', async (t) => {
  const secured = await SecuredCluster.shared(t)
  await secured.ask('auth/enable')
  const config = secured.config()
  const inner = await openStore(t, config)
  const outer = await openStore(t, { ...config, prefix: `elsewhere/${config.prefix}` })
  const owners = Array.from({ length: 20 }, (_, i) => `owner ${i}`)
  const createAll = (store: EtcdStore) =>
    outcomes(owners.map((owner) => store.create(owner, plant(1n, owner))))
  const listAll = (store: EtcdStore) =>
    outcomes(owners.map(async (owner) => (await namesIn(store, owner)).join()))
  const [stored, unavailable] = ['stored', 'StoreUnavailable'].map((each) => owners.map(() => each))
  assert.deepEqual(await createAll(inner), stored)
  assert.deepEqual(await listAll(inner), owners)
  assert.deepEqual(await createAll(outer), unavailable)
  assert.deepEqual(await listAll(outer), unavailable)
  await secured.ask('auth/disable')
  assert.equal((await listAll(outer)).join(''), '')
})

test('a read-only user: lists work, POST is 503, readiness is red, the log says why', async (t) => {
  const secured = await SecuredCluster.shared(t)
  await secured.ask('auth/enable')
  const etcd = secured.config()
  const { port, adminPort, logLines } = await startService(t, { etcd })
  assert.equal((await post(port, { id: 1, name: 'Monstera' })).status, 200)
  await untilReadiness(adminPort, 200)
  await secured.grant('ro')
  await secured.revoke('rw')
  const refused = await Promise.all(
    Array.from({ length: 20 }, (_, id) => post(port, { id: id + 2, name: 'a plant of mine' })),
  )
  for (const reply of refused) {
    assert.equal(verdict(reply), 'storageUnavailable')
    assert.equal(reply.headers['retry-after'], '1')
  }
  const reason = `etcdserver: permission denied; the user of etcd needs readwrite on ${etcd.prefix}`
  await untilReadiness(adminPort, 503, new RegExp(`"storage":"${reason}"`))
  assert.deepEqual((await call(port)).json(), [{ name: 'Monstera' }])
  const [line = '{}'] = logLines.filter((each) => each.includes('etcd is not ready'))
  // The log's own line.
  assert.equal((JSON.parse(line) as { reason: string }).reason, reason)
  assert.doesNotMatch(logLines.join('\n'), /secret|a plant of mine/)
  await secured.grant('rw')
  await untilReadiness(adminPort, 200)
  assert.equal((await post(port, { id: 2, name: 'x' })).status, 200)
  await secured.revoke('ro')
})

test('a client certificate with a CommonName is refused by name once etcd has users', async (t) => {
  const secured = await SecuredCluster.shared(t)
  const store = await openStore(t, secured.config('named'))
  await works(store, 1n)
  await secured.ask('auth/enable')
  const reason = /^etcd refuses the client certificate, because it has a CommonName$/
  await assertUnavailable(store, 2n, reason)
  await secured.ask('auth/disable')
  await works(store, 2n)
})

const CA = { PLANTS_ETCD_CA_FILE: pemFile('authority') }

function client(name: string): Readonly<Record<string, string>> {
  return { PLANTS_ETCD_CERT_FILE: pemFile(name), PLANTS_ETCD_KEY_FILE: pemFile('key') }
}

const NOT_TRUSTED = /certificate required|bad certificate|expired|ECONNRESET|socket hang up/
for (const [what, files, reason] of [
  ['the right files', { ...CA, ...client('client') }, undefined],
  ['no authority', client('client'), /self.signed|unable to (?:get|verify)/],
  ['no client certificate', CA, NOT_TRUSTED],
  ['an expired client certificate', { ...CA, ...client('expired') }, NOT_TRUSTED],
] as const) {
  test(`TLS with ${what}: it starts, and is ${reason ? 'not ready' : 'ready'}`, async (t) => {
    const { cluster } = await SecuredCluster.shared(t)
    const env = { PLANTS_ETCD_ENDPOINTS: cluster.endpoints.join(), ...files }
    const { etcd } = readWithoutKeys(env, 'ignored')
    assert.ok(etcd)
    const { port, adminPort } = await startService(t, {
      etcd: reason ? { ...etcd, ...hasty(150, 300) } : etcd,
    })
    if (!reason) assert.equal((await post(port, { id: 1, name: 'x' })).status, 200)
    await untilReadiness(adminPort, reason ? 503 : 200, reason)
  })
}
