import type { KeyConfig } from './auth/keys.ts'
import { ConfigError, reasonOf } from './errors.ts'
import {
  BOUNDS,
  type Config,
  ETCD_PREFIX,
  readKeys,
  readSettings,
  type Settings,
} from './options.ts'
import { readRegularFile } from './regular-file.ts'
import { REPORTED, type Report } from './rules.ts'

export type { Address } from './http/listen.ts'
export type { Config } from './options.ts'

/**
 * What a command needs of it: all; all but the keys, which `--dev` brings; or the storage alone.
 */
export type Need = 'service' | 'dev' | 'storage'

export const DEV_ISSUER = 'plant-store-dev'
export const DEV_AUDIENCE = 'plants'

/**
 * [name, default as it would be written, meaning]; `--help` and the README's table show just this.
 */
export const VARIABLES = [
  [
    'PLANTS_LISTEN',
    '127.0.0.1:8080',
    'where plants are served: host:port, [::1]:port or unix:/path; port 0 picks a free one',
  ],
  ['PLANTS_ADMIN_LISTEN', '127.0.0.1:8081', 'where health is served: the same forms, or off'],
  ['PLANTS_DATA', './data', 'directory of the embedded store'],
  [
    'PLANTS_MAX_DATA_BYTES',
    '268435456',
    'size of the embedded database above which POST answers 507; at most 1073741824',
  ],
  [
    'PLANTS_ETCD_ENDPOINTS',
    '',
    'client URLs of etcd members, with commas between; set, plants are kept there instead',
  ],
  ['PLANTS_ETCD_PREFIX', ETCD_PREFIX, 'what all keys in etcd begin with; ends in /'],
  ['PLANTS_ETCD_USERNAME', '', 'user of etcd'],
  [
    'PLANTS_ETCD_PASSWORD_FILE',
    '',
    "file with that user's password: its text, less one final newline",
  ],
  [
    'PLANTS_ETCD_CA_FILE',
    '',
    "file with the PEM certificates that etcd's are signed by; unset: those that Node trusts",
  ],
  ['PLANTS_ETCD_CERT_FILE', '', 'file with the PEM client certificate for etcd'],
  ['PLANTS_ETCD_KEY_FILE', '', 'file with the PEM key of that certificate'],
  ['PLANTS_ISSUER', '', 'required: the iss that a token must have'],
  ['PLANTS_AUDIENCE', '', 'required: the audience that a token must have'],
  ['PLANTS_JWT_SECRET_FILE', '', 'file with the HS256 secret: its bytes, less one final newline'],
  ['PLANTS_JWT_SECRET', '', 'the HS256 secret itself, 32 bytes or more'],
  ['PLANTS_JWKS_FILE', '', 'file with a JSON Web Key Set; read again when it changes'],
  [
    'PLANTS_JWKS_URL',
    '',
    "URL of a JSON Web Key Set; with none of these four, the issuer's discovery document names it",
  ],
  ['PLANTS_OWNER_CLAIM', 'sub', 'the claim whose value owns plants'],
  ['PLANTS_AUDIENCE_CLAIM', 'aud', 'the claim that holds the audience'],
  ['PLANTS_READ_SCOPE', '', 'the scope that GET requires'],
  ['PLANTS_WRITE_SCOPE', '', 'the scope that POST requires'],
  ['PLANTS_SCOPE_CLAIM', '', 'the claim that holds scopes; unset: scope, else scp'],
  ['PLANTS_CLOCK_TOLERANCE', '5', 'seconds by which the clocks of issuer and service may differ'],
  ['PLANTS_MAX_BODY_BYTES', '1048576', 'longest request body'],
  [
    'PLANTS_MAX_CONNECTIONS',
    '10000',
    'connections at a time; one more is closed without an answer',
  ],
  ['PLANTS_RATE_LIMIT', '', 'requests a second for each owner; unset: no limit'],
  ['PLANTS_DRAIN_DELAY', '0', 'seconds that a stop serves on, so that balancers notice'],
  ['PLANTS_SHUTDOWN_TIMEOUT', '10', 'seconds that a stop waits for what is under way'],
  ['PLANTS_LOG_LEVEL', 'info', 'silent, error, info (with one line a request) or debug'],
] as const satisfies readonly (readonly [
  name: `PLANTS_${string}`,
  fallback: string,
  meaning: string,
])[]

type Name = (typeof VARIABLES)[number][0]

