import type { KeyConfig } from './auth/keys.ts'
import { type Address, type Config, readOptions } from './config.ts'
import { ConfigError } from './errors.ts'
import { callbackSink, createLog } from './ops/log.ts'
import { createService, type PlantService } from './service.ts'

export type { KeyConfig } from './auth/keys.ts'
export type { Address, Config } from './config.ts'
export { ConfigError } from './errors.ts'
export type { Health } from './http/admin.ts'
export type { LogLine, OnLog } from './ops/log.ts'
export type { EtcdConfig } from './store/etcd/store.ts'
export type { Listening, PlantService } from './service.ts'

type Pem = Uint8Array | string | undefined

/** How to reach etcd. PEM may be text or bytes. */
export interface EtcdOptions {
  /** Client URLs of its members: a list, or one text with commas between. */
  readonly endpoints: readonly string[] | string
  /** What all keys begin with; ends in `/`. @defaultValue `'plants/'` */
  readonly prefix?: string | undefined
  /** A user of etcd. @defaultValue none: etcd has no authentication */
  readonly user?: { readonly name: string; readonly password: string } | undefined
  /** Certificates, if the URLs are https. @defaultValue `{}` */
  readonly tls?: {
    /** The certificates that etcd's are signed by. @defaultValue those that Node trusts */
    readonly ca?: Pem
    /** The client certificate, with its `key`. @defaultValue none */
    readonly cert?: Pem
    /** The key of `cert`. @defaultValue none */
    readonly key?: Pem
  }
}

interface SecretOption {
  readonly kind: 'secret'
  /** For HS256: 32 bytes or more, or a text whose UTF-8 has as many. */
  readonly secret: Uint8Array | string
}

type Required = 'issuer' | 'audience' | 'keys'
type Written = 'listen' | 'adminListen' | 'etcd'
type Optional<T> = { readonly [K in keyof T]?: T[K] | undefined }

/** Issuer, audience and keys are required. `undefined` is the default; `null` is always wrong. */
export interface PlantServiceConfig extends Optional<Omit<Config, Required | Written>> {
  /** Required: the `iss` that a token must have. With discovery, also where keys are found. */
  readonly issuer: string
  /** Required: the audience that a token must have, in `aud` or in `audienceClaim`. */
  readonly audience: string
  /**
   * Required: where the keys come from that verify tokens. `secret` is a shared secret, `file` and
   * `url` name a JSON Web Key Set, and `discovery` finds one through the issuer's OpenID document.
   */
  readonly keys: KeyConfig | SecretOption
  /**
   * Where `listen()` serves plants: `host:port`, `[IPv6]:port` or `unix:/path`, or the same as an
   * object. Port 0 picks a free one. @defaultValue `'127.0.0.1:8080'`
   */
  readonly listen?: Address | string | undefined
  /**
   * Where `listen()` serves health and metrics: the forms of `listen`, or `off`.
   * @defaultValue `'127.0.0.1:8081'`
   */
  readonly adminListen?: Address | string | undefined
  /** Where plants are kept instead of `dataDirectory`. @defaultValue plants are not in etcd */
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
  const { logLevel, onLog } = config
  return createService(config, { log: createLog(logLevel, onLog && callbackSink(onLog)), onFatal })
}
