/*
 * The router: checks each request, calls its operation, turns errors into responses, and records
 * each response.
 */

import { insufficientScope, readBearer, TokenRefused } from '../auth/bearer.ts'
import type { Caller } from '../auth/caller.ts'
import { KeysUnavailable } from '../auth/key-source.ts'
import type { Verifier } from '../auth/verifier.ts'
import { CATALOGUE, ClientGone, HttpError, reasonOf } from '../errors.ts'
import { type Exchange, faultOf, type RequestRecord, type Responder } from '../http/exchange.ts'
import { errorResponse, type HttpResponse, NO_RESPONSE, type Outcome } from '../http/response.ts'
import { Overloaded } from '../limits/budget.ts'
import type { Log, LogRequests } from '../telemetry/log.ts'
import type { Metrics } from '../telemetry/metrics.ts'
import { PlantTooLarge, StoreFull, StoreUnavailable } from '../plants/store.ts'
import type { OperationOptions } from './call.ts'
import { allowOrigin } from './cors.ts'
import { requestDurations } from './durations.ts'
import { type Operation, routeOf } from './operations.ts'
import type { RateLimit } from './rate-limit.ts'

export interface RouterOptions extends OperationOptions {
  readonly verifier: Pick<Verifier, 'verify' | 'counts'>
  readonly rateLimit: RateLimit | undefined
  /** The scope that a token needs for each kind of operation, if any. */
  readonly scopes: Readonly<Record<Operation['scope'], string | undefined>>
  /** Whose pages may call the service. */
  readonly corsOrigins: readonly string[] | undefined
  readonly isDraining: () => boolean
  readonly metrics: Metrics
  readonly log: Log
  readonly logRequests: LogRequests
}

