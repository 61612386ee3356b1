/* Opens the store that the configuration names. */

import type { PlantStore, Recovered } from '../plants/store.ts'
import type { Config } from '../settings/read.ts'
import { SqljsStore, type SqljsStoreOptions } from './sqljs/sqljs-store.ts'

/** etcd recovers by itself: its store has no `recovered`. */
export type OpenStore = PlantStore & { readonly recovered?: Recovered }

/**
 * The code for etcd is loaded only if it is needed.
 * @throws DirectoryLocked, StoreCorrupt
 */
export async function openStore(
  config: Pick<Config, 'etcd' | 'data' | 'maxDataBytes' | 'maxOwnerBytes'>,
  hooks: Pick<SqljsStoreOptions, 'log' | 'onFatal' | 'metrics'>,
): Promise<OpenStore> {
  const { etcd, data: directory, maxDataBytes, maxOwnerBytes } = config
  if (!etcd) return SqljsStore.open({ directory, maxDataBytes, maxOwnerBytes, ...hooks })
  const { EtcdStore } = await import('./etcd/etcd-store.ts')
  return EtcdStore.open(etcd, hooks.log)
}
