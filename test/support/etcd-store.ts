import { after, type TestContext } from 'node:test'
import type { ClientTiming } from '../../dist/store/etcd/client.js'
import { type EtcdConfig, EtcdStore } from '../../dist/store/etcd/store.js'
import { Cluster } from './etcd.ts'
import { PATIENCE_MS } from './time.ts'

export const NO_TLS: EtcdConfig['tls'] = { ca: undefined, cert: undefined, key: undefined }
/**
 * Outlasts whatever a loaded machine does to etcd: only what never comes is given up. Not so a
 * probe, which soon is made again, and may keep a process from its end.
 */
export const PATIENT: ClientTiming = { attempt: 2000, call: PATIENCE_MS, probe: 5000 }

let shared: Promise<Cluster> | undefined
let prefixes = 0
after(async () => (await shared)?.close())

/** One member for all tests of a file that leave it as it is, with keys of its own for each. */
export async function configured(): Promise<EtcdConfig> {
  shared ??= Cluster.start(1, { flags: ['--unsafe-no-fsync'] })
  return {
    endpoints: (await shared).endpoints,
    prefix: `shared/${prefixes++}/`,
    user: undefined,
    tls: NO_TLS,
    timing: PATIENT,
  }
}

export async function openStore(t: TestContext, config: EtcdConfig): Promise<EtcdStore> {
  const store = await EtcdStore.open(config, (level, message, fields) =>
    t.diagnostic(`${level}: ${message} ${JSON.stringify(fields)}`),
  )
  t.after(() => store.close())
  return store
}
