/* The kinds of value that a setting may have. */

import { createPrivateKey, X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { types } from 'node:util'
import { contentOf } from '../auth/secrets.ts'
import { withoutPath } from '../errors.ts'
import { type Address, SOCKET_PATH_MAX_BYTES } from '../http/listen.ts'

/**
 * Makes a value of what an operator wrote, or a program passed.
 * @throws Error that says what the value must be. It never quotes the value: that may be a secret
 * in the wrong place.
 */
export type Read<T> = (given: unknown) => T

/** By name: TypeScript before 5.7 cannot read an inferred `Buffer<…>` in a published type. */
export interface Bytes extends Buffer {}

const PORT_MAX = 65_535
const AUDIENCES_MAX = 8
/** A host with brackets or without, or none; and a port. */
const HOST_AND_PORT = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]/\s]*)):([0-9]{1,5})$/

function textThat(what: string, form: RegExp): Read<string> {
  return (given) => {
    if (typeof given === 'string' && given.isWellFormed() && form.test(given)) return given
    throw new Error(`must ${what}, and is ${kindOf(given)}`)
  }
}

export const text = textThat('be a text that is not empty', /./s)
/** No list of URLs, which might be expected. */
export const one = textThat('be one text: run a service for each issuer', /^(?!.*,\s*https?:)./s)

/** Texts with commas between, or a list of texts, which may have commas themselves. */
export const audiences: Read<readonly string[]> = (given) => {
  const entries: readonly unknown[] = Array.isArray(given) ? [...given] : text(given).split(',')
  const all = entries.map((entry) => (typeof entry === 'string' ? entry.trim() : ''))
  const isOne = (entry: string): boolean => entry !== '' && entry.isWellFormed()
  if (all.length > 0 && all.length <= AUDIENCES_MAX && all.every(isOne)) return all
  throw new Error('must be one to eight audiences, each a text that is not empty')
}

/** A scope-token of RFC 6749 §3.3. */
export const scope = textThat('be one scope', /^[\x21\x23-\x5b\x5d-\x7e]+$/)
export const octalMode = textThat('be an octal mode such as 0660', /^0?[0-7]{3}$/)
export const prefix = textThat('end in /', /\/$/)
const anyPath = textThat('be a path', /^[^\0]+$/)
const paths = textThat('be one to four paths with commas between', /^[^,\0]+(,[^,\0]+){0,3}$/)

/** Resolved when it is read: the working directory may change later. */
export const path: Read<string> = (given) => resolve(anyPath(given))

/** SQLite has no file for this name. */
export const directory: Read<string> = (given) => {
  if (given !== ':memory:') return path(given)
  throw new Error('must be a directory: there is no store in memory alone; give each test its own')
}

/** An integer from `min` to `max`, as a number or in decimal digits. */
export function integer(min: number, max: number): Read<number> {
  return (given) => {
    const isDigits = typeof given === 'string' && /^[0-9]{1,15}$/.test(given)
    const number = typeof given === 'number' || isDigits ? Number(given) : NaN
    if (Number.isInteger(number) && number >= min && number <= max) return number
    throw new Error(`must be an integer from ${min} to ${max}, and is ${kindOf(given)}`)
  }
}

export function oneOf<T extends string>(values: readonly T[]): Read<T> {
  return (given) => {
    const found = values.find((each) => each === given)
    if (found !== undefined) return found
    throw new Error(`must be one of ${values.join(', ')}, and is ${kindOf(given)}`)
  }
}

/** `forms` is what else it may be. */
export function address(given: unknown, forms = ''): Address {
  const written = typeof given === 'string' ? given : ''
  if (/^unix:./s.test(written)) return { path: socketPath(written.slice('unix:'.length)) }
  const [, bracketed, plain, digits] = HOST_AND_PORT.exec(written) ?? []
  const [host, port] = [bracketed ?? plain, Number(digits)]
  if (port > PORT_MAX) throw new Error(`must have a port of at most ${PORT_MAX}`)
  if (host === '' || host === '*')
    throw new Error(`must name a host: for every address, write 0.0.0.0:${port} or [::]:${port}`)
  if (host !== undefined) return { host, port }
  throw new Error(`must be host:port, [IPv6]:port or unix:/path${forms}, and is ${kindOf(given)}`)
}

