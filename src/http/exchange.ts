import type { IncomingMessage, ServerResponse } from 'node:http'
import { DirectRequest } from './direct-request.ts'
import { readHeaders, type RequestHeaders, requestIdOf, traceIdOf } from './headers.ts'

declare module 'http' {
  interface ServerResponse {
    /** True once "100 Continue" was sent. */
    readonly _sent100: boolean
  }
}

/** What log and metrics say of a request. */
export interface RequestRecord {
  readonly method: string | undefined
  readonly route: string | undefined
  readonly owner: string | undefined
  readonly requestId: string
  readonly traceId: string | undefined
  readonly startedAtMs: number
}

/** The record of a request that Node's parser refused. Its start is unknown: it counts from now. */
export function recordOf(method?: string, rawHeaders: readonly string[] = []): RequestRecord {
  const headers = readHeaders(rawHeaders)
  return {
    method,
    route: undefined,
    owner: undefined,
    requestId: requestIdOf(headers),
    traceId: traceIdOf(headers),
    startedAtMs: performance.now(),
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

/**
 * How far a request has come, in this order:
 * - waiting: for the requests before it on its connection.
 * - serving: until its response is known, and any unread body is dealt with.
 * - sending: its response is being handed to the socket.
 * - sent: all of its response was handed to the socket, which may still hold a part of it.
 *
 * Or it is cancelled, and no response is sent through Node: the client has left, an embedding
 * application has responded, or the response was written to the socket directly.
 */
type Phase = 'waiting' | 'serving' | 'sending' | 'sent' | 'cancelled'

/**
 * A request with this many headers is refused. Node's parser keeps a few more than
 * `maxHeadersCount` and drops the others without an error, perhaps a second Authorization.
 */
export const HEADERS_MAX_COUNT = 100
/** What Node's objects for a request and its response take, roughly. */
export const REQUEST_BYTES = 5 * 1024
/** What a header takes besides its characters: two strings, and Node's copy in `headers`. */
const HEADER_OVERHEAD_BYTES = 192

let exchanges = 0

/** One request and its response. */
export class Exchange implements RequestRecord {
  /** Counts the exchanges of the process, from 1 on. */
  readonly number = ++exchanges
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly headers: RequestHeaders
  readonly startedAtMs = performance.now()
  readonly requestId: string
  /** Known once the token is verified. */
  owner: string | undefined
  /** The path pattern that the request matched. */
  route: string | undefined
  /** Ends the reading of a body that comes from Node's stream. */
  stopReading: (() => void) | undefined
  /** Set when reading the body begins; it is then read to its end, or to a limit. */
  bodyTaken = false
  phase: Phase = 'waiting'
  /** True once log and metrics have it. */
  isRecorded = false
  #headerBytes: number | undefined

  constructor(req: IncomingMessage, res: ServerResponse) {
    this.req = req
    this.res = res
    this.headers = readHeaders(req.rawHeaders)
    this.requestId = requestIdOf(this.headers)
  }

  get method(): string {
    return this.req.method ?? ''
  }

  get traceId(): string | undefined {
    return traceIdOf(this.headers)
  }

  /**
   * True if its version is unknown, or two readers could disagree on where it ends, which allows
   * request smuggling (RFC 9112 §6.1, §6.3, §11.2).
   */
  get isMalformed(): boolean {
    const { chunked, codingsUnclear, contentLengthBytes } = this.headers
    if (!isKnownVersion(this.req)) return true
    if (!chunked) return false
    return codingsUnclear || contentLengthBytes !== undefined || this.req.httpVersion !== '1.1'
  }

  /**
   * True if this is the connection's last request: the client says so, or Node's parser drops what
   * follows, as it does after an Upgrade.
   */
  get endsConnection(): boolean {
    const { headers, res } = this
    if (this.isMalformed || hasTooManyHeaders(this.req)) return true
    return !res.shouldKeepAlive || headers.upgrade
  }

  /** True if the client asks for "100 Continue". HTTP/1.0 does not know it (RFC 9110 §10.1.1). */
  get expectsContinue(): boolean {
    const { expectations } = this.headers
    return this.#hasExpectations && expectations.join().toLowerCase() === '100-continue'
  }

  /** True while the client waits for "100 Continue". */
  get awaitsContinue(): boolean {
    return this.expectsContinue && !this.res._sent100
  }

  get hasUnknownExpectation(): boolean {
    return this.#hasExpectations && !this.expectsContinue
  }

  get #hasExpectations(): boolean {
    return this.headers.expectations.length > 0 && this.req.httpVersion === '1.1'
  }

  /** True if all of the response has left the process. Node's `writableFinished` may come later. */
  get hasLeft(): boolean {
    return this.res.writableEnded && this.res.writableLength === 0
  }

  /** Memory of the request without its body, roughly. */
  get headerBytes(): number {
    const { rawHeaders, rawTrailers, url = '' } = this.req
    this.#headerBytes ??= REQUEST_BYTES + url.length + sizeOf(rawHeaders)
    // They come with the end of a chunked body.
    return this.#headerBytes + sizeOf(rawTrailers)
  }

  /** Memory of what has come of a body that is not read yet. */
  get bodyBytes(): number {
    return this.req instanceof DirectRequest ? this.req.heldBytes : 0
  }

  /** Cancels it, and returns true, if its client has left or the application has responded. */
  cancelIfGone(): boolean {
    const { req, res } = this
    if (req.socket.destroyed || res.headersSent || res.destroyed) this.phase = 'cancelled'
    return this.phase === 'cancelled'
  }

  /** True if there is a body that neither the service nor an embedding application has read. */
  get hasUnreadBody(): boolean {
    if (!this.headers.chunked && (this.headers.contentLengthBytes ?? 0) === 0) return false
    return !this.bodyTaken && !this.req.readableEnded
  }
}

/** Memory of headers, roughly. */
function sizeOf(rawHeaders: readonly string[]): number {
  const chars = rawHeaders.reduce((sum, text) => sum + text.length, 0)
  return chars + (rawHeaders.length / 2) * HEADER_OVERHEAD_BYTES
}
