import type { HttpError } from '../errors.ts'
import type { Hold } from '../ops/budget.ts'
import type { StrangersAccount } from '../ops/strangers.ts'
import type { HttpTimeouts } from './clock.ts'
import { Exchange, type RequestRecord } from './exchange.ts'
import type { HttpResponse } from './response.ts'
import type { TickEnd } from './tick.ts'

/** What the connections need of the service. */
export interface Responder {
  /** Answers a request. What it throws goes to `explain`. */
  serve(exchange: Exchange): HttpResponse | Promise<HttpResponse>
  /** The response to a failure; undefined if the client has left. */
  explain(error: unknown, request: RequestRecord): HttpResponse | undefined
  /** The failure of a request that the service has not answered for too long. */
  timeoutError(request: RequestRecord): HttpError
  /** Called if a response fails after its headers: the client cannot be told any more. */
  responseFailed(error: unknown, request: RequestRecord): void
  /**
   * Called once for each request that is served, also if its client has left, and for each that
   * Node's parser refuses. `aborted`: not all of the response has left the process.
   */
  answered(request: RequestRecord, response: HttpResponse, aborted: boolean): void
  /** Called when a server of the service itself has accepted a connection. */
  accepted(): void
  /** Counts a response that waits in memory until its client takes it. */
  holdResponse(owner: string, bytes: number): Hold
  readonly draining: boolean
}

/** What all connections of a service share. */
export interface Shared {
  readonly responder: Responder
  readonly tickEnd: TickEnd
  readonly strangers: StrangersAccount
  readonly timeouts: HttpTimeouts
  /** The header lines of a response after which the connection is kept. */
  readonly keepAlive: string
}

/** For the log: the connection ended before there was a response. nginx has the same status. */
export const NO_RESPONSE: HttpResponse = { status: 499, headers: [], body: undefined }

/** Tells the responder how a request ended: once, whatever comes after it. */
export function record(
  responder: Responder,
  request: RequestRecord,
  response: HttpResponse,
  aborted: boolean,
): void {
  if (request instanceof Exchange && request.isRecorded) return
  if (request instanceof Exchange) request.isRecorded = true
  responder.answered(request, response, aborted)
}
