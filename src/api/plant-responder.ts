/* Serves /plants, turns errors into responses, and records each response. */

import { ClientGone, conditions, HttpError, reasonOf } from '../errors.ts'
import { Exchange, type RequestRecord } from '../http/exchange.ts'
import type { Responder } from '../http/responder.ts'
import { errorResponse, type HttpResponse, NO_RESPONSE } from '../http/response.ts'
import { overloaded } from '../limits/budget.ts'
import type { Log, LogRequests } from '../telemetry/log.ts'
import type { Metrics } from '../telemetry/metrics.ts'
import { PlantTooLarge, StoreFull, StoreUnavailable } from '../plants/store.ts'
import type { Cors } from './cors.ts'
import { RequestDurations } from './durations.ts'
import { createRouter, type RouterOptions } from './router.ts'

/** In seconds. */
const STORE_RETRY = ['Retry-After', '1']

export interface ResponderOptions extends RouterOptions {
  readonly cors: Cors | undefined
  readonly isDraining: () => boolean
  readonly metrics: Metrics
  readonly log: Log
  readonly logRequests: LogRequests
}

export class PlantResponder implements Responder {
  readonly #options: ResponderOptions
  readonly #route: (exchange: Exchange) => HttpResponse | Promise<HttpResponse>
  readonly #durations: RequestDurations
  readonly #errorCounts = new Map([...conditions.values()].map(([error]) => [error, 0]))

  constructor(options: ResponderOptions) {
    const { metrics } = options
    this.#options = options
    this.#route = createRouter(options)
    this.#durations = new RequestDurations(metrics)
    metrics.counter('plant_store_errors_total', 'Failures answered, by error value.', () =>
      [...this.#errorCounts].map(([error, count]) => [{ error: String(error) }, count]),
    )
  }

  get draining(): boolean {
    return this.#options.isDraining()
  }

  serve(exchange: Exchange): HttpResponse | Promise<HttpResponse> {
    // Without a store every request is refused, before any other check.
    this.#options.store()
    const response = this.#route(exchange)
    const { cors } = this.#options
    if (!cors) return response
    const allow = (each: HttpResponse): HttpResponse => cors.allow(exchange, each)
    return response instanceof Promise ? response.then(allow) : allow(response)
  }

  explain(error: unknown, request: RequestRecord): HttpResponse {
    const { requestId } = request
    if (error instanceof ClientGone) return NO_RESPONSE
    const failure = this.#count(error)
    const { log, cors } = this.#options
    if (failure.condition === 'internal') log.error('a request failed', { requestId, error })
    else log.debug('refused', { requestId, error: failure.error, cause: failure.cause })
    const response = errorResponse(failure)
    return cors && request instanceof Exchange ? cors.allow(request, response) : response
  }

  timeoutError({ ownerHash }: RequestRecord): HttpError {
    // Without an owner, the token is still being verified.
    return ownerHash === undefined ? overloaded() : new HttpError('storageUnavailable', STORE_RETRY)
  }

  responseFailed(error: unknown, { requestId }: RequestRecord): void {
    this.#count(error)
    this.#options.log.error('a response failed after its headers', { requestId, error })
  }

  #count(error: unknown): HttpError {
    const failure = httpErrorOf(error)
    this.#errorCounts.set(failure.error, (this.#errorCounts.get(failure.error) ?? 0) + 1)
    return failure
  }

  answered(request: RequestRecord, { status, error }: HttpResponse, isAborted: boolean): void {
    const { method, route, ownerHash: owner, requestId, traceId, startedAtMs } = request
    const tookMs = performance.now() - startedAtMs
    this.#durations.record(method, route, status, tookMs / 1000)
    const { log, logRequests } = this.#options
    const isError = status >= 400 || isAborted
    if (logRequests === 'off' || (logRequests === 'errors' && !isError)) return
    const ms = Math.round(tookMs * 1000) / 1000
    const aborted = isAborted || undefined
    log.request({ method, route, status, error, ms, requestId, traceId, owner, aborted })
  }
}

/** The error for the client. An unknown error may hold secrets, so it becomes `internal`. */
function httpErrorOf(error: unknown): HttpError {
  if (error instanceof HttpError) return error
  if (error instanceof StoreUnavailable)
    return new HttpError('storageUnavailable', STORE_RETRY, reasonOf(error))
  if (error instanceof StoreFull) return new HttpError('storageFull')
  if (error instanceof PlantTooLarge) return new HttpError('bodyTooLarge')
  return new HttpError('internal')
}
