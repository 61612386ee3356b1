/*
 * One request and its response: what the headers say, and how far it has come. And what answers
 * requests.
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Condition, HttpError } from '../errors.ts'
import { Body } from './body.ts'
import { requestIdOf, traceIdOf, valuesOf } from './headers.ts'
import { type HttpResponse, lengthOf, type Outcome } from './response.ts'

/**
 * A request with this many headers is refused. Node's parser keeps a few more than
 * `maxHeadersCount` and drops the others without an error, perhaps a second Authorization.
 */
export const HEADERS_MAX_COUNT = 100
/** After these it is unclear where the next request begins, or a long body would come first. */
const LAST_STATUSES: ReadonlySet<number> = new Set([408, 413, 431])

/** Characters of a list that are read: a pattern takes 50 µs for 16 KiB of blanks. */
const LIST_MAX_CHARS = 256
const KEEP_ALIVE = /(?:^|,)[ \t]*keep-alive[ \t]*(?:,|$)/i
const CLOSE = /(?:^|,)[ \t]*close[ \t]*(?:,|$)/i

/**
 * What log and metrics say of a request. The start of one that Node's parser refused is unknown: it
 * counts from then.
 */
export class RequestRecord {
  readonly method: string | undefined
  readonly requestId: string
  readonly traceId: string | undefined
  readonly startedAtMs = performance.now()
  /** Known once the token is verified. */
  ownerHash: string | undefined
  /** The path pattern that the request matched. */
  route: string | undefined

  constructor(method?: string, rawHeaders: readonly string[] = []) {
    this.method = method
    this.requestId = requestIdOf(rawHeaders)
    this.traceId = traceIdOf(rawHeaders)
  }
}

/**
 * What is wrong with a request whatever it asks for: some of the headers may be missing, or its
 * version is unknown. Node's parser reports a request line without a version as 0.9.
 */
export function faultOf({ rawHeaders, httpVersion }: IncomingMessage): Condition | undefined {
  if (rawHeaders.length >= 2 * HEADERS_MAX_COUNT) return 'headersTooLarge'
  return httpVersion === '1.1' || httpVersion === '1.0' ? undefined : 'malformedRequest'
}

export class Exchange {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly record: RequestRecord
  readonly body: Body
  readonly isChunked: boolean
  /**
   * True if no request can follow it on its connection: the client says so, its end is unclear, or
   * Node's parser drops what follows, as after an Upgrade.
   */
  readonly isLast: boolean
  /** True once its response is sent. */
  isAnswered = false
  /** True once all of the response has left the process, or its client has left. */
  isDone = false
  readonly #whenDone: ((isAborted: boolean) => void)[] = []

  constructor(req: IncomingMessage, res: ServerResponse) {
    this.req = req
    this.res = res
    this.record = new RequestRecord(req.method, req.rawHeaders)
    this.body = new Body(req)
    this.isChunked = this.body.isChunked
    // Node's parser reads Proxy-Connection in the same way as Connection.
    const options = `${this.headers('connection')},${this.headers('proxy-connection')}`
    const says =
      options.length > LIST_MAX_CHARS ||
      (req.httpVersion === '1.0' ? !KEEP_ALIVE.test(options) : CLOSE.test(options))
    this.isLast = says || this.isUnclear || this.headers('upgrade').length > 0
  }

  /** The value of every header of this name, which is in lower case. */
  headers(name: string): readonly string[] {
    return valuesOf(this.req.rawHeaders, name)
  }

  /** The same without empty lists, which mean nothing (RFC 9110 §5.6.1). Long ones are kept. */
  lists(name: string): readonly string[] {
    const isEmpty = (value: string) => value.length <= LIST_MAX_CHARS && /^[ \t,]*$/.test(value)
    return this.headers(name).filter((value) => !isEmpty(value))
  }

  /** Calls it once `isDone` is true. `isAborted`: not all of the response has left the process. */
  whenDone(callback: (isAborted: boolean) => void): void {
    if (this.isDone) callback(true)
    else this.#whenDone.push(callback)
  }

  /** Ends it. A second call does nothing. To Node a response is finished too if it was lost. */
  finish(isLost = !this.res.writableFinished || this.req.socket.destroyed): void {
    if (this.isDone) return
    this.isDone = true
    // Node tells the request nothing more after a response of another server's application.
    if (this.body.state === 'reading') this.body.drop()
    for (const callback of this.#whenDone) callback(isLost)
  }

  /** True if it has a response, also of the server's application, or its client has left. */
  get isOver(): boolean {
    const { isAnswered, req, res } = this
    return isAnswered || req.socket.destroyed || res.headersSent || res.destroyed
  }

  /**
   * True if it is not known where the next request begins: some of the headers may be missing, its
   * version is unknown, or two readers could disagree on where it ends, which allows request
   * smuggling (RFC 9112 §6.1, §6.3, §11.2).
   */
  get isUnclear(): boolean {
    if (faultOf(this.req)) return true
    if (!this.isChunked) return false
    const [codings = '', second] = this.headers('transfer-encoding')
    if (second !== undefined || codings.length > LIST_MAX_CHARS) return true
    if (!/(?:^|,)[ \t]*chunked$/i.test(codings)) return true
    return this.headers('content-length').length > 0 || this.req.httpVersion === '1.0'
  }

  /** True if no request can follow after this response. */
  endsWith({ status, body }: HttpResponse): boolean {
    const { contentLength, dropMaxBytes, sendContinue } = this.body
    // While it waits for "100 Continue" the client may send its body or not.
    if (this.isLast || LAST_STATUSES.has(status) || sendContinue) return true
    // The end of a response without a length is the end of the connection (RFC 9112 §6.3).
    if (this.req.httpVersion === '1.0' && lengthOf(body) === undefined) return true
    return contentLength > dropMaxBytes && !this.req.readableEnded
  }
}

/** What the connections need of the service. */
export interface Responder {
  /** Answers a request. What it throws goes to `explain`. */
  serve(exchange: Exchange): HttpResponse | Promise<HttpResponse>
  /**
   * The response to a failure; NO_RESPONSE if the client has left. Node's parser makes no exchange
   * of what it refuses.
   */
  explain(error: unknown, record: RequestRecord, exchange?: Exchange): HttpResponse
  /** The failure of a request that the service has not answered for too long. */
  timeoutError(record: RequestRecord): HttpError
  /** Called if a response fails after its headers: the client cannot be told any more. */
  responseFailed(error: unknown, record: RequestRecord): void
  /**
   * Called once for each request that is served, also if its client has left, and for each that
   * Node's parser refuses. `isAborted`: not all of the response has left the process.
   */
  answered(record: RequestRecord, outcome: Outcome, isAborted: boolean): void
  /** True from the beginning of a stop: every response is the last of its connection. */
  readonly isDraining: () => boolean
}
