/* Reads headers of a request: every value of a name, and the ids for the log. */

import { randomUUID } from 'node:crypto'

/**
 * The value of every header of a name, which is in lower case. `rawHeaders` has names and values in
 * turn: Node's `headers` hides a repeated header.
 */
export function valuesOf(rawHeaders: readonly string[], name: string): readonly string[] {
  const values: string[] = []
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const other = rawHeaders[i] ?? ''
    // Most names differ in length, and need no conversion.
    if (other.length !== name.length || other.toLowerCase() !== name) continue
    values.push(rawHeaders[i + 1] ?? '')
  }
  return values
}

/**
 * The client's id of the request if it sent exactly one that can be used, else a new one. Gateways
 * call it X-Request-Id.
 */
export function requestIdOf(rawHeaders: readonly string[]): string {
  const own = valuesOf(rawHeaders, 'request-id')
  const [given = '', second] = own.length > 0 ? own : valuesOf(rawHeaders, 'x-request-id')
  return second === undefined && /^[\x21-\x7e]{1,128}$/.test(given) ? given : randomUUID()
}

/**
 * W3C Trace Context §3.2.2: version, trace-id, parent-id and flags. A later version may add fields
 * at the end.
 */
const TRACE_PARENT =
  /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$/

/** The trace that the request belongs to. Two traceparent headers count as none (§4.2). */
export function traceIdOf(rawHeaders: readonly string[]): string | undefined {
  const [parent = '', second] = valuesOf(rawHeaders, 'traceparent')
  if (second !== undefined) return undefined
  const [, version, traceId, added] = TRACE_PARENT.exec(parent) ?? []
  return version === '00' && added !== undefined ? undefined : traceId
}
