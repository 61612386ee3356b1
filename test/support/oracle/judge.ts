import { type Judgement, operationOf, routeOf } from './operations.ts'
import type { Grant, Realm } from './realm.ts'
import { listsOf, type Request, trimSpace, valuesOf } from './requests.ts'

/**
 * At most this much of a body that nothing reads is discarded without a valid token; then the
 * connection closes.
 */
export const DISCARD_MAX_BYTES = 64 * 1024
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
  const operation = operationOf(request)
  if (!operation) return { errors: doubts, wish: { kind: 'options' } }
  const grant = readGrant(request, operation.right, realm)
  if (Array.isArray(grant)) return { errors: [...doubts, ...grant], wish: undefined }
  const asked = operation.judge(request, grant.owner, realm)
  return { errors: [...doubts, ...asked.errors], wish: asked.wish }
}

type Errors = readonly number[] | undefined

function targetError(request: Request): Errors {
  const { method, version } = request
  if (version !== '1.1' && version !== '1.0') return [40001]
  // Its Host need not be looked at.
  if (method === 'CONNECT') return [40002, 50101]
  const hosts = valuesOf(request, 'host')
  // RFC 3986 §3.2.2.
  if (hosts.length !== 1 || !/^[A-Za-z0-9\-._~!$&'()*+,;=:[\]%]*$/.test(hosts[0] ?? ''))
    return [40002]
  return routeOf(request) ? undefined : [40401]
}

/** Some methods are known, though this path may not have them. */
function methodError(request: Request): Errors {
  const { method } = request
  if (method === 'OPTIONS' || operationOf(request)) return undefined
  return [/^(?:GET|HEAD|POST|PUT|PATCH|DELETE)$/.test(method) ? 40501 : 50101]
}

/** What the token of a request allows, or the errors of its token and its expectation. */
function readGrant(request: Request, right: 'read' | 'write', realm: Realm): Grant | number[] {
  const credentials = readCredentials(valuesOf(request, 'authorization'))
  if (typeof credentials === 'number') return [credentials]
  const grant = realm.grants.get(credentials.token)
  if (!grant) return [40102, 40103, 40104]
  if (!grant[right]) return [40301]
  const expects = request.version === '1.1' && listsOf(request, 'expect').length > 0
  return expects && !expectsContinue(request) ? [41701] : grant
}

/** A token, or the error for what is there instead. */
function readCredentials(values: readonly string[]): { readonly token: string } | number {
  if (values.length > 1) return 40003
  const value = values[0] ?? ''
  if (!/^bearer(?![!#$%&'*+\-.^_`|~0-9A-Za-z])/i.test(value)) return 40101
  const token = /^[^ ]{6} +([A-Za-z0-9\-._~+/]+=*)$/.exec(value)?.[1]
  return token === undefined ? 40003 : { token }
}

export function expectsContinue(request: Request): boolean {
  const [expectation, ...more] = listsOf(request, 'expect')
  const isOne = request.version === '1.1' && more.length === 0
  return isOne && expectation?.toLowerCase() === '100-continue'
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
  if (request.method === 'POST' && BODY_WAS_READ.has(outcome)) return 'no'
  const hasBody = request.framing === 'chunked' || request.declared > 0
  // RFC 9110 §10.1.1: a client that was not told to continue may send its body, or not.
  if (listsOf(request, 'expect').length > 0)
    return hasBody && expectsContinue(request) ? 'yes' : 'either'
  const bytes = Math.max(request.declared, request.body.length)
  // With a valid token it is more; the length of a chunked body is not known at the answer.
  return hasBody && bytes > DISCARD_MAX_BYTES ? 'either' : 'no'
}
