import { types } from 'node:util'
import type { KeyConfig } from './auth/keys.ts'
import { type Address, SOCKET_PATH_MAX_BYTES } from './http/listen.ts'
import type { OnLog } from './ops/log.ts'
import { readRegularFile } from './regular-file.ts'
import { integer, members, oneOf, parsedBy, path } from './rules.ts'
import { type Rule, type Rules, shown, text, textThat } from './rules.ts'
import type { EtcdConfig } from './store/etcd/store.ts'
import { tlsProblems } from './store/etcd/tls.ts'

/* The rules of single options and groups. */

const PORT_MAX = 65_535
const HOST_AND_PORT = members({ host: text, port: integer(0, PORT_MAX) })
/** RFC 6749 §3.3. */
const SCOPE_TOKEN = /^[\x21\x23-\x5b\x5d-\x7e]+$/
/** A secret has less than 1 KiB, and all certificates that a system trusts have some 200. */
const SECRET_MAX_BYTES = 64 * 1024
const PEM_MAX_BYTES = 1024 * 1024

export const scope = textThat('be one scope', (given) => SCOPE_TOKEN.test(given))

const socketPath: Rule<string> = (value, option, wrong) => {
  const resolved = path(value, option, wrong)
  const bytes = Buffer.byteLength(resolved ?? '')
  if (bytes <= SOCKET_PATH_MAX_BYTES) return resolved
  const bound = `a socket's path has ${SOCKET_PATH_MAX_BYTES} at most`
  return wrong(option, `is too long: as an absolute path it has ${bytes} bytes, and ${bound}`)
}

const SOCKET = members({ path: socketPath })

/** An object, or text as in the environment. */
export const address: Rule<Address> = (value, option, wrong) => {
  if (typeof value === 'object' && value !== null)
    return 'path' in value ? SOCKET(value, option, wrong) : HOST_AND_PORT(value, option, wrong)
  const written = typeof value === 'string' ? value : ''
  const [, socket] = /^unix:(.+)$/s.exec(written) ?? []
  if (socket !== undefined) {
    const resolved = socketPath(socket, option, wrong)
    return resolved === undefined ? undefined : { path: resolved }
  }
  const form = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]/\s]+)):([0-9]{1,5})$/
  const [, bracketed, plain, digits] = form.exec(written) ?? []
  const host = bracketed ?? plain
  const port = Number(digits)
  if (host !== undefined && port <= PORT_MAX) return { host, port }
  return wrong(option, `must be host:port, [IPv6]:port or unix:/path, and is ${shown(value)}`)
}

export const addressOrOff: Rule<Address | 'off'> = (value, ...rest) =>
  value === 'off' ? value : address(value, ...rest)

/** The content of a file, without one final newline. */
function readSecret(file: string): Buffer {
  const content = readRegularFile(file, SECRET_MAX_BYTES)
  return content.at(-1) === 0x0a ? content.subarray(0, -1) : content
}

/** Never shown. Copied: an application may overwrite its bytes before they are first used. */
const bytes: Rule<Buffer> = (value, option, wrong) => {
  if (types.isUint8Array(value)) return Buffer.from(value)
  if (typeof value === 'string' && value.isWellFormed()) return Buffer.from(value)
  return wrong(option, 'must be bytes or a text')
}

/** In the variable itself, or in a file that it names. */
export const secret = parsedBy(
  (given, variable) => (variable.endsWith('_FILE') ? readSecret(given) : given),
  bytes,
)

export const pem = parsedBy((file) => readRegularFile(file, PEM_MAX_BYTES), bytes)

/** Never shown. */
export const password = parsedBy<string>(
  (file) => new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(readSecret(file)),
  (value, option, wrong) => {
    if (typeof value === 'string' && value.isWellFormed()) return value
    return wrong(option, 'must be a text')
  },
)

/** A list, or text as in the environment. */
export const endpoints: Rule<readonly string[]> = (value, option, wrong) => {
  const list: unknown = typeof value === 'string' ? value.split(',') : value
  const given: readonly unknown[] = Array.isArray(list) ? list : []
  if (given.length === 0) return wrong(option, 'must be a list of one URL or more')
  const texts = given.map((each) => (typeof each === 'string' ? each : shown(each)))
  const origins = texts.map((each) => each.trim().replace(/\/$/, ''))
  for (const [at, each] of origins.entries()) {
    const form = 'must be http:// or https:// with a host, a port and no more'
    if (!isOrigin(each)) wrong(option, `${form}, and URL ${at + 1} is not`)
  }
  const isMixed = origins.some(isSecure) && !origins.every(isSecure)
  return isMixed ? wrong(option, 'must be all http or all https') : origins
}

export const prefix = textThat('end in /', (given) => given.endsWith('/'))

/** The members of the option, and what they require of each other. */
export function etcd(rules: Rules<Omit<EtcdConfig, 'timing'>>): Rule<EtcdConfig> {
  const all = members(rules)
  const read: Rule<EtcdConfig> = (value, option, wrong) => {
    const config = all(value, option, wrong)
    if (!config?.tls) return config
    // Object() makes an object of anything. Its members are still unknown.
    const { tls } = Object(value) as { readonly tls?: unknown }
    const given = Object(tls) as Readonly<Record<string, unknown>>
    const isGiven = (member: string): boolean => given[member] !== undefined
    const wrongTls = (member: string, what: string) => wrong(`${option}.tls.${member}`, what)
    if (config.endpoints && !config.endpoints.some(isSecure)) {
      const useless = Object.keys(config.tls).filter(isGiven)
      for (const member of useless) wrongTls(member, 'is of no use without https')
      return config
    }
    if (isGiven('cert') && !isGiven('key')) wrongTls('key', 'is required by the certificate')
    if (isGiven('key') && !isGiven('cert')) wrongTls('cert', 'is required by the key')
    for (const { member, what } of tlsProblems(config.tls)) wrongTls(member, what)
    return config
  }
  return Object.assign(read, all)
}

/** One of the members, as `kind` says; none for `discovery`. */
export function keys(rules: {
  readonly secret: Rule<Buffer>
  readonly path: Rule<string>
  readonly url: Rule<string>
}): Rule<KeyConfig> {
  const { secret, path, url } = rules
  const byKind: Readonly<Record<KeyConfig['kind'], Rule<KeyConfig>>> = {
    secret: members({ kind: oneOf(['secret']), secret }),
    file: members({ kind: oneOf(['file']), path }),
    url: members({ kind: oneOf(['url']), url }),
    discovery: members({ kind: oneOf(['discovery']) }),
  }
  const kinds = new Map<unknown, Rule<KeyConfig>>(Object.entries(byKind))
  const read: Rule<KeyConfig> = (value, option, wrong) => {
    // Object() makes an object of anything. Its members are still unknown.
    const { kind } = Object(value) as { readonly kind?: unknown }
    const rule = kinds.get(kind)
    if (rule) return rule(value, option, wrong)
    return wrong(option, 'must be an object whose kind is secret, file, url or discovery')
  }
  return Object.assign(read, { members: rules })
}

export const callback: Rule<OnLog> = (value, option, wrong) => {
  // What it does with a line cannot be checked.
  if (typeof value === 'function') return value as OnLog
  return wrong(option, `must be a function, and is ${shown(value)}`)
}

function isOrigin(given: string): boolean {
  if (!/^https?:\/\//.test(given) || !URL.canParse(given)) return false
  const { href, origin } = new URL(given)
  return href === `${origin}/`
}

function isSecure(endpoint: string): boolean {
  return endpoint.startsWith('https:')
}
