import { types } from 'node:util'
import { createKeySource, type KeyConfig } from './auth/keys.ts'
import { ConfigError } from './errors.ts'
import { type Address, SOCKET_PATH_MAX_BYTES } from './http/listen.ts'
import type { LogLevel } from './ops/log.ts'
import {
  integer,
  members,
  oneOf,
  optional,
  path,
  REPORTED,
  type Report,
  required,
  type Rule,
  type Rules,
  shown,
  text,
} from './rules.ts'
import type { EtcdConfig } from './store/etcd/store.ts'
import { tlsProblems } from './store/etcd/tls.ts'

/** All that the service can be told. Every path is absolute. */
export interface Config {
  readonly issuer: string
  readonly audience: string
  readonly listen: Address
  readonly adminListen: Address | 'off'
  readonly dataDirectory: string
  readonly maxDataBytes: number
  /** Where plants are kept instead of the data directory. */
  readonly etcd: EtcdConfig | undefined
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

/** All but the keys: a command that serves nothing needs none. */
export type Settings = Omit<Config, 'keys'>

/** What each number may be, ends included. */
export const BOUNDS = {
  maxDataBytes: [65_536, 1024 ** 3],
  clockToleranceSeconds: [0, 3600],
  maxBodyBytes: [1, 16 * 1024 * 1024],
  maxConnections: [1, 1_000_000],
  rateLimit: [1, 1_000_000],
  drainDelaySeconds: [0, 3600],
  shutdownTimeoutSeconds: [0, 3600],
} as const satisfies Partial<Record<keyof Config, readonly [min: number, max: number]>>

export const ETCD_PREFIX = 'plants/'
const LOG_LEVELS: readonly LogLevel[] = ['silent', 'error', 'info', 'debug']
const PORT_MAX = 65_535
const HOST_AND_PORT = { host: text, port: integer([0, PORT_MAX]) }
/** RFC 6749 §3.3. */
const SCOPE_TOKEN = /^[\x21\x23-\x5b\x5d-\x7e]+$/

const scope: Rule<string> = (value, name, wrong) => {
  if (typeof value === 'string' && SCOPE_TOKEN.test(value)) return value
  return wrong(name, `must be one scope, and is ${shown(value)}`)
}

const socketPath: Rule<string> = (value, name, wrong) => {
  const resolved = path(value, name, wrong)
  const bytes = Buffer.byteLength(resolved ?? '')
  if (bytes <= SOCKET_PATH_MAX_BYTES) return resolved
  const whole = resolved === value ? resolved : `${shown(value)}, resolved to ${resolved},`
  const bound = `a socket's path has ${SOCKET_PATH_MAX_BYTES} at most`
  return wrong(name, `is too long: ${whole} has ${bytes} bytes, and ${bound}`)
}

const address: Rule<Address> = (value, name, wrong) => {
  if (typeof value === 'object' && value !== null) {
    const hasPath = 'path' in value
    const rule: Rule<Address> = hasPath ? members({ path: socketPath }) : members(HOST_AND_PORT)
    return rule(value, name, wrong)
  }
  const written = typeof value === 'string' ? value : ''
  const unixPath = /^unix:(.+)$/s.exec(written)?.[1]
  if (unixPath !== undefined) {
    const socket = socketPath(unixPath, name, wrong)
    return socket === undefined ? undefined : { path: socket }
  }
  const form = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]/\s]+)):([0-9]{1,5})$/
  const [, bracketed, plain, digits] = form.exec(written) ?? []
  const host = bracketed ?? plain
  const port = Number(digits)
  if (host !== undefined && port <= PORT_MAX) return { host, port }
  return wrong(name, `must be host:port, [IPv6]:port or unix:/path, and is ${shown(value)}`)
}

const adminAddress: Rule<Address | 'off'> = (value, name, wrong) =>
  value === 'off' ? 'off' : address(value, name, wrong)

const endpoints: Rule<readonly string[]> = (value, name, wrong) => {
  const given: readonly unknown[] = Array.isArray(value) ? value : []
  if (given.length === 0) return wrong(name, 'must be a list of one URL or more')
  const texts = given.map((each) => (typeof each === 'string' ? each : shown(each)))
  const origins = texts.map((each) => each.trim().replace(/\/$/, ''))
  for (const each of origins) {
    if (isOrigin(each)) continue
    // A password may stand before an @.
    const readable = shown(each.replace(/.*@/s, '…@'))
    wrong(name, `must be http:// or https:// with a host, a port and no more, and has ${readable}`)
  }
  const secure = origins.filter(isSecure).length
  if (secure > 0 && secure < origins.length) return wrong(name, 'must be all http or all https')
  return origins
}

const prefix: Rule<string> = (value, name, wrong) => {
  if (value === undefined) return ETCD_PREFIX
  if (typeof value === 'string' && value.endsWith('/') && value.isWellFormed()) return value
  return wrong(name, `must end in /, and is ${shown(value)}`)
}

/** Never shown. Copied: the caller may overwrite its own bytes before they are first used. */
const secret: Rule<Buffer> = (value, name, wrong) => {
  if (types.isUint8Array(value)) return Buffer.from(value)
  if (typeof value === 'string' && value.isWellFormed()) return Buffer.from(value)
  return wrong(name, 'must be bytes or a text')
}

