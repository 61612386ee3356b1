import { after, test, type TestContext } from 'node:test'
import type { Log } from '../../dist/telemetry/log.js'
import type { EtcdConfig } from '../../dist/store/etcd/client.js'
import { EtcdStore } from '../../dist/store/etcd/etcd-store.js'
import type { NewPlant } from '../../dist/plants/plant.js'
import type { PlantStore } from '../../dist/plants/store.js'
import { plantKey, plantValue } from '../../dist/store/etcd/wire.js'
import { ALL, readAll } from '../contract/store.contract.ts'
import { Cluster, type ClusterOptions, gateway } from './etcd.ts'
import { Proxy } from './etcd-proxy.ts'
import { call } from './http.ts'
import { logOf } from './log.ts'
import { changeTimers, PATIENCE_MS, until } from './time.ts'

export const NO_TLS: EtcdConfig['tls'] = { ca: undefined, cert: undefined, key: undefined }
/** Outlasts what a loaded machine does to etcd: only an answer that never comes fails a call. */
export const PATIENT = { attemptMs: 2000, callMs: PATIENCE_MS }

type Run = (t: TestContext) => Promise<void>

/** `test`, for tests that are skipped if there is a reason. */
export function testUnless(reason: string | undefined): (title: string, run: Run) => void {
  return (title, run) => void test(title, { skip: reason ?? false }, run)
}

let shared: Promise<Cluster> | undefined
let prefixes = 0
after(async () => (await shared)?.close())

/** A member that all tests of a file share, with a prefix for this test alone. */
export async function configured(): Promise<EtcdConfig> {
  shared ??= Cluster.start(1, { cheap: true })
  return configOf((await shared).endpoints, `shared/${prefixes++}/`)
}

/** The configuration of a service or store that waits patiently and has no user. */
export function configOf(endpoints: readonly string[], prefix = 'plants/'): EtcdConfig {
  return { endpoints, prefix, user: undefined, tls: NO_TLS, timing: PATIENT }
}

/** Time limits in milliseconds for a call that is expected to fail. */
export function hasty(attemptMs: number, callMs = attemptMs): Pick<Required<EtcdConfig>, 'timing'> {
  return { timing: { attemptMs, callMs } }
}

/** Etcd is probed, and a refused login repeated, more often than once a second. */
export function hurry(t: TestContext): void {
  changeTimers(t, 1000, 50)
}

/** A cluster for this test alone. */
export async function startCluster(
  t: TestContext,
  count: number,
  options: ClusterOptions = {},
): Promise<Cluster> {
  const cluster = await Cluster.start(count, { ...options, cheap: true })
  t.after(() => cluster.close())
  return cluster
}

/** Makes a cluster ask for a user, which is returned and may do anything. */
export async function enableUsers(cluster: Cluster): Promise<NonNullable<EtcdConfig['user']>> {
  const root = { name: 'root', password: 'root' }
  await cluster.ask('/v3/auth/user/add', root)
  await cluster.ask('/v3/auth/role/add', { name: 'root' })
  await cluster.ask('/v3/auth/user/grant', { user: 'root', role: 'root' })
  await cluster.ask('/v3/auth/enable', {})
  return root
}

/** A proxy in front of the member that `configured` returned. */
export async function proxyTo(t: TestContext, { endpoints }: EtcdConfig): Promise<Proxy> {
  const proxy = await Proxy.start(() => Number(new URL(endpoints[0] ?? '').port))
  t.after(() => proxy.close())
  return proxy
}

export function diagnosticLog(t: TestContext): Log {
  return logOf((level, message, fields) =>
    t.diagnostic(`${level}: ${message} ${JSON.stringify(fields)}`),
  )
}

export async function openStore(t: TestContext, config: EtcdConfig): Promise<EtcdStore> {
  const store = await EtcdStore.open(config, diagnosticLog(t))
  t.after(() => store.close())
  return store
}

/** Stores plants without the store: etcd takes this many in one transaction. */
const TRANSACTION_PUTS = 128
export async function fill(
  { endpoints, prefix }: EtcdConfig,
  owner: string,
  plants: readonly NewPlant[],
): Promise<void> {
  for (let at = 0; at < plants.length; at += TRANSACTION_PUTS) {
    const success = plants.slice(at, at + TRANSACTION_PUTS).map((plant) => ({
      request_put: { key: plantKey(prefix, owner, plant.id), value: plantValue(plant) },
    }))
    const { status } = await gateway(endpoints[0] ?? '', '/v3/kv/txn', { success })
    if (status !== 200) throw new Error(`etcd answered ${status}`)
  }
}

/** The names of all plants of an owner. */
export async function namesIn(store: PlantStore, owner = 'alice'): Promise<readonly string[]> {
  return (await readAll(store.list(owner, ALL))).map(({ name }) => name)
}

/** What became of each: its value, or the class of its error. */
export function outcomes(all: readonly Promise<string>[]): Promise<readonly string[]> {
  const nameOf = (error: unknown): string =>
    error instanceof Error ? error.constructor.name : 'no error'
  return Promise.all(all.map((each) => each.catch(nameOf)))
}

/** Waits until a service's readiness has this status, and a text that says this. */
export async function untilReadiness(adminPort: number, status: number, why = /./): Promise<void> {
  await until(`readiness is ${status}, ${why}`, async () => {
    const reply = await call(adminPort, { path: '/readyz' })
    return reply.status === status && why.test(reply.text)
  })
}
