import { readFileSync } from 'node:fs'
import { createKeySource, type KeyConfig } from './auth/keys.ts'
import { ConfigError } from './errors.ts'
import type { LogLevel } from './ops/log.ts'
import type { EtcdConfig } from './store/etcd/store.ts'
import { tlsProblems } from './store/etcd/tls.ts'

/** Where a server listens. */
export type Address = { readonly host: string; readonly port: number } | { readonly path: string }

/** All that the service can be told. */
export interface Config {
  readonly listen: Address
  readonly adminListen: Address | 'off'
  readonly dataDirectory: string
  readonly maxDataBytes: number
  /** Where plants are kept instead of the data directory. */
  readonly etcd: EtcdConfig | undefined
  readonly issuer: string
  readonly audience: string
  readonly keys: KeyConfig
  readonly ownerClaim: string
  readonly audienceClaim: string
  /** Undefined: `scope`, else `scp`. */
  readonly scopeClaim: string | undefined
  readonly readScope: string | undefined
  readonly writeScope: string | undefined
  readonly clockToleranceSeconds: number
  readonly maxBodyBytes: number
  readonly maxConnections: number
  /** Requests a second for each owner; undefined for no limit. */
  readonly rateLimit: number | undefined
  readonly drainDelaySeconds: number
  readonly shutdownTimeoutSeconds: number
  readonly logLevel: LogLevel
}

/** What a command needs of it: all; all but the keys, which `--dev` brings; or the storage alone. */
export type Need = 'service' | 'dev' | 'storage'

export const DEV_ISSUER = 'plant-store-dev'
export const DEV_AUDIENCE = 'plants'

/** [name, default as it would be written, meaning]; `--help` and the README's table show just this. */
export const VARIABLES = [
  ['PLANTS_LISTEN', '127.0.0.1:8080', 'where plants are served: host:port, [::1]:port or unix:/path; port 0 picks a free one'],
  ['PLANTS_ADMIN_LISTEN', '127.0.0.1:8081', 'where health is served: the same forms, or off'],
  ['PLANTS_DATA', './data', 'directory of the embedded store'],
  ['PLANTS_MAX_DATA_BYTES', '268435456', 'size of the embedded database above which POST answers 507; at most 1073741824'],
  ['PLANTS_ETCD_ENDPOINTS', '', 'client URLs of etcd members, with commas between; set, plants are kept there instead'],
  ['PLANTS_ETCD_PREFIX', 'plants/', 'what all keys in etcd begin with; ends in /'],
  ['PLANTS_ETCD_USERNAME', '', 'user of etcd'],
  ['PLANTS_ETCD_PASSWORD_FILE', '', 'file with that user\'s password: its text, less one final newline'],
  ['PLANTS_ETCD_CA_FILE', '', 'file with the PEM certificates that etcd\'s are signed by; unset: those that Node trusts'],
  ['PLANTS_ETCD_CERT_FILE', '', 'file with the PEM client certificate for etcd'],
  ['PLANTS_ETCD_KEY_FILE', '', 'file with the PEM key of that certificate'],
  ['PLANTS_ISSUER', '', 'required: the iss that a token must have'],
  ['PLANTS_AUDIENCE', '', 'required: the audience that a token must have'],
  ['PLANTS_JWT_SECRET_FILE', '', 'file with the HS256 secret: its bytes, less one final newline'],
  ['PLANTS_JWT_SECRET', '', 'the HS256 secret itself, 32 bytes or more'],
  ['PLANTS_JWKS_FILE', '', 'file with a JSON Web Key Set; read again when it changes'],
  ['PLANTS_JWKS_URL', '', 'URL of a JSON Web Key Set; with none of these four, the issuer\'s discovery document names it'],
  ['PLANTS_OWNER_CLAIM', 'sub', 'the claim whose value owns plants'],
  ['PLANTS_AUDIENCE_CLAIM', 'aud', 'the claim that holds the audience'],
  ['PLANTS_READ_SCOPE', '', 'the scope that GET requires'],
  ['PLANTS_WRITE_SCOPE', '', 'the scope that POST requires'],
  ['PLANTS_SCOPE_CLAIM', '', 'the claim that holds scopes; unset: scope, else scp'],
  ['PLANTS_CLOCK_TOLERANCE', '5', 'seconds by which the clocks of issuer and service may differ'],
  ['PLANTS_MAX_BODY_BYTES', '1048576', 'longest request body'],
  ['PLANTS_MAX_CONNECTIONS', '10000', 'connections at a time; one more is closed without an answer'],
  ['PLANTS_RATE_LIMIT', '', 'requests a second for each owner; unset: no limit'],
  ['PLANTS_DRAIN_DELAY', '0', 'seconds that a stop serves on, so that balancers notice'],
  ['PLANTS_SHUTDOWN_TIMEOUT', '10', 'seconds that a stop waits for what is under way'],
  ['PLANTS_LOG_LEVEL', 'info', 'silent, error, info (with one line a request) or debug'],
] as const satisfies readonly (readonly [name: `PLANTS_${string}`, fallback: string, meaning: string])[]

