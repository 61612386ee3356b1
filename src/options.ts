import { types } from 'node:util'
import type { KeyConfig } from './auth/keys.ts'
import { type Address, SOCKET_PATH_MAX_BYTES } from './http/listen.ts'
import { readRegularFile } from './regular-file.ts'
import { type FromVariable, integer, members, oneOf, path } from './rules.ts'
import { type Rule, type Rules, shown, text } from './rules.ts'
import type { EtcdConfig } from './store/etcd/store.ts'
import { tlsProblems } from './store/etcd/tls.ts'

/* The rules that one option or group of options needs. */

const PORT_MAX = 65_535
const HOST_AND_PORT = members({ host: text, port: integer(0, PORT_MAX) })
/** RFC 6749 §3.3. */
const SCOPE_TOKEN = /^[\x21\x23-\x5b\x5d-\x7e]+$/
/** A secret or a key has a few KiB. All certificates that a system trusts have some 200 KiB. */
const SECRET_MAX_BYTES = 64 * 1024
const PEM_MAX_BYTES = 1024 * 1024

export const scope: Rule<string> = {
  read(value, option, wrong) {
    if (typeof value === 'string' && SCOPE_TOKEN.test(value)) return value
    return wrong(option, `must be one scope, and is ${shown(value)}`)
  },
}

const socketPath: Rule<string> = {
  read(value, option, wrong) {
    const resolved = path.read(value, option, wrong)
    const bytes = Buffer.byteLength(resolved ?? '')
    if (bytes <= SOCKET_PATH_MAX_BYTES) return resolved
    const whole = resolved === value ? resolved : `${shown(value)}, resolved to ${resolved},`
    const bound = `a socket's path has ${SOCKET_PATH_MAX_BYTES} at most`
    return wrong(option, `is too long: ${whole} has ${bytes} bytes, and ${bound}`)
  },
}

/** An object, or the text that an environment variable has. */
export const address: Rule<Address> = {
  read(value, option, wrong) {
    if (typeof value === 'object' && value !== null) {
      const rule: Rule<Address> = 'path' in value ? members({ path: socketPath }) : HOST_AND_PORT
      return rule.read(value, option, wrong)
    }
    const written = typeof value === 'string' ? value : ''
    const unixPath = /^unix:(.+)$/s.exec(written)?.[1]
    if (unixPath !== undefined) {
      const socket = socketPath.read(unixPath, option, wrong)
      return socket === undefined ? undefined : { path: socket }
    }
    const form = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]/\s]+)):([0-9]{1,5})$/
    const [, bracketed, plain, digits] = form.exec(written) ?? []
    const host = bracketed ?? plain
    const port = Number(digits)
    if (host !== undefined && port <= PORT_MAX) return { host, port }
    return wrong(option, `must be host:port, [IPv6]:port or unix:/path, and is ${shown(value)}`)
  },
}

export const addressOrOff: Rule<Address | 'off'> = {
  read: (value, ...rest) => (value === 'off' ? value : address.read(value, ...rest)),
}

/** The bytes of the file that the variable names, without one final newline. */
function secretFile({ text }: FromVariable): Buffer {
  const bytes = readRegularFile(text, SECRET_MAX_BYTES)
  return bytes.at(-1) === 0x0a ? bytes.subarray(0, -1) : bytes
}

/** Bytes or text. Never shown. Copied: the caller may overwrite its bytes before their first use. */
const bytes: Rule<Buffer> = {
  read(value, option, wrong) {
    if (types.isUint8Array(value)) return Buffer.from(value)
    if (typeof value === 'string' && value.isWellFormed()) return Buffer.from(value)
    return wrong(option, 'must be bytes or a text')
  },
}

/** In a variable, or in a file that the variable names. */
export const secret: Rule<Buffer> = {
  ...bytes,
  parse: (given) => (given.variable.endsWith('_FILE') ? secretFile(given) : given.text),
}

