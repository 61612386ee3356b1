import { randomUUID } from 'node:crypto'

/** What the service looks at of a request's header fields; a list holds every line of that name. */
export interface Head {
  readonly hosts: readonly string[]
  readonly authorization: readonly string[]
  readonly contentTypes: readonly string[]
  readonly contentEncodings: readonly string[]
  readonly expectations: readonly string[]
  readonly requestIds: readonly string[]
  readonly traceParents: readonly string[]
  /**
   * Undefined without a Content-Length: then there is no body, or a chunked one. Node has checked
   * that it is a number.
   */
  readonly contentLengthBytes: number | undefined
  readonly chunked: boolean
  /**
   * Whether Transfer-Encoding stands twice, or does not end in "chunked". Node's parser lets a few
   * of these through.
   */
  readonly codingsUnclear: boolean
  /** Whether another protocol is asked for; the service knows none. */
  readonly upgrade: boolean
}

const NONE: string[] = []

/** Most requests have no line of most names: they share one empty list. */
function add(values: string[], value: string): string[] {
  if (values === NONE) return [value]
  values.push(value)
  return values
}

/**
 * Reads `rawHeaders`, where names and values alternate: Node's own `headers` would hide a line that
 * stands twice.
 */
export function readHead(rawHeaders: readonly string[]): Head {
  const head = {
    hosts: NONE,
    authorization: NONE,
    contentTypes: NONE,
    contentEncodings: NONE,
    expectations: NONE,
    requestIds: NONE,
    traceParents: NONE,
    contentLengthBytes: undefined as number | undefined,
    chunked: false,
    codingsUnclear: false,
    upgrade: false,
  }
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const value = rawHeaders[i + 1] ?? ''
    switch (rawHeaders[i]?.toLowerCase()) {
      case 'host':
        head.hosts = add(head.hosts, value)
        break
      case 'authorization':
        head.authorization = add(head.authorization, value)
        break
      case 'content-type':
        head.contentTypes = add(head.contentTypes, value)
        break
      case 'content-encoding':
        head.contentEncodings = add(head.contentEncodings, value)
        break
      case 'expect':
        head.expectations = add(head.expectations, value)
        break
      case 'request-id':
        head.requestIds = add(head.requestIds, value)
        break
      case 'traceparent':
        head.traceParents = add(head.traceParents, value)
        break
      case 'content-length':
        head.contentLengthBytes = Number(value)
        break
      case 'transfer-encoding':
        head.codingsUnclear = head.chunked || !/(?:^|,)[ \t]*chunked$/i.test(value)
        head.chunked = true
        // What is coded besides ("gzip, chunked") is as unreadable as it would be by
        // Content-Encoding.
        if (value.toLowerCase() !== 'chunked')
          head.contentEncodings = add(head.contentEncodings, value)
        break
      case 'upgrade':
        head.upgrade = true
        break
      default:
    }
  }
  return head
}

/** The caller's own id of a request, where it sent a usable one, else a new one. */
export function requestIdOf({ requestIds }: Head): string {
  const [given, second] = requestIds
  return given !== undefined && second === undefined && /^[\x21-\x7e]{1,128}$/.test(given)
    ? given
    : randomUUID()
}

/**
 * W3C Trace Context §3.2.2: version, trace-id, parent-id and flags; a later version may have more
 * behind them.
 */
const TRACE_PARENT =
  /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$/

/** The trace that the caller counts the request to; two headers name none (§4.2). */
export function traceIdOf({ traceParents }: Head): string | undefined {
  if (traceParents.length !== 1) return undefined
  const [, version, traceId, more] = TRACE_PARENT.exec(traceParents[0] ?? '') ?? []
  return version === '00' && more !== undefined ? undefined : traceId
}