/** The option that each variable sets, as `createPlantService` takes it. */
const OPTIONS = {
  PLANTS_LISTEN: 'listen',
  PLANTS_ADMIN_LISTEN: 'adminListen',
  PLANTS_DATA: 'dataDirectory',
  PLANTS_MAX_DATA_BYTES: 'maxDataBytes',
  PLANTS_ETCD_ENDPOINTS: 'etcd.endpoints',
  PLANTS_ETCD_PREFIX: 'etcd.prefix',
  PLANTS_ETCD_USERNAME: 'etcd.user.name',
  PLANTS_ETCD_PASSWORD_FILE: 'etcd.user.password',
  PLANTS_ETCD_CA_FILE: 'etcd.tls.ca',
  PLANTS_ETCD_CERT_FILE: 'etcd.tls.cert',
  PLANTS_ETCD_KEY_FILE: 'etcd.tls.key',
  PLANTS_ISSUER: 'issuer',
  PLANTS_AUDIENCE: 'audience',
  PLANTS_JWT_SECRET_FILE: 'keys.secret',
  PLANTS_JWT_SECRET: 'keys.secret',
  PLANTS_JWKS_FILE: 'keys.path',
  PLANTS_JWKS_URL: 'keys.url',
  PLANTS_OWNER_CLAIM: 'ownerClaim',
  PLANTS_AUDIENCE_CLAIM: 'audienceClaim',
  PLANTS_READ_SCOPE: 'readScope',
  PLANTS_WRITE_SCOPE: 'writeScope',
  PLANTS_SCOPE_CLAIM: 'scopeClaim',
  PLANTS_CLOCK_TOLERANCE: 'clockToleranceSeconds',
  PLANTS_MAX_BODY_BYTES: 'maxBodyBytes',
  PLANTS_MAX_CONNECTIONS: 'maxConnections',
  PLANTS_RATE_LIMIT: 'rateLimit',
  PLANTS_DRAIN_DELAY: 'drainDelaySeconds',
  PLANTS_SHUTDOWN_TIMEOUT: 'shutdownTimeoutSeconds',
  PLANTS_LOG_LEVEL: 'logLevel',
} as const satisfies Readonly<Record<Name, string>>

const FALLBACKS: ReadonlyMap<string, string> = new Map(
  VARIABLES.map(([name, fallback]) => [name, fallback]),
)
const NAMES = VARIABLES.map(([name]) => name)
const ETCD_NAMES = NAMES.filter((name) => name.startsWith('PLANTS_ETCD_'))
const KEY_NAMES = NAMES.filter((name) => OPTIONS[name].startsWith('keys.'))
/** A secret or a key has a few KiB, and all certificates that a system trusts have some 200. */
const SECRET_MAX_BYTES = 64 * 1024
const PEM_MAX_BYTES = 1024 * 1024

/** What Kubernetes sets for a Service named plants, or plants-…: names and values. */
const SERVICE_VARIABLE = new RegExp(
  `^PLANTS(_[A-Z0-9_]+)?_(${[
    'SERVICE_HOST=[0-9a-f.:]+',
    'SERVICE_PORT(_[A-Z0-9_]+)?=[0-9]+',
    'PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.+',
    'PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO=(tcp|udp|sctp)|PORT=[0-9]+|ADDR=[0-9a-f.:]+)',
  ].join('|')})$`,
)

type Environment = Readonly<Record<string, string | undefined>>

/** What a command is given: keys only where it verifies tokens with configured ones. */
export type ReadConfig = Settings & { readonly keys: KeyConfig | undefined }

/**
 * Reads the configuration from environment variables; an empty value counts as unset.
 * @throws ConfigError that names every problem by its variable.
 */
export function readConfig(env: Environment, need: Need): ReadConfig {
  const reader = new Reader(env)
  reader.refuseUnknown()
  const wrong: Report = (option, what) => reader.problem(reader.nameOf(option), what)
  const settings = readSettings(reader.options(need), wrong)
  const keys = need === 'service' ? readKeys(reader.keys(), settings?.issuer, wrong) : undefined
  if (need === 'dev') reader.refuseKeys()
  if (!settings || reader.problems.length > 0) throw new ConfigError(reader.problems)
  return { ...settings, keys }
}

/**
 * Reads the options of an embedding application. What is left out has the variable's default.
 * @throws ConfigError that names every problem by its option.
 */
export function readOptions(given: unknown): Config {
  if (typeof given !== 'object' || given === null) {
    throw new ConfigError(['the options must be an object'])
  }
  const problems: string[] = []
  const wrong: Report = (option, what) => void problems.push(`${option} ${what}`)
  const options = new Map<string, unknown>(Object.entries(new Reader({}).options('service')))
  for (const [name, value] of Object.entries(given)) {
    if (value !== undefined) options.set(name, value)
  }
  const source = options.get('keys')
  options.delete('keys')
  const settings = readSettings(Object.fromEntries(options), wrong)
  const keys = readKeys(source, settings?.issuer, wrong)
  if (!settings || !keys || problems.length > 0) throw new ConfigError(problems)
  return { ...settings, keys }
}

