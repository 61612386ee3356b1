/* What a program passes to embed the service. The comments are what an editor shows. */

import type { LogLevel, LogRequests, OnLog } from '../telemetry/log.ts'

/**
 * The settings; `jwksUrl` is the variable PLANTS_JWKS_URL. Issuer and audience are required.
 * `undefined` is the default; `null` is always wrong. Keys come from one of `jwtSecretFile`,
 * `jwtSecret`, `jwksFile` and `jwksUrl`, or else from the issuer's OpenID discovery document.
 */
export interface PlantServiceConfig {
  /** Required: the `iss` that a token must have. With discovery, also where keys are found. */
  readonly issuer: string
  /**
   * Required: one to eight audiences with commas between, of which a token must have one, in `aud`
   * or in `audienceClaim`. Of a list each entry is one audience, which may have commas.
   */
  readonly audience: string | readonly string[]
  /**
   * Paths of one to four files with commas between, or the content of one as bytes. Each is a
   * secret for HS256, and all verify. Files are read again when they change.
   * @defaultValue none
   */
  readonly jwtSecretFile?: Uint8Array | string | undefined
  /** A secret for HS256: 32 bytes or more, or a text of as many in UTF-8. @defaultValue none */
  readonly jwtSecret?: Uint8Array | string | undefined
  /** Path of a JSON Web Key Set, which is read again when it changes. @defaultValue none */
  readonly jwksFile?: string | undefined
  /** URL of a JSON Web Key Set: https, or http as `keysOverHttp` allows. @defaultValue none */
  readonly jwksUrl?: string | undefined
  /**
   * Where keys and the discovery document may come from over plain http: `loopback`, or `anywhere`
   * in a network that only you can change.
   * @defaultValue `'loopback'`
   */
  readonly keysOverHttp?: 'loopback' | 'anywhere' | undefined
  /**
   * The claim whose value owns plants; callers with one value share them. A name with dots is a
   * claim of that name or else a path: `realm_access.roles` is `roles` inside `realm_access`. Names
   * on the path may have dots too.
   * @defaultValue `'sub'`
   */
  readonly ownerClaim?: string | undefined
  /** The claim that holds the audience, or the path to it. @defaultValue `'aud'` */
  readonly audienceClaim?: string | undefined
  /** The scope that GET requires. @defaultValue none: every valid token may read */
  readonly readScope?: string | undefined
  /** The scope that POST requires. @defaultValue none: every valid token may write */
  readonly writeScope?: string | undefined
  /**
   * The claim that holds scopes, or the path to it: a text, a list, or an object with their names.
   * @defaultValue `'scope'`, else `'scp'`
   */
  readonly scopeClaim?: string | undefined
  /**
   * Seconds by which the clocks of issuer and service may differ: from 0 to 3600.
   * @defaultValue `5`
   */
  readonly clockTolerance?: number | undefined
  /** Directory of the embedded store. No other service may use it. @defaultValue `'./data'` */
  readonly data?: string | undefined
  /**
   * Bytes of the embedded data above which POST gets 507: from 65536 to 536870912.
   * @defaultValue `268435456`
   */
  readonly maxDataBytes?: number | undefined
  /**
   * Bytes of the embedded data that one owner may have: from 1 to 536870912. A plant that would
   * pass it gets 403.
   * @defaultValue no limit
   */
  readonly maxOwnerBytes?: number | undefined
  /**
   * Client URLs of the members of etcd, with commas between. Plants are kept there, not in `data`.
   * @defaultValue none
   */
  readonly etcdEndpoints?: string | undefined
  /** What all keys in etcd begin with; ends in `/`. @defaultValue `'plants/'` */
  readonly etcdPrefix?: string | undefined
  /** A user of etcd, with a password. @defaultValue none: etcd has no authentication */
  readonly etcdUsername?: string | undefined
  /** Path of a file with that user's password, or its content as bytes. @defaultValue none */
  readonly etcdPasswordFile?: Uint8Array | string | undefined
  /**
   * Path of a file with the PEM certificates that etcd's are signed by, or its content as bytes.
   * @defaultValue those that Node trusts
   */
  readonly etcdCaFile?: Uint8Array | string | undefined
  /** Path of a file with the PEM client certificate, or its content as bytes. @defaultValue none */
  readonly etcdCertFile?: Uint8Array | string | undefined
  /** Path of a file with the PEM key of `etcdCertFile`, or its content. @defaultValue none */
  readonly etcdKeyFile?: Uint8Array | string | undefined
  /**
   * Where `listen()` serves plants: `host:port`, `[IPv6]:port` or `unix:/path`. Port 0 picks a free
   * one.
   * @defaultValue `'127.0.0.1:8080'`
   */
  readonly listen?: string | undefined
  /**
   * Where `listen()` serves health and metrics: the forms of `listen`, or `off`.
   * @defaultValue `'127.0.0.1:8081'`
   */
  readonly adminListen?: string | undefined
  /** Mode of the sockets of `listen` and `adminListen`, in octal. @defaultValue `'0660'` */
  readonly socketMode?: string | undefined
  /**
   * Connections at a time of `listen()`'s own listener, from 1 to 1000000. One more is closed
   * without an answer. A server that has the `handler` bounds its own.
   * @defaultValue `1000`
   */
  readonly maxConnections?: number | undefined
  /**
   * Seconds that `listen()`'s own listener keeps a connection between two requests: from 1 to 3600.
   * Longer than a load balancer keeps one, so that the balancer closes it.
   * @defaultValue `75`
   */
  readonly keepAlive?: number | undefined
  /** Bytes of the longest request body: from 1 to 16777216. @defaultValue `1048576` */
  readonly maxBodyBytes?: number | undefined
  /**
   * Origins whose pages may call the service, with commas between, or `*` for all.
   * @defaultValue none
   */
  readonly corsOrigins?: string | undefined
  /** Requests per second for each owner: from 1 to 1000000. @defaultValue no limit */
  readonly rateLimit?: number | undefined
  /**
   * Seconds for which `close()` goes on serving after `listen()`, so that load balancers notice:
   * from 0 to 3600.
   * @defaultValue `0`
   */
  readonly drainDelay?: number | undefined
  /** Seconds that `close()` waits for requests under way: from 0 to 3600. @defaultValue `10` */
  readonly shutdownTimeout?: number | undefined
  /** What is logged: `info` has one line for each request. @defaultValue `'info'` */
  readonly logLevel?: LogLevel | undefined
  /**
   * Which requests have a line in the log, at level `info` or `debug`: `all`, `errors` (answered
   * with 4xx or 5xx, or cut off) or `off`.
   * @defaultValue `'all'`
   */
  readonly logRequests?: LogRequests | undefined
  /**
   * Receives each line of the log as an object, soon after it is logged. If it throws or rejects,
   * the line is lost, and a warning of Node says so once.
   * @defaultValue lines go to standard output, as JSON
   */
  readonly onLog?: OnLog | undefined
}