type Name = (typeof VARIABLES)[number][0]

const ETCD_NAMES = VARIABLES.map(([name]) => name).filter((name) => name.startsWith('PLANTS_ETCD_') && name !== 'PLANTS_ETCD_ENDPOINTS')
const ETCD_PAIRS: readonly (readonly [Name, Name])[] = [
  ['PLANTS_ETCD_USERNAME', 'PLANTS_ETCD_PASSWORD_FILE'],
  ['PLANTS_ETCD_CERT_FILE', 'PLANTS_ETCD_KEY_FILE'],
]
const ETCD_TLS_NAMES = {
  ca: 'PLANTS_ETCD_CA_FILE',
  cert: 'PLANTS_ETCD_CERT_FILE',
  key: 'PLANTS_ETCD_KEY_FILE',
} as const

const FALLBACKS: ReadonlyMap<string, string> = new Map(VARIABLES.map(([name, fallback]) => [name, fallback]))
/** What Kubernetes sets for a Service named plants, or plants-…: names and values. */
const SERVICE_VARIABLE = new RegExp(
  `^PLANTS(_[A-Z0-9_]+)?_(${[
    'SERVICE_HOST=[0-9a-f.:]+',
    'SERVICE_PORT(_[A-Z0-9_]+)?=[0-9]+',
    'PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.+',
    'PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO=(tcp|udp|sctp)|PORT=[0-9]+|ADDR=[0-9a-f.:]+)',
  ].join('|')})$`,
)
const LOG_LEVELS: Readonly<Record<string, LogLevel>> = { silent: 'silent', error: 'error', info: 'info', debug: 'debug' }
/** RFC 6749 §3.3. */
const SCOPE_TOKEN = /^[\x21\x23-\x5b\x5d-\x7e]+$/
const GIB = 1024 ** 3

/** What each number may be, ends included. */
export const BOUNDS = {
  maxDataBytes: [65_536, GIB],
  clockToleranceSeconds: [0, 3600],
  maxBodyBytes: [1, 16 * 1024 * 1024],
  maxConnections: [1, 1_000_000],
  rateLimit: [1, 1_000_000],
  drainDelaySeconds: [0, 3600],
  shutdownTimeoutSeconds: [0, 3600],
} as const satisfies Partial<Record<keyof Config, readonly [min: number, max: number]>>

/**
 * Reads the configuration from environment variables; an empty value counts as unset.
 * @throws ConfigError that names every problem.
 */
