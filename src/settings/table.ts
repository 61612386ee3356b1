/* The table of all settings: how each is read, its default, its meaning. */

import { LOG_LEVELS, LOG_REQUESTS } from '../telemetry/log.ts'
import type { PlantServiceConfig } from './options.ts'
import { address, addressOrOff, audiences, directory, endpoints, integer } from './values.ts'
import { octalMode, one, oneOf, origins, passwordFile, path, pem, pemKey } from './values.ts'
import { prefix, type Read, scope, secret, secretFiles, text } from './values.ts'

export type Option = Exclude<keyof PlantServiceConfig, 'onLog'>

const MIB = 1024 ** 2
const dataBytes = integer(65_536, 512 * MIB)
const overHttp = oneOf(['loopback', 'anywhere'])
const PLAIN_HTTP = 'hosts from which keys may be fetched over plain HTTP: loopback, or anywhere'

/** In place of a default. */
const NONE = undefined
const REQUIRED = null

type Fallback = string | number | typeof NONE | typeof REQUIRED
type Setting = readonly [kind: Read<unknown>, fallback: Fallback, meaning: string]

/**
 * Every setting, once: how it is read, its default, its meaning. A program sets `jwtSecretFile`
 * where an operator sets the variable PLANTS_JWT_SECRET_FILE. `--help` and the table in
 * scripts/deploy/README.md have this order. What an editor shows for an option is in options.ts.
 */
const SETTINGS = {
  // Tokens: who may call.
  issuer: [one, REQUIRED, 'the iss that a token must have'],
  audience: [audiences, REQUIRED, 'one to eight audiences, with commas; tokens need one'],
  // Their keys.
  jwtSecretFile: [secretFiles, NONE, 'files with an HS256 secret each, one to four, with commas'],
  jwtSecret: [secret, NONE, 'the HS256 secret itself, 32 bytes or more'],
  jwksFile: [path, NONE, 'file with a JSON Web Key Set; read again when it changes'],
  jwksUrl: [one, NONE, 'URL of such a set; with none of these four, found by OpenID discovery'],
  keysOverHttp: [overHttp, 'loopback', PLAIN_HTTP],
  // What their claims mean.
  ownerClaim: [text, 'sub', 'the claim whose value owns plants; a.b is the claim b inside a'],
  audienceClaim: [text, 'aud', 'the claim that holds the audience'],
  readScope: [scope, NONE, 'the scope that GET requires'],
  writeScope: [scope, NONE, 'the scope that POST requires'],
  scopeClaim: [text, NONE, 'the claim that holds scopes; unset: scope, else scp'],
  clockTolerance: [integer(0, 3600), 5, 'seconds by which clocks of issuer and service may differ'],
  // Where plants are kept.
  data: [directory, './data', 'directory of the embedded store'],
  maxDataBytes: [dataBytes, 256 * MIB, 'data above which POST gets 507; at most 536870912'],
  maxOwnerBytes: [integer(1, 512 * MIB), NONE, 'data that one owner may have; unset: no limit'],
  etcdEndpoints: [endpoints, NONE, 'comma-separated URLs of etcd, which then keeps the plants'],
  etcdPrefix: [prefix, 'plants/', 'what all keys in etcd begin with; ends in /'],
  etcdUsername: [text, NONE, 'user of etcd'],
  etcdPasswordFile: [passwordFile, NONE, "file with that user's password, less one final line end"],
  etcdCaFile: [pem, NONE, "file with PEM certificates of etcd's authorities; unset: those of Node"],
  etcdCertFile: [pem, NONE, 'file with the PEM client certificate for etcd'],
  etcdKeyFile: [pemKey, NONE, 'file with the PEM key of that certificate'],
  // Listeners, connections and requests.
  listen: [address, '127.0.0.1:8080', 'where plants are served: host:port, [::1]:port, unix:/path'],
  adminListen: [addressOrOff, '127.0.0.1:8081', 'where health is served: the same forms, or off'],
  socketMode: [octalMode, '0660', 'mode of a unix socket: who may connect, in octal'],
  maxConnections: [integer(1, 1_000_000), 1000, 'open connections; one more is closed at once'],
  keepAlive: [integer(1, 3600), 75, 'seconds that a connection may wait for its next request'],
  maxBodyBytes: [integer(1, 16 * MIB), MIB, 'longest request body'],
  corsOrigins: [origins, NONE, 'comma-separated origins whose pages may call the service, or *'],
  rateLimit: [integer(1, 1_000_000), NONE, 'requests a second for each owner; unset: no limit'],
  // A stop, and the log.
  drainDelay: [integer(0, 3600), 0, 'seconds to keep serving after SIGTERM'],
  shutdownTimeout: [integer(0, 3600), 10, 'seconds that a stop waits for what is under way'],
  logLevel: [oneOf(LOG_LEVELS), 'info', 'silent, error, info (with one line a request) or debug'],
  logRequests: [oneOf(LOG_REQUESTS), 'all', 'of these lines: all, errors (4xx, 5xx, cut off), off'],
} as const satisfies Readonly<Record<Option, Setting>>

type ValueOf<S extends Setting> = ReturnType<S[0]> | (S[1] extends undefined ? undefined : never)

/** What was read, by option. Every path is absolute. */
export type Values = { readonly [O in Option]: ValueOf<(typeof SETTINGS)[O]> }

// Object.entries widens the options to string; they are exactly the table's own.
const ENTRIES = Object.entries(SETTINGS) as [Option, Setting][]

/** `fallback` is as an operator would write it; empty if there is none. */
export const VARIABLES = ENTRIES.map(([option, [kind, fallback, what]]) => ({
  name: variableOf(option),
  option,
  fallback: String(fallback ?? ''),
  meaning: fallback === REQUIRED ? `required: ${what}` : what,
  /** Reads what was given, or else the default. @throws Error that says what is wrong. */
  read(given: unknown = fallback ?? undefined): unknown {
    if (given === undefined && fallback === REQUIRED) throw new Error(`is required: ${what}`)
    if (typeof given === 'string' && given.trim() !== given)
      throw new Error('must not begin or end with a blank or a line break')
    return given === undefined ? undefined : kind(given)
  },
}))

/** The variable that sets an option: PLANTS_JWKS_URL for `jwksUrl`. */
export function variableOf(option: string): string {
  return `PLANTS_${option.replace(/[A-Z]/g, '_$&').toUpperCase()}`
}
