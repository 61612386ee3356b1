import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import type { EtcdStore } from '../../../dist/store/etcd/store.js'
import { plant } from '../../contract/store.contract.ts'
import { hasty, namesIn, openStore, testUnless } from '../../support/etcd-store.ts'
import { NO_SECURED_ETCD, permission, PLANTS, SecuredCluster } from '../../support/etcd-tls.ts'
import { call, post } from '../../support/http.ts'
import { startService, temporaryDirectory } from '../../support/service.ts'
import { until } from '../../support/time.ts'
import { verdict } from '../../support/verdict.ts'

const test = testUnless(NO_SECURED_ETCD)
/** Another right of the role: it makes every token stale. */
const OTHER_RIGHT = { name: 'rw', perm: permission('READ', 'other') }

/** Creates the next plant, lists all of them, and sees readiness green. */
async function works(store: EtcdStore, id: bigint): Promise<void> {
  assert.equal(await store.create('alice', plant(id)), 'stored')
  assert.equal((await namesIn(store)).length, Number(id))
  await until('it is ready', () => store.unavailableReason() === undefined)
}

/** Switches authentication off and on, and creates plants from this id on. */
async function worksThroughOffAndOn(
  store: EtcdStore,
  secured: SecuredCluster,
  id: bigint,
): Promise<void> {
  await secured.ask('auth/disable')
  await works(store, id)
  await secured.ask('auth/enable')
  await works(store, id + 1n)
}

async function assertUnavailable(store: EtcdStore, id: bigint, reason: RegExp): Promise<void> {
  await assert.rejects(
    store.create('alice', plant(id)),
    (error) => error instanceof StoreUnavailable && reason.test(error.message),
  )
  await until('readiness says why', () => reason.test(store.unavailableReason() ?? ''))
}

test('auth on before the start, then off, then on: every call works at once', async (t) => {
  const secured = await SecuredCluster.shared(t)
  await secured.ask('auth/enable')
  const store = await openStore(t, secured.config())
  await works(store, 1n)
  await worksThroughOffAndOn(store, secured, 2n)
})

test('auth switched on while the service runs: every call works at once', async (t) => {
  const secured = await SecuredCluster.shared(t)
  const store = await openStore(t, secured.config())
  await works(store, 1n)
  await secured.ask('auth/enable')
  await works(store, 2n)
  await worksThroughOffAndOn(store, secured, 3n)
})

test('a changed password, user or role is named, and works again when restored', async (t) => {
  const secured = await SecuredCluster.shared(t)
  await secured.ask('auth/enable')
  const store = await openStore(t, secured.config())
  await works(store, 1n)
  const setPassword = (password: string) => () =>
    secured.ask('auth/user/changepw', { ...PLANTS, password })
  let id = 2n
  for (const [change, reason, restore] of [
    [
      setPassword('other'),
      /authentication failed.*; look at PLANTS_ETCD_USERNAME and PLANTS_ETCD_PASSWORD_FILE, or /,
      setPassword(PLANTS.password),
    ],
    [
      () => secured.revoke('rw'),
      /permission denied; the user of etcd needs readwrite on plants\/\d+\/$/,
      () => secured.grant('rw'),
    ],
    [
      () => secured.ask('auth/user/delete', { name: PLANTS.name }),
      /authentication failed/,
      async () => {
        await secured.ask('auth/user/add', PLANTS)
        await secured.grant('rw')
      },
    ],
  ] as const) {
    await change()
    await assertUnavailable(store, id, reason)
    await restore()
    // A refused login is repeated once a second.
    await until('it is ready again', () => store.unavailableReason() === undefined)
    await works(store, id++)
  }
  await secured.ask('auth/role/grant', OTHER_RIGHT)
  await works(store, id)
})

test('a token of etcd that expires while it is in use is renewed', async (t) => {
  const directory = await temporaryDirectory()
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const [publicFile, privateFile] = [join(directory, 'public'), join(directory, 'private')]
  writeFileSync(publicFile, publicKey.export({ type: 'spki', format: 'pem' }))
  writeFileSync(privateFile, privateKey.export({ type: 'sec1', format: 'pem' }))
  // etcd counts whole seconds: a token of 1 s may expire right after the login that got it.
  const signing = `jwt,pub-key=${publicFile},priv-key=${privateFile},sign-method=ES256,ttl=2s`
  const secured = await SecuredCluster.start(t, ['--auth-token', signing])
  await secured.ask('auth/enable')
  const store = await openStore(t, secured.config())
  const end = Date.now() + 3500
  let id = 1n
  for (; Date.now() < end; id++) {
    await works(store, id)
    await sleep(50)
  }
  await secured.ask('auth/role/grant', OTHER_RIGHT)
  await works(store, id)
  await worksThroughOffAndOn(store, secured, id + 1n)
})

test('a read-only user: lists work, POST is 503, readiness is red, the log says why', async (t) => {
  const secured = await SecuredCluster.shared(t)
  await secured.ask('auth/enable')
  const etcd = secured.config()
  const { port, adminPort, logLines } = await startService(t, { etcd })
  const readiness = () => call(adminPort, { path: '/readyz' })
  assert.equal((await post(port, { id: 1, name: 'Monstera' })).status, 200)
  assert.equal((await readiness()).status, 200)
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
  await until('readiness is red', async () => {
    const { status, text } = await readiness()
    return status === 503 && text.includes(`"storage":"${reason}"`)
  })
  assert.deepEqual((await call(port)).json(), [{ name: 'Monstera' }])
  const [line = '{}'] = logLines.filter((each) => each.includes('etcd is not ready'))
  // The log's own line.
  assert.equal((JSON.parse(line) as { reason: string }).reason, reason)
  assert.doesNotMatch(logLines.join('\n'), /secret|a plant of mine/)
  await secured.grant('rw')
  await until('readiness is green', async () => (await readiness()).status === 200)
  assert.equal((await post(port, { id: 2, name: 'x' })).status, 200)
  await secured.revoke('ro')
})

test('a client certificate with a CommonName is refused by name once etcd has users', async (t) => {
  const secured = await SecuredCluster.shared(t)
  secured.authority.sign('named', '/CN=plants')
  const store = await openStore(t, secured.config('named'))
  await works(store, 1n)
  await secured.ask('auth/enable')
  const reason = /^etcd refuses the client certificate, because it has a CommonName$/
  await assertUnavailable(store, 2n, reason)
  await secured.ask('auth/disable')
  await works(store, 2n)
})

test('an expired client certificate turns readiness red; a start succeeds', async (t) => {
  const secured = await SecuredCluster.shared(t)
  secured.authority.sign('expired', '/O=plants', -1)
  const store = await openStore(t, { ...secured.config('expired'), ...hasty(300, 600) })
  assert.match(store.unavailableReason() ?? '', /^etcd did not answer in time: /)
})
