import { randomUUID } from 'node:crypto'

/** Most requests have at most one header of a name, and share this list for all others. */
const NONE: string[] = []

/** The headers that the service looks at. A list holds the value of every header of that name. */
class Headers {
  hosts = NONE
  authorization = NONE
  contentTypes = NONE
  contentEncodings = NONE
  expectations = NONE
  requestIds = NONE
  traceParents = NONE
  /** Undefined without Content-Length: no body, or a chunked one. Node has checked the number. */
  contentLengthBytes: number | undefined = undefined
  chunked = false
  /** True if Transfer-Encoding is repeated, or its end is not chunked. Node accepts a few such. */
  codingsUnclear = false
  /** True if the client asks for another protocol. The service knows none. */
  upgrade = false
}

export type RequestHeaders = Readonly<Headers>

type List = NonNullable<ReturnType<typeof listOf>>

/** A switch: looking up a new string in a Map takes twice the time. */
function listOf(name: string) {
  switch (name) {
    case 'host':
      return 'hosts'
    case 'authorization':
      return 'authorization'
    case 'content-type':
      return 'contentTypes'
    case 'content-encoding':
      return 'contentEncodings'
    case 'expect':
      return 'expectations'
    case 'request-id':
      return 'requestIds'
    case 'traceparent':
      return 'traceParents'
    default:
      return undefined
  }
}

/** Reads `rawHeaders` (names and values alternate): Node's `headers` hides a repeated header. */
export function readHeaders(rawHeaders: readonly string[]): RequestHeaders {
  const headers = new Headers()
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const name = rawHeaders[i]?.toLowerCase() ?? ''
    const value = rawHeaders[i + 1] ?? ''
    const list = listOf(name)
    if (list !== undefined) add(headers, list, value)
    else if (name === 'content-length') headers.contentLengthBytes = Number(value)
    else if (name === 'transfer-encoding') addTransferEncoding(headers, value)
    else if (name === 'upgrade') headers.upgrade = true
  }
  return headers
}

function add(headers: Headers, list: List, value: string): void {
  if (headers[list] === NONE) headers[list] = [value]
  else headers[list].push(value)
}

function addTransferEncoding(headers: Headers, value: string): void {
  headers.codingsUnclear = headers.chunked || !/(?:^|,)[ \t]*chunked$/i.test(value)
  headers.chunked = true
  // Another coding ("gzip, chunked") is refused as a Content-Encoding would be.
  if (value.toLowerCase() !== 'chunked') add(headers, 'contentEncodings', value)
}

/** The client's own id of the request if it is one usable header, else a new one. */
export function requestIdOf({ requestIds }: RequestHeaders): string {
  const [given, second] = requestIds
  return given !== undefined && second === undefined && /^[\x21-\x7e]{1,128}$/.test(given)
    ? given
    : randomUUID()
}

/**
 * W3C Trace Context §3.2.2: version, trace-id, parent-id and flags. A later version may add fields
 * at the end.
 */
const TRACE_PARENT =
  /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$/

/** The trace that the request belongs to. Two traceparent headers are as none (§4.2). */
export function traceIdOf({ traceParents }: RequestHeaders): string | undefined {
  if (traceParents.length !== 1) return undefined
  const [, version, traceId, added] = TRACE_PARENT.exec(traceParents[0] ?? '') ?? []
  return version === '00' && added !== undefined ? undefined : traceId
}
