/* A response of the service, its headers, and its text if it is the last of a connection. */

import { STATUS_CODES } from 'node:http'
import type { HttpError } from '../errors.ts'

/**
 * A body that is made while it is sent: returns its next piece, which is never empty, and undefined
 * after the last. Not a generator, which would keep the last piece while it makes the next one. It
 * may never be called: what it holds is released with its exchange.
 */
export type BodyStream = () => Promise<Buffer | undefined>

export interface HttpResponse {
  readonly status: number
  /** The error value in the body of a refusal, for the log. */
  readonly error?: number | undefined
  /** Names and values alternate. */
  readonly headers: readonly string[]
  /** A text is short and ASCII. A stream is sent without Content-Length. */
  readonly body: string | Buffer | BodyStream | undefined
  /** The body's media type if it is not JSON. */
  readonly type?: string
}

/** What log and metrics say of a response. */
export type Outcome = Pick<HttpResponse, 'status' | 'error'>

/** For the log: the connection ended before there was a response. nginx has the same status. */
export const NO_RESPONSE: HttpResponse = { status: 499, headers: [], body: undefined }

/**
 * How much of a response each connection may hold while its client reads it. What is longer is
 * reserved in a budget, and must be taken in a limited time.
 */
export const SHORT_MAX_BYTES = 64 * 1024
/** A longer text is sent as bytes, not together with the headers. */
const TEXT_MAX_CHARS = 4096

export function jsonResponse(status: number, value: unknown, ...headers: string[]): HttpResponse {
  return { status, headers, body: bodyOf(JSON.stringify(value)) }
}

/** A text as a body: as it is if it is short and ASCII, else as bytes. */
export function bodyOf(text: string): string | Buffer {
  const isShort = text.length <= TEXT_MAX_CHARS && Buffer.byteLength(text) === text.length
  return isShort ? text : Buffer.from(text)
}

/** In bytes; undefined for a stream, and without a body. */
export function lengthOf(body: HttpResponse['body']): number | undefined {
  return typeof body === 'function' ? undefined : body?.length
}

export function errorResponse({ status, error, message, headers }: HttpError): HttpResponse {
  return { ...jsonResponse(status, { error, message }, ...headers), error }
}

/**
 * All headers but those that Node adds, with the request's id. No response may be cached, and its
 * type must be believed.
 */
export function headersOf(response: HttpResponse, id: string): string[] {
  const { headers, body, type = 'application/json' } = response
  const all = ['Cache-Control', 'no-store', 'X-Content-Type-Options', 'nosniff', 'Request-Id', id]
  if (body !== undefined) all.push('Content-Type', type)
  const length = lengthOf(body)
  if (length !== undefined) all.push('Content-Length', String(length))
  if (headers.length > 0) all.push(...headers)
  return all
}

/**
 * Status line and headers of a connection's last response, with the empty line. Of a client's own
 * values they have `id`, the checked id of its request, and the number `limit` in a Link.
 */
export function lastHeadersOf(response: HttpResponse, id: string, isChunked = false): string {
  const headers = headersOf(response, id)
  if (isChunked) headers.push('Transfer-Encoding', 'chunked')
  headers.push('Date', new Date().toUTCString(), 'Connection', 'close')
  const lines = headers.map((text, at) => (at % 2 === 0 ? `${text}: ` : `${text}\r\n`))
  return `HTTP/1.1 ${response.status} ${STATUS_CODES[response.status]}\r\n${lines.join('')}\r\n`
}
