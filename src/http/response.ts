import { STATUS_CODES } from 'node:http'
import type { HttpError } from '../errors.ts'

/** A body that is made while it is sent, in pieces of PIECE_MAX_BYTES at most. */
export interface BodyStream extends AsyncIterable<Buffer> {
  /** Called in every case, perhaps twice: a generator that was never started runs no `finally`. */
  close(): void
}

export interface HttpResponse {
  readonly status: number
  /** The error value in the body of a refusal, for the log. */
  readonly error?: number
  /** Names and values alternate. */
  readonly headers: readonly string[]
  /** A text is short and ASCII. A stream is sent without Content-Length. */
  readonly body: string | Buffer | BodyStream | undefined
  /** The body's media type if it is not JSON. */
  readonly type?: string
}

/**
 * How much is handed to a socket at a time. A socket reports only when a whole piece has left it,
 * and the clock must see that a slow reader reads.
 */
export const PIECE_MAX_BYTES = 64 * 1024
/** A longer text is sent as bytes, not together with the headers. */
const TEXT_MAX_CHARS = 4096

const UNSENDABLE = /[^\t\x20-\x7e\x80-\xff]/
/** In every response: it must not be cached, and its media type must be believed. */
export const COMMON = ['Cache-Control', 'no-store', 'X-Content-Type-Options', 'nosniff'] as const
const COMMON_LINES = linesOf(COMMON)
export const CLOSE = ['Connection', 'close'] as const
const CLOSE_LINE = linesOf(CLOSE)

export function jsonResponse(
  status: number,
  value: unknown,
  headers: readonly string[] = [],
): HttpResponse {
  return { status, headers, body: bodyOf(JSON.stringify(value)) }
}

/** A text as a body: as it is if it is short and ASCII, else as bytes. */
export function bodyOf(text: string): string | Buffer {
  const isShort = text.length <= TEXT_MAX_CHARS && Buffer.byteLength(text) === text.length
  return isShort ? text : Buffer.from(text)
}

export function isStream(body: HttpResponse['body']): body is BodyStream {
  return typeof body === 'object' && !Buffer.isBuffer(body)
}

/** The length of a body in bytes; undefined for a stream, and without a body. */
export function lengthOf(body: HttpResponse['body']): number | undefined {
  return body === undefined || isStream(body) ? undefined : body.length
}

/** True if it is sent with one write. */
export function isShort({ body }: HttpResponse): boolean {
  return !isStream(body) && (body?.length ?? 0) <= PIECE_MAX_BYTES
}

export function errorResponse({ status, error, message, headers }: HttpError): HttpResponse {
  return { ...jsonResponse(status, { error, message }, headers), error }
}

/** The headers of a response besides those that all have. */
export function headersOf(
  { headers, body, type = 'application/json' }: HttpResponse,
  requestId: string,
): string[] {
  const all = ['Request-Id', requestId]
  if (body !== undefined) all.push('Content-Type', type)
  const length = lengthOf(body)
  if (length !== undefined) all.push('Content-Length', String(length))
  if (headers.length > 0) all.push(...headers)
  return all
}

/** Closes a response that is not sent. */
export function abandon({ body }: HttpResponse): void {
  if (isStream(body)) body.close()
}

/** The bytes of a connection's last response, for a socket that Node must not close. */
export function rawResponse(response: HttpResponse, requestId: string, withBody: boolean): string {
  const { body } = response
  const text = withBody && !isStream(body) ? String(body ?? '') : ''
  return startOf(response, requestId, CLOSE_LINE) + text
}

/** Status line and headers. `connection`: the headers that say what follows the response. */
export function startOf(response: HttpResponse, requestId: string, connection: string): string {
  const { status } = response
  const first = `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\n${COMMON_LINES}`
  const own = linesOf(headersOf(response, requestId))
  return `${first}${own}Date: ${httpDate()}\r\n${connection}\r\n`
}

/** @throws TypeError if a value would end its line, or cannot be sent (RFC 9110 §5.5). */
function linesOf(headers: readonly string[]): string {
  let lines = ''
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const [name, value = ''] = [headers[i], headers[i + 1]]
    if (UNSENDABLE.test(value)) throw new TypeError(`${name} cannot be sent: ${value}`)
    lines += `${name}: ${value}\r\n`
  }
  return lines
}

let date = { second: 0, text: '' }

/** RFC 9110 §5.6.7, made once a second. */
function httpDate(): string {
  const second = Math.floor(Date.now() / 1000)
  if (second !== date.second) date = { second, text: new Date(second * 1000).toUTCString() }
  return date.text
}
