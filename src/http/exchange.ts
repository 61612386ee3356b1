import type { IncomingMessage, ServerResponse } from 'node:http'
import { type Head, readHead, requestIdOf, traceIdOf } from './head.ts'

/** What log and metrics say of a request. */
export interface RequestRecord {
  readonly method: string | undefined
  readonly route: string | undefined
  readonly owner: string | undefined
  readonly requestId: string
  readonly traceId: string | undefined
  readonly startedAtMs: number
}

/**
 * The record of a request that never became an exchange: of what Node's parser refuses nothing is
 * known, nor when it began.
 */
export function recordOf(method?: string, rawHeaders: readonly string[] = []): RequestRecord {
  const head = readHead(rawHeaders)
  return {
    method,
    route: undefined,
    owner: undefined,
    requestId: requestIdOf(head),
    traceId: traceIdOf(head),
    startedAtMs: performance.now(),
  }
}

/** Node's parser shows a request line without a version as 0.9. */
export function isKnownVersion({ httpVersion }: IncomingMessage): boolean {
  return httpVersion === '1.1' || httpVersion === '1.0'
}

/**
 * How far a request has come. It waits its turn, is served, and its answer is sent. Then it is
 * `answered`, or `flushing` while the next request waits for its last byte. Nothing is sent once it
 * is `cancelled`: the client has left, the application that embeds the service has answered, or the
 * answer went past Node.
 */
export type Phase = 'waiting' | 'serving' | 'sending' | 'answered' | 'flushing' | 'cancelled'

/** One request and its answer. */
export class Exchange implements RequestRecord {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly head: Head
  readonly startedAtMs = performance.now()
  readonly requestId: string
  /** Known once the token is verified. */
  owner: string | undefined
  /** The path pattern that the request matched. */
  route: string | undefined
  /** Set when reading the body begins; it is then read to its end, or to a limit. */
  bodyTaken = false
  phase: Phase = 'waiting'
  /** Set while the client waits for "100 Continue" and Node has not sent it. */
  awaitsContinue = false

  constructor(req: IncomingMessage, res: ServerResponse) {
    this.req = req
    this.res = res
    this.head = readHead(req.rawHeaders)
    this.requestId = requestIdOf(this.head)
  }

  get method(): string {
    return this.req.method ?? ''
  }

  get traceId(): string | undefined {
    return traceIdOf(this.head)
  }

  get hasKnownVersion(): boolean {
    return isKnownVersion(this.req)
  }

  /**
   * Whether two readers could see its end in two places, which is as good as an attack (RFC 9112
   * §6.1, §6.3, §11.2).
   */
  get hasUnclearEnd(): boolean {
    const { chunked, codingsUnclear, contentLengthBytes } = this.head
    return (
      chunked &&
      (codingsUnclear || contentLengthBytes !== undefined || this.req.httpVersion !== '1.1')
    )
  }

  /**
   * Whether nothing behind it on its connection is served: the client says so, or Node's parser
   * drops what came along with it, as it does behind an Upgrade.
   */
  get isLast(): boolean {
    return (
      !this.res.shouldKeepAlive || this.head.upgrade || !this.hasKnownVersion || this.hasUnclearEnd
    )
  }

  /** Whether the client asked for "100 Continue"; HTTP/1.0 does not know it (RFC 9110 §10.1.1). */
  get expectsContinue(): boolean {
    return (
      this.req.httpVersion === '1.1' &&
      this.head.expectations.length === 1 &&
      this.head.expectations[0]?.toLowerCase() === '100-continue'
    )
  }

  get hasUnknownExpectation(): boolean {
    return (
      this.req.httpVersion === '1.1' && this.head.expectations.length > 0 && !this.expectsContinue
    )
  }

  /** True if there is a body, and neither the service nor an application before it has read it. */
  get hasUnreadBody(): boolean {
    if (!this.head.chunked && (this.head.contentLengthBytes ?? 0) === 0) return false
    return !this.bodyTaken && !this.req.readableEnded
  }
}
