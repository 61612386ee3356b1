import { LOG_LEVELS, type OnLog } from './ops/log.ts'
import * as option from './options.ts'
import { defaultsTo, integer, members, oneOf, optional, path, required } from './rules.ts'
import { type Rule, setting, text } from './rules.ts'

const GIB = 1024 ** 3

const ETCD_USER = members({
  name: setting(required('the user whose password it is', text), {
    PLANTS_ETCD_USERNAME: 'user of etcd',
  }),
  password: setting(required('the password of that user', option.password), {
    PLANTS_ETCD_PASSWORD_FILE: "file with that user's password: its text, less one final newline",
  }),
})

const ETCD_TLS = members({
  ca: setting(optional(option.pem), {
    PLANTS_ETCD_CA_FILE:
      "file with the PEM certificates that etcd's are signed by; unset: those that Node trusts",
  }),
  cert: setting(optional(option.pem), {
    PLANTS_ETCD_CERT_FILE: 'file with the PEM client certificate for etcd',
  }),
  key: setting(optional(option.pem), {
    PLANTS_ETCD_KEY_FILE: 'file with the PEM key of that certificate',
  }),
})

const ETCD = {
  endpoints: setting(option.endpoints, {
    PLANTS_ETCD_ENDPOINTS:
      'client URLs of etcd members, with commas between; set, plants are kept there instead',
  }),
  prefix: setting(defaultsTo('plants/', option.prefix), {
    PLANTS_ETCD_PREFIX: 'what all keys in etcd begin with; ends in /',
  }),
  user: optional(ETCD_USER),
  tls: defaultsTo({}, ETCD_TLS),
}

const KEYS = {
  secret: setting(required('32 bytes or more, or a text', option.secret), {
    PLANTS_JWT_SECRET_FILE: 'file with the HS256 secret: its bytes, less one final newline',
    PLANTS_JWT_SECRET: 'the HS256 secret itself, 32 bytes or more',
  }),
  path: setting(path, {
    PLANTS_JWKS_FILE: 'file with a JSON Web Key Set; read again when it changes',
  }),
  url: setting(text, {
    PLANTS_JWKS_URL:
      "URL of a JSON Web Key Set; none of these four: the issuer's discovery document names it",
  }),
}

/**
 * Every setting, once: the option with its type, bounds and default, and the environment variable
 * with its meaning. `--help` and the table in scripts/deploy/README.md have this order. What an
 * editor shows for an option is in index.ts.
 */
export const SETTINGS = {
  listen: setting(defaultsTo('127.0.0.1:8080', option.address), {
    PLANTS_LISTEN:
      'where plants are served: host:port, [::1]:port or unix:/path; port 0 picks a free one',
  }),
  adminListen: setting(defaultsTo('127.0.0.1:8081', option.addressOrOff), {
    PLANTS_ADMIN_LISTEN: 'where health is served: the same forms, or off',
  }),
  dataDirectory: setting(defaultsTo('./data', path), {
    PLANTS_DATA: 'directory of the embedded store',
  }),
  maxDataBytes: setting(defaultsTo(GIB / 4, integer(65_536, GIB)), {
    PLANTS_MAX_DATA_BYTES: `size of the embedded data above which POST answers 507; at most ${GIB}`,
  }),
  /** If set, plants are in etcd instead of the data directory. */
  etcd: optional(option.etcd(ETCD)),
  issuer: setting(required('the iss that tokens have', text), {
    PLANTS_ISSUER: 'required: the iss that a token must have',
  }),
  audience: setting(required('the aud that tokens have for this service', text), {
    PLANTS_AUDIENCE: 'required: the audience that a token must have',
  }),
  keys: required('where keys come from', option.keys(KEYS)),
  ownerClaim: setting(defaultsTo('sub', text), {
    PLANTS_OWNER_CLAIM: 'the claim whose value owns plants',
  }),
  audienceClaim: setting(defaultsTo('aud', text), {
    PLANTS_AUDIENCE_CLAIM: 'the claim that holds the audience',
  }),
  readScope: setting(optional(option.scope), { PLANTS_READ_SCOPE: 'the scope that GET requires' }),
  writeScope: setting(optional(option.scope), {
    PLANTS_WRITE_SCOPE: 'the scope that POST requires',
  }),
  /** Undefined: `scope`, else `scp`. */
  scopeClaim: setting(optional(text), {
    PLANTS_SCOPE_CLAIM: 'the claim that holds scopes; unset: scope, else scp',
  }),
  clockToleranceSeconds: setting(defaultsTo(5, integer(0, 3600)), {
    PLANTS_CLOCK_TOLERANCE: 'seconds by which the clocks of issuer and service may differ',
  }),
  maxBodyBytes: setting(defaultsTo(1024 ** 2, integer(1, 16 * 1024 ** 2)), {
    PLANTS_MAX_BODY_BYTES: 'longest request body',
  }),
  maxConnections: setting(defaultsTo(10_000, integer(1, 1_000_000)), {
    PLANTS_MAX_CONNECTIONS: 'connections at a time; one more is closed without an answer',
  }),
  /** Requests per second for each owner. Undefined: no limit. */
  rateLimit: setting(optional(integer(1, 1_000_000)), {
    PLANTS_RATE_LIMIT: 'requests a second for each owner; unset: no limit',
  }),
  drainDelaySeconds: setting(defaultsTo(0, integer(0, 3600)), {
    PLANTS_DRAIN_DELAY: 'seconds that a stop serves on, so that balancers notice',
  }),
  shutdownTimeoutSeconds: setting(defaultsTo(10, integer(0, 3600)), {
    PLANTS_SHUTDOWN_TIMEOUT: 'seconds that a stop waits for what is under way',
  }),
  logLevel: setting(defaultsTo('info', oneOf(LOG_LEVELS)), {
    PLANTS_LOG_LEVEL: 'silent, error, info (with one line a request) or debug',
  }),
  onLog: optional<OnLog>(option.callback),
}

type ValueOf<R> = R extends Rule<infer T> ? T : never

/** All that the service can be told. Every path is absolute. */
export type Config = { readonly [K in keyof typeof SETTINGS]: ValueOf<(typeof SETTINGS)[K]> }

export interface Variable {
  readonly name: string
  /** The option that it sets, such as `etcd.tls.ca`. */
  readonly option: string
  /** As it would be written; empty if there is none. */
  readonly fallback: string
  readonly meaning: string
}

export const VARIABLES = variablesOf(SETTINGS)

/** The variable that sets an option; of two, the first. */
export function variableOf(option: string): string {
  return VARIABLES.find((variable) => variable.option === option)?.name ?? option
}

function variablesOf(rules: Readonly<Record<string, Rule<unknown>>>, group = ''): Variable[] {
  return Object.entries(rules).flatMap(([name, { members: inner, variables = {}, fallback }]) => {
    const option = `${group}${name}`
    if (inner) return variablesOf(inner, `${option}.`)
    const written = String(fallback ?? '')
    return Object.entries(variables).map((each) => {
      return { name: each[0], option, fallback: written, meaning: each[1] }
    })
  })
}
