import type { KeyConfig } from './auth/keys.ts'
import { type Address, type Config, readOptions } from './config.ts'
import { ConfigError } from './errors.ts'
import { createLog } from './ops/log.ts'
import { createService, type PlantService } from './service.ts'

export type { KeyConfig } from './auth/keys.ts'
export type { Address, Config } from './config.ts'
export { ConfigError } from './errors.ts'
export type { EtcdConfig } from './store/etcd/store.ts'
export type { Listening, PlantService } from './service.ts'

/** How to reach etcd. PEM may be text or bytes. */
export interface EtcdOptions {
  readonly endpoints: readonly string[]
  readonly prefix?: string | undefined
  readonly user?: { readonly name: string; readonly password: string } | undefined
  readonly tls?: Partial<Readonly<Record<'ca' | 'cert' | 'key', Uint8Array | string | undefined>>>
}

interface SecretOption {
  readonly kind: 'secret'
  readonly secret: Uint8Array | string
}

type Required = 'issuer' | 'audience' | 'keys'
type Written = 'listen' | 'adminListen' | 'etcd'
type Optional<T> = { readonly [K in keyof T]?: T[K] | undefined }

/**
 * Issuer, audience and keys are required. The rest has the defaults of the configuration table, and
 * addresses may be written as in the table. The bytes of a secret that is text are its UTF-8.
 */
export interface PlantServiceConfig extends Optional<Omit<Config, Required | Written>> {
  readonly issuer: string
  readonly audience: string
  readonly keys: KeyConfig | SecretOption
  readonly listen?: Address | string | undefined
  readonly adminListen?: Address | string | undefined
  readonly etcd?: EtcdOptions | undefined
}

/**
 * A plant store inside another program: `listen` opens its own listeners, and `handler` mounts in
 * any `node:http` server. Paths are resolved at once. It reads no environment variable, handles no
 * signal, and never ends the process.
 * @param onFatal is called when memory and disk may differ. From then on every POST gets 503,
 * and the program must create a new service.
 * @throws ConfigError that names every problem by its option.
 */
export function createPlantService(
  options: PlantServiceConfig,
  onFatal: (error: unknown) => void = () => {},
): PlantService {
  if (typeof onFatal !== 'function') throw new ConfigError(['onFatal must be a function'])
  const config = readOptions(options)
  return createService(config, { log: createLog(config.logLevel), onFatal })
}
