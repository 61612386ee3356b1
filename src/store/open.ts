/* Opens the store that the configuration names. */

import type { PlantStore, Recovered } from '../plants/store.ts'
import type { Config } from '../settings/read.ts'
import { IN_MEMORY } from '../settings/values.ts'
import { inMemory } from './sqljs/in-memory.ts'
import { SqljsStore, type SqljsStoreOptions } from './sqljs/sqljs-store.ts'

/** etcd recovers by itself: its store has no `recovered`. */
export type OpenStore = PlantStore & { readonly recovered?: Recovered }

/**
 * The code for etcd is loaded only if it is needed.
 * @throws DirectoryLocked, StoreCorrupt
 */
export async function openStore(
  { etcd, data, maxDataBytes }: Pick<Config, 'etcd' | 'data' | 'maxDataBytes'>,
  hooks: Pick<SqljsStoreOptions, 'log' | 'onFatal' | 'metrics'>,
): Promise<OpenStore> {
  const isKept = data !== IN_MEMORY
  const options = { ...(isKept ? {} : inMemory), directory: data, maxDataBytes, ...hooks }
  if (!etcd) return SqljsStore.open(options)
  const { EtcdStore } = await import('./etcd/etcd-store.ts')
  return EtcdStore.open(etcd, hooks.log)
}