export const addressOrOff: Read<Address | 'off'> = (given) =>
  given === 'off' ? given : address(given, ', or off')

function socketPath(given: string): string {
  const resolved = path(given)
  const bytes = Buffer.byteLength(resolved)
  if (bytes <= SOCKET_PATH_MAX_BYTES) return resolved
  throw new Error(`is too long: ${bytes} bytes as an absolute path, above ${SOCKET_PATH_MAX_BYTES}`)
}

/** Bytes, or a text. Copied: a program may overwrite its bytes before they are first used. */
export const secret: Read<Bytes> = (given) => {
  if (types.isUint8Array(given)) return Buffer.from(given)
  if (typeof given === 'string' && given.isWellFormed()) return Buffer.from(given)
  throw new Error('must be bytes or a text')
}

/** What a file holds. A program may pass the content itself, as bytes. */
function content<T>(parse: (bytes: Buffer) => T): Read<T> {
  return (given) => {
    const file = types.isUint8Array(given) ? undefined : anyPath(given)
    const read = () => parse(file === undefined ? secret(given) : readFileSync(file))
    return withoutPath('cannot be read', read)
  }
}

const pemThat = (parse: (bytes: Buffer) => unknown): Read<Bytes> =>
  content((bytes) => {
    // The parsers take other forms too, which TLS does not.
    if (!bytes.includes('-----BEGIN')) throw new Error('there is no PEM in it')
    parse(bytes)
    return bytes
  })

/** Certificates, of which the first is checked. */
export const pem = pemThat((bytes) => new X509Certificate(bytes))
export const pemKey = pemThat(createPrivateKey)
export const passwordFile = content((bytes) =>
  new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(contentOf(bytes, true)),
)

/** Paths of files with one secret each, with commas between; or what one such file holds. */
export const secretFiles: Read<readonly (string | Bytes)[]> = (given) =>
  types.isUint8Array(given) ? [contentOf(Buffer.from(given))] : paths(given).split(',').map(path)

/** URLs with commas between. `read` returns undefined for a wrong one. */
function listOf(given: unknown, form: string, read: typeof originOf): readonly string[] {
  const urls = text(given).split(',')
  return urls.map((each, at) => {
    const value = read(each.trim())
    if (value !== undefined) return value
    throw new Error(`${form}, and URL ${at + 1} is not`)
  })
}

const ENDPOINT = 'must be http:// or https:// with a host, a port and no more'

export const endpoints: Read<readonly string[]> = (given) => {
  const all = listOf(given, ENDPOINT, (url) => (/^https?:/.test(url) ? originOf(url) : undefined))
  if (all.some(isSecure) && !all.every(isSecure)) throw new Error('must be all http or all https')
  return all
}

const ORIGINS = 'must be * or origins such as https://app.example, with commas between'

/** Origins as browsers send them, or `*` alone. */
export const origins: Read<readonly string[]> = (given) =>
  given === '*' ? [given] : listOf(given, ORIGINS, originOf)

export function isSecure(endpoint: string): boolean {
  return endpoint.startsWith('https:')
}

/** As in RFC 6454 §6.1; undefined for a URL that has more. */
function originOf(url: string): string | undefined {
  if (!/^[a-z][a-z0-9+.-]*:\/\/[^*]+$/i.test(url) || !URL.canParse(url)) return undefined
  const { protocol, host, href } = new URL(url)
  const origin = `${protocol}//${host}`
  return host !== '' && href.replace(/\/$/, '') === origin ? origin : undefined
}

/** A value in a few words. */
export function kindOf(value: unknown): string {
  if (value === '') return 'empty'
  if (typeof value === 'string')
    return value.isWellFormed() ? `a text of length ${value.length}` : 'not valid Unicode'
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'symbol' || typeof value === 'function') return `a ${typeof value}`
  return typeof value === 'object' && value !== null ? 'an object' : String(value)
}