/** In seconds. */
const SOON = ['Retry-After', '1']
/** If a known path has no operation for a method, these methods get 405 and all others 501. */
const KNOWN_METHOD = /^(?:GET|HEAD|POST|PUT|PATCH|DELETE)$/
/** The log has this much of an owner's hash: 48 bits. */
const LOGGED_HASH_CHARS = 12
/** The longest body that any setting allows: of an owner's body this much is dropped. */
const OWNER_DROP_MAX_BYTES = 16 * 1024 * 1024
const UNCLEAR = 'its version is unknown, or it is unclear where it ends'
/** The only expectation that is supported. */
const CONTINUE = '100-continue'
/** RFC 9110 §7.2, loosely: Node has already refused control characters. */
const HOST = /^[A-Za-z0-9\-._~!$&'()*+,;=:[\]%]*$/

export class Router implements Responder {
  readonly #options: RouterOptions
  readonly isDraining: () => boolean
  readonly #recordDuration: ReturnType<typeof requestDurations>
  readonly #errorCounts = new Map<number, number>()

  constructor(options: RouterOptions) {
    const { metrics } = options
    this.#options = options
    this.isDraining = options.isDraining
    this.#recordDuration = requestDurations(metrics)
    const counts = this.#errorCounts
    metrics.add('counter', 'plant_store_errors_total', 'Failures answered, by error value.', () =>
      Object.values(CATALOGUE).map(([error]) => [{ error }, counts.get(error) ?? 0]),
    )
  }

  serve(exchange: Exchange): HttpResponse | Promise<HttpResponse> {
    // Without a store every request is refused, before any other check.
    this.#options.store()
    const response = this.#route(exchange)
    const { corsOrigins } = this.#options
    if (!corsOrigins) return response
    const allow = (each: HttpResponse): HttpResponse => allowOrigin(corsOrigins, exchange, each)
    return response instanceof Promise ? response.then(allow) : allow(response)
  }

  /**
   * Checks a request in this order: HTTP, path, method, token, scope, rate, expectation. Then calls
   * the operation's handler.
   * @throws HttpError or ClientGone, also as a rejection.
   */
  #route(exchange: Exchange): HttpResponse | Promise<HttpResponse> {
    checkHttp(exchange)
    const { method = '', url = '' } = exchange.req
    // A target in origin form or absolute form (RFC 9112 §3.2). An absolute form with user info or
    // without a host is not a path (RFC 9110 §4.2).
    const target = url.startsWith('/') ? url : url.replace(/^https?:\/\/[^/?#@]+/i, '')
    const pathEnd = target.indexOf('?') < 0 ? target.length : target.indexOf('?')
    const query = target.slice(pathEnd + 1)
    const [route, parameters] = routeOf(target.slice(0, pathEnd))
    exchange.record.route = route.path
    const allow = ['Allow', route.allow]
    if (method === 'OPTIONS') return { status: 204, headers: allow, body: undefined }
    const operation = route.byMethod.get(method)
    if (!operation && KNOWN_METHOD.test(method)) throw new HttpError('methodNotAllowed', allow)
    if (!operation) throw new HttpError('methodUnknown')
    const options = this.#options
    const serve = (caller: Caller): HttpResponse | Promise<HttpResponse> => {
      this.#admit(exchange, caller, operation.scope)
      // Node would hold what comes of a body that no operation reads.
      if (operation.method !== 'POST') exchange.body.drop()
      return operation.handle({ exchange, owner: caller.owner, parameters, query, options })
    }
    const caller = options.verifier.verify(readBearer(exchange.headers('authorization')), exchange)
    return caller instanceof Promise ? caller.then(serve) : serve(caller)
  }

  /** @throws HttpError if the caller may not make this request now. */
  #admit(exchange: Exchange, caller: Caller, kind: Operation['scope']): void {
    const { rateLimit, scopes } = this.#options
    exchange.record.ownerHash = caller.ownerHash
    exchange.body.dropMaxBytes = OWNER_DROP_MAX_BYTES
    const scope = scopes[kind]
    if (scope !== undefined && !caller.scopes.has(scope)) {
      const cause = `${scope} is not among the ${caller.scopes.size} scopes of the token`
      throw new HttpError('scopeMissing', insufficientScope(scope), cause)
    }
    const seconds = rateLimit?.(caller.ownerHash)
    if (seconds !== undefined) throw new HttpError('rateLimited', ['Retry-After', String(seconds)])
    const expected = exchange.lists('expect').join().toLowerCase() || CONTINUE
    // HTTP/1.0 does not know expectations (RFC 9110 §10.1.1).
    if (expected !== CONTINUE && exchange.req.httpVersion !== '1.0')
      throw new HttpError('expectationFailed')
  }

  explain(error: unknown, { requestId }: RequestRecord, exchange?: Exchange): HttpResponse {
    if (error instanceof ClientGone) return NO_RESPONSE
    const failure = this.#count(error)
    const { log, corsOrigins } = this.#options
    if (failure.condition === 'internal') log.error('a request failed', { requestId, error })
    else log.debug('refused', { requestId, error: failure.error, cause: failure.cause })
    return allowOrigin(corsOrigins, exchange, errorResponse(failure))
  }

  timeoutError({ ownerHash }: RequestRecord): HttpError {
    // Without an owner, the token is still being verified.
    return new HttpError(ownerHash === undefined ? 'overloaded' : 'storageUnavailable', SOON)
  }

  responseFailed(error: unknown, { requestId }: RequestRecord): void {
    if (error instanceof ClientGone) return
    this.#count(error)
    this.#options.log.error('a response failed after its headers', { requestId, error })
  }

  #count(error: unknown): HttpError {
    const failure = httpErrorOf(error)
    this.#errorCounts.set(failure.error, (this.#errorCounts.get(failure.error) ?? 0) + 1)
    return failure
  }

  answered(record: RequestRecord, { status, error }: Outcome, isAborted: boolean): void {
    const { method, route, ownerHash, requestId, traceId, startedAtMs } = record
    const tookMs = performance.now() - startedAtMs
    this.#recordDuration(method, route, status, tookMs / 1000)
    const { log, logRequests } = this.#options
    const isError = status >= 400 || isAborted
    if (logRequests === 'off' || (logRequests === 'errors' && !isError)) return
    const ms = Math.round(tookMs * 1000) / 1000
    const aborted = isAborted || undefined
    const owner = ownerHash?.slice(0, LOGGED_HASH_CHARS)
    log.request({ method, route, status, error, ms, requestId, traceId, owner, aborted })
  }
}

function checkHttp(exchange: Exchange): void {
  if (faultOf(exchange.req) === 'headersTooLarge') throw new HttpError('headersTooLarge')
  if (exchange.isUnclear) throw new HttpError('malformedRequest', [], UNCLEAR)
  const hosts = exchange.headers('host')
  if (hosts.length !== 1 || !HOST.test(hosts[0] ?? '')) throw new HttpError('hostInvalid')
}

/** The error for the client. An unknown error may hold secrets, so it becomes `internal`. */
function httpErrorOf(error: unknown): HttpError {
  if (error instanceof HttpError) return error
  if (error instanceof TokenRefused)
    return new HttpError(error.refusal, ['WWW-Authenticate', error.challenge], error.message)
  if (error instanceof KeysUnavailable) {
    const retry = ['Retry-After', String(error.retrySeconds)]
    return new HttpError('keysUnavailable', retry, error.message)
  }
  if (error instanceof Overloaded)
    return new HttpError('overloaded', SOON, error.message || undefined)
  if (error instanceof StoreUnavailable)
    return new HttpError('storageUnavailable', SOON, reasonOf(error))
  if (error instanceof StoreFull) return new HttpError('storageFull')
  if (error instanceof PlantTooLarge) return new HttpError('bodyTooLarge')
  return new HttpError('internal')
}