export function readConfig(env: Readonly<Record<string, string | undefined>>, need: Need): Omit<Config, 'keys'> & { readonly keys: KeyConfig | undefined } {
  const reader = new Reader(env)
  reader.refuseUnknown()
  const serves = need !== 'storage'
  const issuer = reader.text('PLANTS_ISSUER') ?? (need === 'dev' ? DEV_ISSUER : undefined)
  const audience = reader.text('PLANTS_AUDIENCE') ?? (need === 'dev' ? DEV_AUDIENCE : undefined)
  if (serves && issuer === undefined) reader.problem('PLANTS_ISSUER', 'is required: the iss that tokens have')
  if (serves && audience === undefined) reader.problem('PLANTS_AUDIENCE', 'is required: the aud that tokens have for this service')
  const config = {
    listen: reader.address('PLANTS_LISTEN'),
    adminListen: reader.text('PLANTS_ADMIN_LISTEN') === 'off' ? ('off' as const) : reader.address('PLANTS_ADMIN_LISTEN'),
    dataDirectory: reader.text('PLANTS_DATA') ?? '',
    maxDataBytes: reader.integer('PLANTS_MAX_DATA_BYTES', BOUNDS.maxDataBytes) ?? 0,
    etcd: reader.etcd(),
    issuer: issuer ?? '',
    audience: audience ?? '',
    keys: serves ? reader.keys(need, issuer) : undefined,
    ownerClaim: reader.text('PLANTS_OWNER_CLAIM') ?? '',
    audienceClaim: reader.text('PLANTS_AUDIENCE_CLAIM') ?? '',
    scopeClaim: reader.text('PLANTS_SCOPE_CLAIM'),
    readScope: reader.scope('PLANTS_READ_SCOPE'),
    writeScope: reader.scope('PLANTS_WRITE_SCOPE'),
    clockToleranceSeconds: reader.integer('PLANTS_CLOCK_TOLERANCE', BOUNDS.clockToleranceSeconds) ?? 0,
    maxBodyBytes: reader.integer('PLANTS_MAX_BODY_BYTES', BOUNDS.maxBodyBytes) ?? 0,
    maxConnections: reader.integer('PLANTS_MAX_CONNECTIONS', BOUNDS.maxConnections) ?? 0,
    rateLimit: reader.integer('PLANTS_RATE_LIMIT', BOUNDS.rateLimit),
    drainDelaySeconds: reader.integer('PLANTS_DRAIN_DELAY', BOUNDS.drainDelaySeconds) ?? 0,
    shutdownTimeoutSeconds: reader.integer('PLANTS_SHUTDOWN_TIMEOUT', BOUNDS.shutdownTimeoutSeconds) ?? 0,
    logLevel: reader.logLevel('PLANTS_LOG_LEVEL'),
  }
  if (reader.problems.length > 0) throw new ConfigError(reader.problems)
  return config
}

class Reader {
  readonly problems: string[] = []
  readonly #env: Readonly<Record<string, string | undefined>>

  constructor(env: Readonly<Record<string, string | undefined>>) {
    this.#env = env
  }

  problem(name: string, what: string): void {
    this.problems.push(`${name} ${what}`)
  }

  refuseUnknown(): void {
    for (const [name, value] of Object.entries(this.#env)) {
      if (!name.startsWith('PLANTS_') || !value || FALLBACKS.has(name)) continue
      if (SERVICE_VARIABLE.test(`${name}=${value}`)) continue
      this.problem(name, 'is not known: see --help for the variables that are')
    }
  }

  text(name: Name): string | undefined {
    return this.#env[name] || FALLBACKS.get(name) || undefined
  }

  integer(name: Name, [min, max]: readonly [min: number, max: number]): number | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const value = Number(text)
    if (/^[0-9]{1,15}$/.test(text) && value >= min && value <= max) return value
    this.problem(name, `must be an integer from ${min} to ${max}, and is ${JSON.stringify(text)}`)
    return undefined
  }

  scope(name: Name): string | undefined {
    const text = this.text(name)
    if (text !== undefined && !SCOPE_TOKEN.test(text)) this.problem(name, `must be one scope, and is ${JSON.stringify(text)}`)
    return text
  }

  logLevel(name: Name): LogLevel {
    const text = this.text(name) ?? ''
    const level = Object.hasOwn(LOG_LEVELS, text) ? LOG_LEVELS[text] : undefined
    if (level === undefined) this.problem(name, `must be one of ${Object.keys(LOG_LEVELS).join(', ')}, and is ${JSON.stringify(text)}`)
    return level ?? 'info'
  }

