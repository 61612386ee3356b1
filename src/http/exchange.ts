/*
 * One request and its response: what the headers say, and how far it has come. And what answers
 * requests.
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { HttpError } from '../errors.ts'
import { requestIdOf, traceIdOf, valuesOf } from './headers.ts'
import { type HttpResponse, lengthOf, type Outcome } from './response.ts'

/**
 * A request with this many headers is refused. Node's parser keeps a few more than
 * `maxHeadersCount` and drops the others without an error, perhaps a second Authorization.
 */
export const HEADERS_MAX_COUNT = 100
/** A body that the service does not read is dropped up to this length. */
const STRANGER_DISCARD_BYTES = 64 * 1024
/** The same for the owner of a valid token: the longest body that any setting allows. */
const OWNER_DISCARD_BYTES = 16 * 1024 * 1024
/** After these it is unclear where the next request begins, or a long body would come first. */
const LAST_STATUSES: ReadonlySet<number> = new Set([408, 413, 431])

/** Characters of options or codings that are read: a pattern takes 50 µs for 16 KiB of blanks. */
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

/** True if some of the headers may be missing. */
export function hasTooManyHeaders({ rawHeaders }: IncomingMessage): boolean {
  return rawHeaders.length >= 2 * HEADERS_MAX_COUNT
}

/** Node's parser reports a request line without a version as 0.9. */
export function isKnownVersion({ httpVersion }: IncomingMessage): boolean {
  return httpVersion === '1.1' || httpVersion === '1.0'
}

export class Exchange extends RequestRecord {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly responder: Responder
  /** In bytes; 0 for a chunked body, and without a body. Node has checked the number. */
  readonly contentLength: number
  readonly isChunked: boolean
  readonly hasBody: boolean
  /**
   * True if no request can follow it on its connection: the client says so, its end is unclear, or
   * Node's parser drops what follows, as after an Upgrade.
   */
  readonly isLast: boolean
  /** True while the client waits for "100 Continue". */
  awaitsContinue = false
  /**
   * Set while the body is read: called once the exchange has a response or is done. Node tells the
   * request nothing more after a response of another server's application.
   */
  endBody: (() => void) | undefined
  /** True once the body is read to be dropped. */
  isDiscarding = false
  /**
   * Set by `collectBody`, while the socket is stopped for a chunked body. What reads or drops the
   * body calls it once: it returns what has come, and lets the rest come.
   */
  takeCollected: (() => Buffer) | undefined
  /** Called if more comes of a body that is dropped than may. */
  stopReading: (() => void) | undefined
  /** Set when its response is sent. The response's body is kept only by what sends it. */
  outcome: Outcome | undefined
  /** True once all of the response has left the process, or its client has left. */
  isDone = false
  readonly #whenDone: (() => void)[] = []

  constructor(req: IncomingMessage, res: ServerResponse, responder: Responder) {
    super(req.method, req.rawHeaders)
    this.req = req
    this.res = res
    this.responder = responder
    this.contentLength = Number(this.headers('content-length')[0] ?? 0)
    this.isChunked = this.headers('transfer-encoding').length > 0
    this.hasBody = this.isChunked || this.contentLength > 0
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

  /** The same without empty lists, which mean nothing (RFC 9110 §5.6.1). */
  lists(name: string): readonly string[] {
    return this.headers(name).filter((value) => !/^[ \t,]*$/.test(value))
  }

  /** Calls it once `isDone` is true. */
  whenDone(callback: () => void): void {
    if (this.isDone) callback()
    else this.#whenDone.push(callback)
  }

  /** Ends it, and notes its response. A second call does nothing. */
  finish(isLost?: boolean): void {
    if (this.isDone) return
    this.isDone = true
    this.endBody?.()
    for (const callback of this.#whenDone) callback()
    // To Node a response is finished too if it was lost.
    const aborted = isLost ?? (!this.res.writableFinished || this.req.socket.destroyed)
    if (this.outcome) this.responder.answered(this, this.outcome, aborted)
  }

  /** Notes a response that cannot be sent. Unless the request was refused, its client has left. */
  lose(outcome: Outcome): void {
    if (!this.outcome) this.responder.answered(this, outcome, true)
  }

  /** True if its client has left, or the server's application has responded. */
  get isOver(): boolean {
    return this.req.socket.destroyed || this.res.headersSent || this.res.destroyed
  }

  /**
   * True if it is not known where the next request begins: some of the headers may be missing, its
   * version is unknown, or two readers could disagree on where it ends, which allows request
   * smuggling (RFC 9112 §6.1, §6.3, §11.2).
   */
  get isUnclear(): boolean {
    if (hasTooManyHeaders(this.req) || !isKnownVersion(this.req)) return true
    if (!this.isChunked) return false
    const [codings = '', second] = this.headers('transfer-encoding')
    if (second !== undefined || codings.length > LIST_MAX_CHARS) return true
    if (!/(?:^|,)[ \t]*chunked$/i.test(codings)) return true
    return this.headers('content-length').length > 0 || this.req.httpVersion === '1.0'
  }

  /** True if no request can follow after this response. */
  endsWith({ status, body }: HttpResponse): boolean {
    // While it waits for "100 Continue" the client may send its body or not.
    if (this.isLast || LAST_STATUSES.has(status) || this.awaitsContinue) return true
    // The end of a response without a length is the end of the connection (RFC 9112 §6.3).
    if (this.req.httpVersion === '1.0' && lengthOf(body) === undefined) return true
    return this.hasUnreadBody && this.contentLength > this.discardMaxBytes
  }

  /** What the client expects. HTTP/1.0 does not know expectations (RFC 9110 §10.1.1). */
  get expectation(): string | undefined {
    if (this.req.httpVersion === '1.0') return undefined
    return this.lists('expect').join().toLowerCase() || undefined
  }

  /** True if there is a body that the service does not read. */
  get hasUnreadBody(): boolean {
    return this.hasBody && !this.endBody && !this.req.readableEnded
  }

  /** How much of an unread body is read and dropped. */
  get discardMaxBytes(): number {
    return this.ownerHash === undefined ? STRANGER_DISCARD_BYTES : OWNER_DISCARD_BYTES
  }
}

/** What the connections need of the service. */
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
  answered(request: RequestRecord, outcome: Outcome, aborted: boolean): void
  /** True from the beginning of a stop: every response is the last of its connection. */
  readonly draining: boolean
}