/** Never shown. */
const password: Rule<string> = (value, name, wrong) =>
  typeof value === 'string' && value.isWellFormed() ? value : wrong(name, 'must be a text')

const TLS = { ca: optional(secret), cert: optional(secret), key: optional(secret) }

const useless: Rule<undefined> = (value, name, wrong) =>
  value === undefined ? undefined : wrong(name, 'is of no use without https')

const noTls: Rule<EtcdConfig['tls']> = (value = {}, name, wrong) =>
  members<EtcdConfig['tls']>({ ca: useless, cert: useless, key: useless })(value, name, wrong)

const tls: Rule<EtcdConfig['tls']> = (given = {}, name, wrong) => {
  const read = members(TLS)(given, name, wrong)
  // Object() makes an object of anything; its members are still unknown.
  const { cert, key } = Object(given) as Readonly<Record<string, unknown>>
  if (cert !== undefined && key === undefined)
    wrong(`${name}.key`, 'is required by the certificate')
  if (key !== undefined && cert === undefined) wrong(`${name}.cert`, 'is required by the key')
  const problems = read ? tlsProblems(read) : []
  for (const { member, what } of problems) wrong(`${name}.${member}`, what)
  return read
}

const user = members<NonNullable<EtcdConfig['user']>>({
  name: required('whose password it is', text),
  password: required("the user's", password),
})

const etcd: Rule<EtcdConfig> = (value, name, wrong) => {
  // Object() makes an object of anything; its members are still unknown.
  const { endpoints: given } = Object(value) as Readonly<Record<string, unknown>>
  const isPlain = Array.isArray(given) && given.length > 0 && !given.some(isSecure)
  const rules = { endpoints, prefix, user: optional(user), tls: isPlain ? noTls : tls }
  return members<Omit<EtcdConfig, 'timing'>>(rules)(value, name, wrong)
}

const keys: Rule<KeyConfig> = (value, name, wrong) => {
  // Object() makes an object of anything; its members are still unknown.
  const { kind } = Object(value) as Readonly<Record<string, unknown>>
  switch (kind) {
    case 'secret':
      return members({ kind: oneOf([kind]), secret })(value, name, wrong)
    case 'file':
      return members({ kind: oneOf([kind]), path })(value, name, wrong)
    case 'url':
      return members({ kind: oneOf([kind]), url: text })(value, name, wrong)
    case 'discovery':
      return members({ kind: oneOf([kind]) })(value, name, wrong)
    default:
      return wrong(name, 'must be an object whose kind is secret, file, url or discovery')
  }
}

/** The option that is wrong where keys of a kind cannot be used. */
const BY_KIND = {
  secret: 'keys.secret',
  file: 'keys.path',
  url: 'keys.url',
  discovery: 'issuer',
} as const satisfies Readonly<Record<KeyConfig['kind'], string>>

const SETTINGS: Rules<Settings> = {
  issuer: required('the iss that tokens have', text),
  audience: required('the aud that tokens have for this service', text),
  listen: address,
  adminListen: adminAddress,
  dataDirectory: path,
  maxDataBytes: integer(BOUNDS.maxDataBytes),
  etcd: optional(etcd),
  ownerClaim: text,
  audienceClaim: text,
  scopeClaim: optional(text),
  readScope: optional(scope),
  writeScope: optional(scope),
  clockToleranceSeconds: integer(BOUNDS.clockToleranceSeconds),
  maxBodyBytes: integer(BOUNDS.maxBodyBytes),
  maxConnections: integer(BOUNDS.maxConnections),
  rateLimit: optional(integer(BOUNDS.rateLimit)),
  drainDelaySeconds: integer(BOUNDS.drainDelaySeconds),
  shutdownTimeoutSeconds: integer(BOUNDS.shutdownTimeoutSeconds),
  logLevel: oneOf(LOG_LEVELS),
}

/** Reads every option but the keys. What it returns is to be used if nothing was reported. */
export function readSettings(options: object, wrong: Report): Settings | undefined {
  return members(SETTINGS)(options, '', wrong)
}

/**
 * Reads where keys come from and tries it, so that its problems are reported with all others.
 * Undefined: it was reported.
 */
export function readKeys(
  value: unknown,
  issuer: string | undefined,
  wrong: Report,
): KeyConfig | undefined {
  if (value === REPORTED) return undefined
  const read = required('where keys come from', keys)(value, 'keys', wrong)
  const isWhole = read && Object.values(read).every((member: unknown) => member !== undefined)
  if (!isWhole || (read.kind === 'discovery' && issuer === undefined)) return undefined
  try {
    createKeySource(read, issuer ?? '', () => {}).close()
    return read
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    for (const problem of error.problems) wrong(BY_KIND[read.kind], problem)
    return undefined
  }
}

function isOrigin(given: string): boolean {
  if (!/^https?:\/\//.test(given) || !URL.canParse(given)) return false
  const { href, origin } = new URL(given)
  return href === `${origin}/`
}

function isSecure(endpoint: unknown): boolean {
  return typeof endpoint === 'string' && endpoint.trim().startsWith('https:')
}
