import type { Content } from '../ledger.ts'
import { readBody } from './body.ts'
import { type Kind, kindOf, NEEDS_WRITE, routeOf } from './operations.ts'
import type { Grant, Realm } from './realm.ts'
import { type Request, trimSpace, valuesOf } from './requests.ts'

/** What a good request asks for. */
export type Wish =
  | {
      readonly kind: 'create'
      readonly owner: string
      readonly id: bigint
      readonly plant: Content
    }
  | {
      readonly kind: 'list'
      readonly owner: string
      readonly limit: number | undefined
      readonly after: string | undefined
    }
  | { readonly kind: 'options' }

interface Judgement {
  /** Values of `error` that are right, beside what the wish itself may come to. */
  readonly errors: readonly number[]
  readonly wish: Wish | undefined
}

const PLAIN_PARAMETER = /^[ \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[!#$%&'*+\-.^_`|~0-9A-Za-z]+[ \t]*$/
/** At most so much of a body that nothing reads is discarded; then the connection closes. */
const DISCARD_MAX_BYTES = 64 * 1024
/** Outcomes that are known only after the whole body was read. */
const BODY_WAS_READ: ReadonlySet<number> = new Set([
  200, 40005, 40006, 40007, 40008, 40009, 40010, 40901, 50302, 50701,
])

/** Errors after which the connection always ends. */
const CLOSING: ReadonlySet<number> = new Set([40001, 40801, 41301, 43101])

/**
 * The errors of a request, in the order of the design's checks. Where the design is silent, the
 * error is a doubt, and the checks go on.
 */
export function judge(request: Request, realm: Realm): Judgement {
  const doubts = [...request.doubts, ...request.broken]
  const found = targetError(request) ?? methodError(request)
  if (found) return { errors: [...doubts, ...found], wish: undefined }
  const kind = kindOf(request)
  if (kind === undefined) return { errors: doubts, wish: { kind: 'options' } }
  const grant = readGrant(request, kind, realm)
  if (Array.isArray(grant)) return { errors: [...doubts, ...grant], wish: undefined }
  const asked = JUDGES[kind](request, grant.owner, realm)
  return { errors: [...doubts, ...asked.errors], wish: asked.wish }
}

type Errors = readonly number[] | undefined

function targetError(request: Request): Errors {
  const { method, version, target } = request
  if (version !== '1.1' && version !== '1.0') return [40001]
  // Its Host need not be looked at.
  if (method === 'CONNECT') return [40002, 50101]
  const hosts = valuesOf(request, 'host')
  // RFC 3986 §3.2.2.
  if (hosts.length !== 1 || !/^[A-Za-z0-9\-._~!$&'()*+,;=:[\]%]*$/.test(hosts[0] ?? ''))
    return [40002]
  return routeOf(target) ? undefined : [40401]
}

/** Some methods are known, though this path may not have them. */
function methodError(request: Request): Errors {
  const { method } = request
  if (method === 'OPTIONS' || kindOf(request)) return undefined
  return [/^(?:GET|HEAD|POST|PUT|PATCH|DELETE)$/.test(method) ? 40501 : 50101]
}

/** What the token of a request allows, or the errors of its token and its expectation. */
function readGrant(request: Request, kind: Kind, realm: Realm): Grant | number[] {
  const credentials = readCredentials(valuesOf(request, 'authorization'))
  if (typeof credentials === 'number') return [credentials]
  const grant = realm.grants.get(credentials.token)
  if (!grant) return [40102, 40103, 40104]
  if (!(NEEDS_WRITE[kind] ? grant.write : grant.read)) return [40301]
  const expects = request.version === '1.1' && valuesOf(request, 'expect').length > 0
  return expects && !expectsContinue(request) ? [41701] : grant
}

const JUDGES: Readonly<Record<Kind, (request: Request, owner: string, realm: Realm) => Judgement>> =
  { create: judgeCreate, list: judgeList }

function judgeCreate(request: Request, owner: string, { maxBodyBytes }: Realm): Judgement {
  const refuse = (...errors: readonly number[]): Judgement => ({ errors, wish: undefined })
  const [contentType = '', ...more] = valuesOf(request, 'content-type')
  if (more.length > 0) return refuse(40004)
  const type = readMediaType(contentType)
  if (type === 'other') return refuse(41501)
  const doubts = type === 'doubtful' ? [41501] : []
  const transfer = valuesOf(request, 'transfer-encoding').map((value) => value.toLowerCase())
  const codings = [
    ...valuesOf(request, 'content-encoding').map((value) => value.toLowerCase()),
    ...transfer.filter((value) => value !== 'chunked'),
  ]
  if (codings.some((coding) => coding !== 'identity')) return refuse(...doubts, 41502)
  const bytes = Math.max(request.declared, request.body.length)
  if (bytes > maxBodyBytes) return refuse(...doubts, 41301)
  if (request.broken.length > 0) return refuse(...doubts)
  const body = readBody(request.body)
  if ('errors' in body) return refuse(...doubts, ...body.errors)
  return { errors: doubts, wish: { kind: 'create', owner, ...body } }
}

function judgeList({ target }: Request, owner: string): Judgement {
  const query = target.slice(target.indexOf('?') + 1 || target.length)
  const given = (name: string): readonly string[] =>
    query.split('&').flatMap((pair) => {
      const [key = '', ...value] = pair.split('=')
      return decode(key) === name ? [decode(value.join('='))] : []
    })
  const [limits, cursors] = [given('limit'), given('after')]
  const isInt32 = (text: string): boolean => /^\d{1,10}$/.test(text) && Number(text) < 2 ** 31
  const errors: number[] = []
  if (limits.length > 1 || !limits.every(isInt32)) errors.push(40011)
  if (cursors.length > 1 || cursors[0] === '') errors.push(40012)
  if (errors.length > 0) return { errors, wish: undefined }
  const limit = limits[0] === undefined ? undefined : Number(limits[0])
  return { errors, wish: { kind: 'list', owner, limit, after: cursors[0] } }
}

/** Percent-decoding as in forms; a bad encoding stays as it is. */
function decode(text: string): string {
  return text
    .replaceAll('+', ' ')
    .replace(/(?:%[0-9A-Fa-f]{2})+/g, (run) =>
      Buffer.from(run.replaceAll('%', ''), 'hex').toString('utf8'),
    )
}

/** A token, or the error for what is there instead. */
function readCredentials(values: readonly string[]): { readonly token: string } | number {
  if (values.length > 1) return 40003
  const value = values[0] ?? ''
  if (!/^bearer(?![!#$%&'*+\-.^_`|~0-9A-Za-z])/i.test(value)) return 40101
  const token = /^[^ ]{6} +([A-Za-z0-9\-._~+/]+=*)$/.exec(value)?.[1]
  return token === undefined ? 40003 : { token }
}

/**
 * RFC 9110 §8.3.1. Parameters that readers treat differently (§5.6.6: empty, quoted) are doubtful.
 */
function readMediaType(value: string): 'json' | 'other' | 'doubtful' {
  const [essence = '', ...parameters] = value.split(';')
  if (trimSpace(essence).toLowerCase() !== 'application/json') return 'other'
  const isPlain = (text: string): boolean => PLAIN_PARAMETER.test(text)
  if (value.includes('"') || !parameters.every(isPlain)) return 'doubtful'
  const charsets = parameters
    .map((text) => trimSpace(text).toLowerCase())
    .filter((text) => text.startsWith('charset='))
  return charsets.every((text) => text === 'charset=utf-8') ? 'json' : 'other'
}

export function expectsContinue(request: Request): boolean {
  const expectations = valuesOf(request, 'expect')
  return (
    request.version === '1.1' &&
    expectations.length === 1 &&
    expectations[0]?.toLowerCase() === '100-continue'
  )
}

/**
 * Whether the connection ends after an answer, 200 or the value of `error`; `either` where the
 * design leaves it open.
 */
export function closesAfter(request: Request, outcome: number): 'yes' | 'no' | 'either' {
  if (!/^1\.[01]$/.test(request.version)) return 'yes'
  // An error that HEAD does not show may be one of the parser's.
  const mayBeParsers = (error: number): boolean => Math.floor(error / 100) * 100 === outcome
  if (outcome % 100 === 0 && request.doubts.some(mayBeParsers)) return 'either'
  if (CLOSING.has(outcome) || request.method === 'CONNECT') return 'yes'
  const tokens = valuesOf(request, 'connection').join(',').toLowerCase().split(',').map(trimSpace)
  if (valuesOf(request, 'upgrade').length > 0) return 'yes'
  // An old header of proxies, which llhttp obeys.
  if (valuesOf(request, 'proxy-connection').length > 0) return 'either'
  if (request.version === '1.0') return tokens.includes('keep-alive') ? 'either' : 'yes'
  if (tokens.includes('close')) return 'yes'
  if (request.broken.length > 0) return 'either'
  if (kindOf(request) === 'create' && BODY_WAS_READ.has(outcome)) return 'no'
  const hasBody = request.framing === 'chunked' || request.declared > 0
  // RFC 9110 §10.1.1: a client that was not told to continue may send its body, or not.
  if (valuesOf(request, 'expect').length > 0)
    return hasBody && expectsContinue(request) ? 'yes' : 'either'
  const bytes = Math.max(request.declared, request.body.length)
  return hasBody && bytes > DISCARD_MAX_BYTES ? 'yes' : 'no'
}
