import { insufficientScope } from '../auth/bearer.ts'
import type { Caller } from '../auth/caller.ts'
import { HttpError } from '../errors.ts'
import type { Exchange } from './exchange.ts'
import type { RateLimit } from './rate-limit.ts'
import type { HttpResponse } from './response.ts'

/** What a handler is given: a request of an owner who may make it. */
export interface Call {
  readonly exchange: Exchange
  readonly owner: string
  /** The query without "?", as it was sent. */
  readonly query: string
}

export interface Operation {
  readonly handle: (call: Call) => HttpResponse | Promise<HttpResponse>
  /** The scope that it requires, if any. */
  readonly scope: string | undefined
}

/** The operations of a path by method. HEAD is answered as GET; respond.ts leaves the body out. */
export type Routes = ReadonlyMap<string, ReadonlyMap<string, Operation>>

export interface Access {
  /** @throws HttpError for a request without an acceptable token. */
  readonly authenticate: (exchange: Exchange) => Caller | Promise<Caller>
  readonly rateLimit: RateLimit | undefined
}

/**
 * Methods that a known path answers with 405; any other that it has no operation for is not
 * implemented at all.
 */
const KNOWN_METHODS: ReadonlySet<string> = new Set([
  'GET',
  'HEAD',
  'POST',
  'PUT',
  'PATCH',
  'DELETE',
])
/**
 * RFC 9110 §7.2: what a Host field may hold, loosely; Node has already refused control characters.
 */
const HOST = /^[A-Za-z0-9\-._~!$&'()*+,;=:[\]%]*$/

/** Finds the operation for a request, sees that the caller may have it, and hands it over. */
export function createRouter(
  routes: Routes,
  access: Access,
): (exchange: Exchange) => HttpResponse | Promise<HttpResponse> {
  const allowed = new Map([...routes].map(([path, operations]) => [path, allowOf(operations)]))

  return (exchange) => {
    if (!exchange.hasKnownVersion || exchange.hasUnclearEnd) throw new HttpError('malformedRequest')
    const { hosts } = exchange.headers
    if (hosts.length !== 1 || !HOST.test(hosts[0] ?? '')) throw new HttpError('hostInvalid')
    const { path, query } = splitTarget(exchange.req.url ?? '')
    const operations = routes.get(path)
    if (!operations) throw new HttpError('pathUnknown')
    exchange.route = path
    const { method } = exchange
    const allow = ['Allow', allowed.get(path) ?? '']
    if (method === 'OPTIONS') return { status: 204, headers: allow, body: undefined }
    const operation = operations.get(method === 'HEAD' ? 'GET' : method)
    if (!operation)
      throw KNOWN_METHODS.has(method)
        ? new HttpError('methodNotAllowed', allow)
        : new HttpError('methodUnknown')

    const enter = (caller: Caller): HttpResponse | Promise<HttpResponse> => {
      const { owner, scopes } = caller
      exchange.owner = owner
      if (operation.scope !== undefined && !scopes.has(operation.scope))
        throw new HttpError('scopeMissing', insufficientScope(operation.scope))
      const waitSeconds = access.rateLimit?.take(owner)
      if (waitSeconds !== undefined)
        throw new HttpError('rateLimited', ['Retry-After', String(waitSeconds)])
      if (exchange.hasUnknownExpectation) throw new HttpError('expectationFailed')
      return operation.handle({ exchange, owner, query })
    }
    const caller = access.authenticate(exchange)
    return caller instanceof Promise ? caller.then(enter) : enter(caller)
  }
}

function allowOf(operations: ReadonlyMap<string, Operation>): string {
  return [...operations.keys()]
    .flatMap((method) => (method === 'GET' ? ['GET', 'HEAD'] : [method]))
    .concat('OPTIONS')
    .join(', ')
}

/**
 * The path, byte for byte, and the query of a target in origin form or absolute form (RFC 9112
 * §3.2); one with user info, or without a host, is no path (RFC 9110 §4.2).
 */
function splitTarget(target: string): { readonly path: string; readonly query: string } {
  const origin = target.startsWith('/') ? target : target.replace(/^https?:\/\/[^/?#@]+/i, '')
  const mark = origin.indexOf('?')
  return mark < 0
    ? { path: origin, query: '' }
    : { path: origin.slice(0, mark), query: origin.slice(mark + 1) }
}