export const pem: Rule<Buffer> = {
  ...bytes,
  parse: ({ text }) => readRegularFile(text, PEM_MAX_BYTES),
}

/** Never shown. */
export const password: Rule<string> = {
  parse: (given) => secretFile(given).toString(),
  read(value, option, wrong) {
    if (typeof value === 'string' && value.isWellFormed()) return value
    return wrong(option, 'must be a text')
  },
}

export const endpoints: Rule<readonly string[]> = {
  parse: ({ text }) => text.split(','),
  read(value, option, wrong) {
    const given: readonly unknown[] = Array.isArray(value) ? value : []
    if (given.length === 0) return wrong(option, 'must be a list of one URL or more')
    const texts = given.map((each) => (typeof each === 'string' ? each : shown(each)))
    const origins = texts.map((each) => each.trim().replace(/\/$/, ''))
    for (const each of origins.filter((origin) => !isOrigin(origin))) {
      // What is before an @ may hold a password.
      const readable = shown(each.replace(/.*@/s, '…@'))
      const form = 'must be http:// or https:// with a host, a port and no more'
      wrong(option, `${form}, and has ${readable}`)
    }
    const secure = origins.filter(isSecure).length
    if (secure === 0 || secure === origins.length) return origins
    return wrong(option, 'must be all http or all https')
  },
}

export const prefix: Rule<string> = {
  read(value, option, wrong) {
    if (typeof value === 'string' && value.endsWith('/') && value.isWellFormed()) return value
    return wrong(option, `must end in /, and is ${shown(value)}`)
  },
}

/** The members, and what they require of each other. */
export function etcd(rules: Rules<Omit<EtcdConfig, 'timing'>>): Rule<EtcdConfig> {
  const each = members(rules)
  return {
    ...each,
    read(value, option, wrong) {
      const read = each.read(value, option, wrong)
      if (!read?.tls) return read
      // Object() makes an object of anything. Its members are still unknown.
      const { tls } = Object(value) as { readonly tls?: unknown }
      const given = new Map<string, unknown>(Object.entries(Object(tls)))
      const isGiven = (member: string): boolean => given.get(member) !== undefined
      const wrongTls = (member: string, what: string) => wrong(`${option}.tls.${member}`, what)
      if (read.endpoints && !read.endpoints.some(isSecure)) {
        const useless = Object.keys(read.tls).filter(isGiven)
        for (const member of useless) wrongTls(member, 'is of no use without https')
        return read
      }
      if (isGiven('cert') && !isGiven('key')) wrongTls('key', 'is required by the certificate')
      if (isGiven('key') && !isGiven('cert')) wrongTls('cert', 'is required by the key')
      for (const { member, what } of tlsProblems(read.tls)) wrongTls(member, what)
      return read
    },
  }
}

/** One of the members, as `kind` says, or none of them. */
export function keys(rules: {
  readonly secret: Rule<Buffer>
  readonly path: Rule<string>
  readonly url: Rule<string>
}): Rule<KeyConfig> {
  const { secret, path, url } = rules
  return {
    members: rules,
    read(value, option, wrong) {
      // Object() makes an object of anything. Its members are still unknown.
      const { kind } = Object(value) as { readonly kind?: unknown }
      switch (kind) {
        case 'secret':
          return members({ kind: oneOf([kind]), secret }).read(value, option, wrong)
        case 'file':
          return members({ kind: oneOf([kind]), path }).read(value, option, wrong)
        case 'url':
          return members({ kind: oneOf([kind]), url }).read(value, option, wrong)
        case 'discovery':
          return members({ kind: oneOf([kind]) }).read(value, option, wrong)
        default:
          return wrong(option, 'must be an object whose kind is secret, file, url or discovery')
      }
    },
  }
}

function isOrigin(given: string): boolean {
  if (!/^https?:\/\//.test(given) || !URL.canParse(given)) return false
  const { href, origin } = new URL(given)
  return href === `${origin}/`
}

function isSecure(endpoint: string): boolean {
  return endpoint.startsWith('https:')
}
