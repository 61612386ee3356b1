import assert from 'node:assert/strict'
import { after, test, type TestContext } from 'node:test'
import type { Log } from '../../dist/telemetry/log.js'
import type { ClientTiming } from '../../dist/store/etcd/client.js'
import { type EtcdConfig, EtcdStore } from '../../dist/store/etcd/store.js'
import type { NewPlant } from '../../dist/plants/plant.js'
import { plantKey, plantValue } from '../../dist/store/etcd/wire.js'
import { readAll } from '../contract/store.contract.ts'
import { Cluster, type ClusterOptions, gateway } from './etcd.ts'
import { Proxy } from './etcd-proxy.ts'
import { logOf } from './log.ts'
import { PATIENCE_MS } from './time.ts'

export const ALL = { after: undefined, limit: undefined } as const
export const NO_TLS: EtcdConfig['tls'] = { ca: undefined, cert: undefined, key: undefined }
/**
 * Outlasts whatever a loaded machine does to etcd: only an answer that never comes fails a call. A
 * probe is short: it is repeated soon, and it may keep a process from ending.
 */
export const PATIENT: ClientTiming = { attempt: 2000, call: PATIENCE_MS, probe: 5000 }

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
export function hasty(attempt: number, call = attempt): { readonly timing: ClientTiming } {
  return { timing: { attempt, call, probe: call } }
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
    const base64 = (bytes: string): string => Buffer.from(bytes, 'latin1').toString('base64')
    const success = plants.slice(at, at + TRANSACTION_PUTS).map((plant) => {
      const [key, value] = [plantKey(prefix, owner, plant.id), plantValue(plant)]
      return { request_put: { key: base64(key), value: base64(value) } }
    })
    const { status } = await gateway(endpoints[0] ?? '', '/v3/kv/txn', { success })
    assert.equal(status, 200)
  }
}

/** The names of all plants of alice. */
export async function namesIn(store: EtcdStore): Promise<readonly string[]> {
  return (await readAll(store.list('alice', ALL))).map(({ name }) => name)
}