class Reader {
  readonly problems: string[] = []
  readonly #env: Environment

  constructor(env: Environment) {
    this.#env = env
  }

  problem(name: string, what: string): undefined {
    this.problems.push(`${name} ${what}`)
  }

  refuseUnknown(): void {
    for (const [name, value] of Object.entries(this.#env)) {
      if (!name.startsWith('PLANTS_') || !value || FALLBACKS.has(name)) continue
      if (SERVICE_VARIABLE.test(`${name}=${value}`)) continue
      this.problem(name, 'is not known: see --help for the variables that are')
    }
  }

  /** The variable of an option; of two for one option, the one that is set. */
  nameOf(option: string): string {
    const names = NAMES.filter((name) => OPTIONS[name] === option)
    return names.find((name) => this.#env[name]) ?? names[0] ?? option
  }

  /** All but the keys, as an embedding application would say it. */
  options(need: Need): Readonly<Record<string, unknown>> {
    const plain = NAMES.filter((name) => !OPTIONS[name].includes('.'))
    const options = Object.fromEntries(plain.map((name) => [OPTIONS[name], this.#value(name)]))
    if (need !== 'service') {
      options['issuer'] ??= DEV_ISSUER
      options['audience'] ??= DEV_AUDIENCE
    }
    return { ...options, etcd: this.#etcd() }
  }

  keys(): unknown {
    const sources = KEY_NAMES.filter((name) => this.#text(name) !== undefined)
    const [source] = sources
    if (sources.length > 1) {
      this.problem(sources.join(', '), 'are set: keys come from one place only')
      return REPORTED
    }
    switch (source) {
      case 'PLANTS_JWT_SECRET_FILE':
        return { kind: 'secret', secret: this.#secret(source) }
      case 'PLANTS_JWT_SECRET':
        return { kind: 'secret', secret: this.#text(source) }
      case 'PLANTS_JWKS_FILE':
        return { kind: 'file', path: this.#text(source) }
      case 'PLANTS_JWKS_URL':
        return { kind: 'url', url: this.#text(source) }
      default:
        return { kind: 'discovery' }
    }
  }

  refuseKeys(): void {
    for (const name of KEY_NAMES.filter((each) => this.#text(each) !== undefined)) {
      this.problem(name, 'cannot be used with --dev, which makes a key of its own')
    }
  }

  #etcd(): unknown {
    const list = this.#text('PLANTS_ETCD_ENDPOINTS')
    if (list === undefined) {
      for (const name of ETCD_NAMES.filter((each) => this.#env[each])) {
        this.problem(name, 'is of no use without PLANTS_ETCD_ENDPOINTS')
      }
      return undefined
    }
    const name = this.#text('PLANTS_ETCD_USERNAME')
    const bytes = this.#secret('PLANTS_ETCD_PASSWORD_FILE')
    const password = Buffer.isBuffer(bytes) ? bytes.toString() : bytes
    return {
      endpoints: list.split(','),
      prefix: this.#text('PLANTS_ETCD_PREFIX'),
      user: name === undefined && password === undefined ? undefined : { name, password },
      tls: {
        ca: this.#file('PLANTS_ETCD_CA_FILE', PEM_MAX_BYTES),
        cert: this.#file('PLANTS_ETCD_CERT_FILE', PEM_MAX_BYTES),
        key: this.#file('PLANTS_ETCD_KEY_FILE', PEM_MAX_BYTES),
      },
    }
  }

  #text(name: Name): string | undefined {
    return this.#env[name] || FALLBACKS.get(name) || undefined
  }

  /** A number where the option is one and digits are all that is written. */
  #value(name: Name): string | number | undefined {
    const text = this.#text(name)
    const isNumber = Object.hasOwn(BOUNDS, OPTIONS[name]) && /^[0-9]{1,15}$/.test(text ?? '')
    return isNumber ? Number(text) : text
  }

  /** A file's bytes less one final newline. */
  #secret(name: Name): Buffer | typeof REPORTED | undefined {
    const bytes = this.#file(name, SECRET_MAX_BYTES)
    return Buffer.isBuffer(bytes) && bytes.at(-1) === 0x0a ? bytes.subarray(0, -1) : bytes
  }

  #file(name: Name, maxBytes: number): Buffer | typeof REPORTED | undefined {
    const path = this.#text(name)
    try {
      return path === undefined ? undefined : readRegularFile(path, maxBytes)
    } catch (error) {
      const reason = reasonOf(error)
      this.problem(name, `cannot be read: ${reason}`)
      return REPORTED
    }
  }
}