  address(name: Name): Address {
    const text = this.text(name) ?? ''
    const path = /^unix:(.+)$/s.exec(text)?.[1]
    if (path !== undefined) return { path }
    const [, bracketed, plain, digits] = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]/\s]+)):([0-9]{1,5})$/.exec(text) ?? []
    const host = bracketed ?? plain
    const port = Number(digits)
    if (host === undefined || port > 65_535) this.problem(name, `must be host:port, [IPv6]:port or unix:/path, and is ${JSON.stringify(text)}`)
    return { host: host ?? '', port }
  }

  /** Undefined for the embedded store. */
  etcd(): EtcdConfig | undefined {
    const list = this.text('PLANTS_ETCD_ENDPOINTS')
    const prefix = this.text('PLANTS_ETCD_PREFIX') ?? ''
    const name = this.text('PLANTS_ETCD_USERNAME')
    const password = this.file('PLANTS_ETCD_PASSWORD_FILE')
    const ca = this.file('PLANTS_ETCD_CA_FILE')
    const cert = this.file('PLANTS_ETCD_CERT_FILE')
    const key = this.file('PLANTS_ETCD_KEY_FILE')
    const tls = { ca, cert, key }
    for (const { member, what } of tlsProblems(tls)) this.problem(ETCD_TLS_NAMES[member], what)
    const asked = ETCD_NAMES.filter((each) => this.#env[each])
    if (list === undefined) {
      for (const each of asked) this.problem(each, 'is of no use without PLANTS_ETCD_ENDPOINTS')
      return undefined
    }
    const endpoints = list.split(',').map((text) => text.trim().replace(/\/$/, ''))
    for (const each of endpoints) if (!isOrigin(each)) this.problem('PLANTS_ETCD_ENDPOINTS', `must be http:// or https:// with a host, a port and no more, and has ${JSON.stringify(each.replace(/.*@/s, '…@'))}`)
    const secure = endpoints.filter((each) => each.startsWith('https:')).length
    if (secure > 0 && secure < endpoints.length) this.problem('PLANTS_ETCD_ENDPOINTS', 'must be all http or all https')
    if (secure === 0) for (const each of asked) if (/(CA|CERT|KEY)_FILE$/.test(each)) this.problem(each, 'is of no use without https in PLANTS_ETCD_ENDPOINTS')
    if (!prefix.endsWith('/') || !prefix.isWellFormed()) this.problem('PLANTS_ETCD_PREFIX', `must end in /, and is ${JSON.stringify(prefix)}`)
    for (const [one, other] of ETCD_PAIRS) if (asked.includes(one) !== asked.includes(other)) this.problem(one, `and ${other} go together`)
    const user = name === undefined ? undefined : { name, password: (password ?? Buffer.alloc(0)).toString().replace(/\n$/, '') }
    return { endpoints, prefix, user, tls }
  }

  file(name: Name): Buffer | undefined {
    const path = this.text(name)
    try {
      return path === undefined ? undefined : readFileSync(path)
    } catch (error) {
      this.problem(name, `cannot be read: ${error instanceof Error ? error.message : String(error)}`)
      return undefined
    }
  }

  /** The one source of keys, tried out, so that what is wrong with it is told along with everything else. */
  keys(need: Need, issuer: string | undefined): KeyConfig | undefined {
    const sources = (['PLANTS_JWT_SECRET_FILE', 'PLANTS_JWT_SECRET', 'PLANTS_JWKS_FILE', 'PLANTS_JWKS_URL'] as const).filter((name) => this.text(name) !== undefined)
    if (need === 'dev') {
      for (const name of sources) this.problem(name, 'cannot be used with --dev, which makes a key of its own')
      return undefined
    }
    const [source, second] = sources
    if (second !== undefined) {
      this.problem(sources.join(', '), 'are set: keys come from one place only')
      return undefined
    }
    try {
      const config = this.#keyConfig(source)
      if (config.kind !== 'discovery' || issuer !== undefined) createKeySource(config, issuer ?? '', () => {}).close()
      return config
    } catch (error) {
      if (error instanceof ConfigError) this.problems.push(...error.problems)
      else this.problem(source ?? 'PLANTS_ISSUER', `cannot be used: ${error instanceof Error ? error.message : String(error)}`)
      return undefined
    }
  }

  #keyConfig(source: Name | undefined): KeyConfig {
    const text = source === undefined ? '' : (this.text(source) ?? '')
    switch (source) {
      case 'PLANTS_JWT_SECRET_FILE': {
        const bytes = readFileSync(text)
        return { kind: 'secret', secret: bytes.at(-1) === 0x0a ? bytes.subarray(0, -1) : bytes }
      }
      case 'PLANTS_JWT_SECRET':
        return { kind: 'secret', secret: Buffer.from(text) }
      case 'PLANTS_JWKS_FILE':
        return { kind: 'file', path: text }
      case 'PLANTS_JWKS_URL':
        return { kind: 'url', url: text }
      default:
        return { kind: 'discovery' }
    }
  }
}

function isOrigin(text: string): boolean {
  return /^https?:\/\//.test(text) && URL.canParse(text) && new URL(text).href === `${new URL(text).origin}/`
}

/** The defaults, for a service that is embedded and reads no environment. */
export const DEFAULTS: Omit<Config, 'issuer' | 'audience' | 'keys'> = defaults()

function defaults(): Omit<Config, 'issuer' | 'audience' | 'keys'> {
  const { issuer, audience, keys, ...rest } = readConfig({}, 'storage')
  return rest
}
