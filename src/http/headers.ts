import { randomFillSync } from 'node:crypto'

/** The list of a header that is missing, as most are. */
const NONE: string[] = []

/** The headers that the service looks at. A list holds the value of every header of that name. */
export interface RequestHeaders {
  readonly hosts: readonly string[]
  readonly authorization: readonly string[]
  readonly contentTypes: readonly string[]
  /** Also transfer codings other than chunked ("gzip, chunked"), refused in the same way. */
  readonly contentEncodings: readonly string[]
  readonly expectations: readonly string[]
  readonly requestIds: readonly string[]
  readonly traceParents: readonly string[]
  /** Undefined without Content-Length: no body, or a chunked one. Node has checked the number. */
  readonly contentLengthBytes: number | undefined
  readonly chunked: boolean
  /** True if Transfer-Encoding is repeated, or does not end in chunked. Node accepts some such. */
  readonly codingsUnclear: boolean
  /** True if the client asks for another protocol. The service knows none. */
  readonly upgrade: boolean
}

/** Reads `rawHeaders` (names and values alternate): Node's `headers` hides a repeated header. */
export function readHeaders(rawHeaders: readonly string[]): RequestHeaders {
  const contentLength = valuesOf(rawHeaders, 'content-length')[0]
  const encodings = valuesOf(rawHeaders, 'content-encoding')
  const codings = valuesOf(rawHeaders, 'transfer-encoding')
  const chunked = codings.length > 0
  const others = chunked ? codings.filter((coding) => coding.toLowerCase() !== 'chunked') : NONE
  return {
    hosts: valuesOf(rawHeaders, 'host'),
    authorization: valuesOf(rawHeaders, 'authorization'),
    contentTypes: valuesOf(rawHeaders, 'content-type'),
    contentEncodings: others.length === 0 ? encodings : [...encodings, ...others],
    expectations: valuesOf(rawHeaders, 'expect'),
    requestIds: valuesOf(rawHeaders, 'request-id'),
    traceParents: valuesOf(rawHeaders, 'traceparent'),
    contentLengthBytes: contentLength === undefined ? undefined : Number(contentLength),
    chunked,
    codingsUnclear:
      codings.length > 1 || (chunked && !/(?:^|,)[ \t]*chunked$/i.test(codings[0] ?? '')),
    upgrade: valuesOf(rawHeaders, 'upgrade').length > 0,
  }
}

/** The values of a header; `name` in lower case. */
function valuesOf(rawHeaders: readonly string[], name: string): readonly string[] {
  let values = NONE
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const other = rawHeaders[i] ?? ''
    // Most names differ in length, and need no conversion.
    if (other.length !== name.length || other.toLowerCase() !== name) continue
    const value = rawHeaders[i + 1] ?? ''
    if (values === NONE) values = [value]
    else values.push(value)
  }
  return values
}

/** Two equal ids are at least as unlikely as two equal UUIDs, which have 122 random bits. */
const ID_BYTES = 16
/** Bytes for many ids, fetched at once: `randomUUID` takes twice the time for an id. */
const randomBytes = Buffer.alloc(ID_BYTES * 1024)
let unusedFrom = randomBytes.length

function newRequestId(): string {
  if (unusedFrom === randomBytes.length) {
    randomFillSync(randomBytes)
    unusedFrom = 0
  }
  return randomBytes.toString('base64url', unusedFrom, (unusedFrom += ID_BYTES))
}

/** The client's id of the request if it sent exactly one that can be used, else a new one. */
export function requestIdOf({ requestIds }: RequestHeaders): string {
  const [given, second] = requestIds
  return given !== undefined && second === undefined && /^[\x21-\x7e]{1,128}$/.test(given)
    ? given
    : newRequestId()
}

/**
 * W3C Trace Context §3.2.2: version, trace-id, parent-id and flags. A later version may add fields
 * at the end.
 */
const TRACE_PARENT =
  /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$/

/** The trace that the request belongs to. Two traceparent headers count as none (§4.2). */
export function traceIdOf({ traceParents }: RequestHeaders): string | undefined {
  if (traceParents.length !== 1) return undefined
  const [, version, traceId, added] = TRACE_PARENT.exec(traceParents[0] ?? '') ?? []
  return version === '00' && added !== undefined ? undefined : traceId
}
