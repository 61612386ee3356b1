import type { Config } from '../config.ts'
import type { PlantStore, Recovered } from '../plants/store.ts'
import { SqljsStore, type SqljsStoreOptions } from './sqljs/store.ts'

/** etcd recovers by itself: its store has no `recovered`. */
export type OpenStore = PlantStore & { readonly recovered?: Recovered }

/**
 * Opens the store that the configuration names. The code for etcd is loaded only if it is needed.
 * @throws DirectoryLocked, StoreCorrupt
 */
export async function openStore(
  { etcd, dataDirectory, maxDataBytes }: Pick<Config, 'etcd' | 'dataDirectory' | 'maxDataBytes'>,
  hooks: Pick<SqljsStoreOptions, 'log' | 'onFatal' | 'metrics' | 'queue'>,
): Promise<OpenStore> {
  if (!etcd) return SqljsStore.open({ directory: dataDirectory, maxDataBytes, ...hooks })
  const { EtcdStore } = await import('./etcd/store.ts')
  return EtcdStore.open(etcd, hooks.log)
}
