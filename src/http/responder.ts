/* What the connections need of the service. */

import type { HttpError } from '../errors.ts'
import type { Exchange, RequestRecord } from './exchange.ts'
import type { HttpResponse } from './response.ts'

export interface Responder {
  /** Answers a request. What it throws goes to `explain`. */
  serve(exchange: Exchange): HttpResponse | Promise<HttpResponse>
  /** The response to a failure; NO_RESPONSE if the client has left. */
  explain(error: unknown, request: RequestRecord): HttpResponse
  /** The failure of a request that the service has not answered for too long. */
  timeoutError(request: RequestRecord): HttpError
  /** Called if a response fails after its headers: the client cannot be told any more. */
  responseFailed(error: unknown, request: RequestRecord): void
  /**
   * Called once for each request that is served, also if its client has left, and for each that
   * Node's parser refuses. `aborted`: not all of the response has left the process.
   */
  answered(request: RequestRecord, response: HttpResponse, aborted: boolean): void
  /** True from the beginning of a stop: every response is the last of its connection. */
  readonly draining: boolean
}
