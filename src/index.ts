import './unbundled.ts'
import { dirname, resolve } from 'node:path'
import type { KeyConfig } from './auth/keys.ts'
import { type Address, type Config, readOptions } from './config.ts'
import { ConfigError } from './errors.ts'
import { callbackSink, createLog, type LogLevel, type OnLog } from './ops/log.ts'
import { createService, type PlantService } from './service.ts'

export type { KeyConfig } from './auth/keys.ts'
export type { Address, Config } from './config.ts'
export { ConfigError } from './errors.ts'
export type { Health } from './http/admin.ts'
export type { LogLevel, LogLine, OnLog } from './ops/log.ts'
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

// The interface repeats the types of its base, because editors show the comments of an interface,
// and none of a mapped type. A type that does not fit the base does not compile.
type Written = 'issuer' | 'audience' | 'keys' | 'listen' | 'adminListen' | 'etcd'
type Optional<T> = { readonly [K in keyof T]?: T[K] | undefined }

/** Issuer, audience and keys are required. `undefined` is the default; `null` is always wrong. */
export interface PlantServiceConfig extends Optional<Omit<Config, Written>> {
  /** Required: the `iss` that a token must have. With discovery, also where keys are found. */
  readonly issuer: string
  /** Required: the audience that a token must have, in `aud` or in `audienceClaim`. */
  readonly audience: string
  /**
   * Required: where the keys come from that verify tokens. `secret` is a shared secret of 32 bytes
   * or more, `file` and `url` name a JSON Web Key Set, and `discovery` finds one through the
   * issuer's OpenID document.
   */
  readonly keys: KeyConfig | SecretOption
  /**
   * Where `listen()` serves plants: `host:port`, `[IPv6]:port` or `unix:/path`, or the same as an
   * object. Port 0 picks a free one.
   * @defaultValue `'127.0.0.1:8080'`
   */
  readonly listen?: Address | string | undefined
  /**
   * Where `listen()` serves health and metrics: the forms of `listen`, or `off`.
   * @defaultValue `'127.0.0.1:8081'`
   */
  readonly adminListen?: Address | string | undefined
  /** Directory of the embedded store. No other service may use it. @defaultValue `'./data'` */
  readonly dataDirectory?: string | undefined
  /**
   * Bytes of the embedded data above which POST gets 507: from 65536 to 1073741824.
   * @defaultValue `268435456`
   */
  readonly maxDataBytes?: number | undefined
  /** The cluster that keeps plants instead of `dataDirectory`. @defaultValue none */
  readonly etcd?: EtcdOptions | undefined
  /** The claim whose value owns plants; callers with one value share them. @defaultValue `'sub'` */
  readonly ownerClaim?: string | undefined
  /** The claim that holds the audience. @defaultValue `'aud'` */
  readonly audienceClaim?: string | undefined
  /** The scope that GET requires. @defaultValue none: every valid token may read */
  readonly readScope?: string | undefined
  /** The scope that POST requires. @defaultValue none: every valid token may write */
  readonly writeScope?: string | undefined
  /** The claim that holds scopes, as text or as a list. @defaultValue `'scope'`, else `'scp'` */
  readonly scopeClaim?: string | undefined
  /**
   * Seconds by which the clocks of issuer and service may differ: from 0 to 3600.
   * @defaultValue `5`
   */
  readonly clockToleranceSeconds?: number | undefined
  /** Bytes of the longest request body: from 1 to 16777216. @defaultValue `1048576` */
  readonly maxBodyBytes?: number | undefined
  /**
   * Connections at a time of `listen()`'s own listener, from 1 to 1000000. One more is closed
   * without an answer. A server that has the `handler` bounds its own.
   * @defaultValue `10000`
   */
  readonly maxConnections?: number | undefined
  /** Requests per second for each owner: from 1 to 1000000. @defaultValue no limit */
  readonly rateLimit?: number | undefined
  /**
   * Seconds for which `close()` goes on serving after `listen()`, so that load balancers notice:
   * from 0 to 3600.
   * @defaultValue `0`
   */
  readonly drainDelaySeconds?: number | undefined
  /** Seconds that `close()` waits for requests under way: from 0 to 3600. @defaultValue `10` */
  readonly shutdownTimeoutSeconds?: number | undefined
  /** What is logged: `info` has one line for each request. @defaultValue `'info'` */
  readonly logLevel?: LogLevel | undefined
  /**
   * Receives each line of the log as an object, soon after it is logged. If it throws or rejects,
   * the line is lost, and a warning of Node says so once.
   * @defaultValue lines go to standard output, as JSON
   */
  readonly onLog?: OnLog | undefined
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

// `node .` in the folder of the package runs the file that `main` names, which is this one.
if (resolve(process.argv[1] ?? '') === dirname(import.meta.dirname)) void import('./main.ts')
