import { insufficientScope, readBearer } from '../auth/bearer.ts'
import type { Caller } from '../auth/caller.ts'
import type { Verifier } from '../auth/verifier.ts'
import { HttpError } from '../errors.ts'
import { discardBody } from '../http/body.ts'
import { type Exchange, hasTooManyHeaders } from '../http/exchange.ts'
import type { HttpResponse } from '../http/response.ts'
import type { OperationOptions } from './call.ts'
import { type Operation, routeOf } from './operations.ts'
import type { RateLimit } from './rate-limit.ts'

export interface RouterOptions extends OperationOptions {
  readonly verifier: Pick<Verifier, 'verify'>
  readonly rateLimit: RateLimit | undefined
  /** The scope that a token needs for each kind of operation, if any. */
  readonly scopes: Readonly<Record<Operation['scope'], string | undefined>>
}

/** If a known path has no operation for a method, these methods get 405 and all others 501. */
const KNOWN_METHOD = /^(?:GET|HEAD|POST|PUT|PATCH|DELETE)$/
/** The only expectation that is supported. */
const CONTINUE = '100-continue'
/** RFC 9110 §7.2, loosely: Node has already refused control characters. */
const HOST = /^[A-Za-z0-9\-._~!$&'()*+,;=:[\]%]*$/

/**
 * Checks a request in this order: HTTP, path, method, token, scope, rate, expectation. Then calls
 * the operation's handler. The returned function throws (or rejects with) HttpError or ClientGone.
 */
export function createRouter(
  options: RouterOptions,
): (exchange: Exchange) => HttpResponse | Promise<HttpResponse> {
  const { verifier, rateLimit, scopes } = options

  return (exchange) => {
    checkHttp(exchange)
    const { path, query } = splitTarget(exchange.req.url ?? '')
    const [route, parameters] = routeOf(path) ?? []
    if (!route || !parameters) throw new HttpError('pathUnknown')
    exchange.route = route.path
    const { method } = exchange
    const allow = ['Allow', route.allow]
    if (method === 'OPTIONS') return { status: 204, headers: allow, body: undefined }
    const operation = route.byMethod.get(method)
    if (!operation)
      throw KNOWN_METHOD.test(method)
        ? new HttpError('methodNotAllowed', allow)
        : new HttpError('methodUnknown')
    const serve = (caller: Caller): HttpResponse | Promise<HttpResponse> => {
      const { owner, scopes: granted } = caller
      exchange.ownerHash = caller.ownerHash
      const scope = scopes[operation.scope]
      if (scope !== undefined && !granted.has(scope)) {
        const cause = `${scope} is not among the ${granted.size} scopes of the token`
        throw new HttpError('scopeMissing', insufficientScope(scope), cause)
      }
      const waitSeconds = rateLimit?.waitSecondsFor(owner)
      if (waitSeconds !== undefined)
        throw new HttpError('rateLimited', ['Retry-After', String(waitSeconds)])
      const { expectation = CONTINUE } = exchange
      if (expectation !== CONTINUE) throw new HttpError('expectationFailed')
      if (!operation.hasBody) discardBody(exchange)
      return operation.handle({ exchange, owner, parameters, query, options })
    }
    const caller = verifier.verify(readBearer(exchange.headers('authorization')), exchange)
    return caller instanceof Promise ? caller.then(serve) : serve(caller)
  }
}

function checkHttp(exchange: Exchange): void {
  if (hasTooManyHeaders(exchange.req)) throw new HttpError('headersTooLarge')
  if (exchange.isMalformed) throw new HttpError('malformedRequest')
  const hosts = exchange.headers('host')
  if (hosts.length !== 1 || !HOST.test(hosts[0] ?? '')) throw new HttpError('hostInvalid')
}

/**
 * The path, byte for byte, and the query of a target in origin form or absolute form (RFC 9112
 * §3.2). An absolute form with user info or without a host is not a path (RFC 9110 §4.2).
 */
function splitTarget(target: string): { readonly path: string; readonly query: string } {
  const origin = target.startsWith('/') ? target : target.replace(/^https?:\/\/[^/?#@]+/i, '')
  const [, path = '', query = ''] = /^([^?]*)\??(.*)$/s.exec(origin) ?? []
  return { path, query }
}
