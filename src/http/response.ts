import { randomUUID } from 'node:crypto'
import { type ServerResponse, STATUS_CODES } from 'node:http'
import { pipeline } from 'node:stream'
import { HttpError } from '../errors.ts'
import type { Exchange } from './exchange.ts'

/** A body that is made while it is sent, in pieces of PIECE_MAX_BYTES at most. */
export interface TextStream extends AsyncIterable<Buffer> {
  /**
   * Called when nobody reads on, begun or not: a generator that was never begun runs no `finally`.
   */
  close(): void
}

/**
 * What is sent back. A body is JSON; one that is made while it is sent comes as text in pieces, and
 * has no length.
 */
export interface HttpResponse {
  readonly status: number
  /** Name and value in turn. */
  readonly headers: readonly string[]
  readonly body: Buffer | TextStream | undefined
  /** The body's media type, where it is not JSON. */
  readonly type?: string
}

/** A reader must take so much within the time for one that stalls. */
/**
 * How much is handed to a socket at a time: it tells only when a whole piece has left it, and a
 * slow reader must be seen to read.
 */
export const PIECE_MAX_BYTES = 64 * 1024

/** Every answer says that nobody may keep it, and that it is what it says it is. */
const COMMON = ['Cache-Control', 'no-store', 'X-Content-Type-Options', 'nosniff'] as const

export function jsonResponse(
  status: number,
  value: unknown,
  headers: readonly string[] = [],
): HttpResponse {
  return { status, headers, body: Buffer.from(JSON.stringify(value)) }
}

export function errorResponse({ status, error, message, headers }: HttpError): HttpResponse {
  return jsonResponse(status, { error, message }, headers)
}

function headersOf(
  { headers, body, type = 'application/json' }: HttpResponse,
  requestId: string,
  close: boolean,
): string[] {
  const all: string[] = [...COMMON, 'Request-Id', requestId]
  if (body !== undefined) all.push('Content-Type', type)
  if (Buffer.isBuffer(body)) all.push('Content-Length', String(body.length))
  all.push(...headers)
  if (close) all.push('Connection', 'close')
  return all
}

/** Lets go of an answer that is not sent. */
export function abandon({ body }: HttpResponse): void {
  if (body !== undefined && !Buffer.isBuffer(body)) body.close()
}

/**
 * Sends an answer through Node. A failure in the middle of a body destroys the socket, so that a
 * part is never taken for the whole. `done` is called once the last byte is handed on, or nobody is
 * there to take it.
 */
export function send(
  { req, res, requestId }: Exchange,
  answer: HttpResponse,
  close: boolean,
  done: (error?: Error | null) => void,
): void {
  res.writeHead(answer.status, headersOf(answer, requestId, close))
  const { body } = answer
  if (body === undefined || req.method === 'HEAD') {
    abandon(answer)
    res.end()
    done()
  } else if (!Buffer.isBuffer(body)) {
    pipeline(body, res, (error) => {
      body.close()
      done(error)
    })
  } else if (body.length > PIECE_MAX_BYTES) {
    sendPieces(res, body, done)
  } else {
    res.end(body)
    done()
  }
}

/** As a list is sent, for a body that is whole; a pipeline would take twice the time. */
function sendPieces(res: ServerResponse, body: Buffer, done: () => void): void {
  let at = 0
  const end = (): void => {
    res.off('drain', next).off('close', end)
    done()
  }
  const next = (): void => {
    // The client has left, or an embedding application has ended the response.
    if (res.writableEnded || res.destroyed) return end()
    const piece = body.subarray(at, (at += PIECE_MAX_BYTES))
    if (at >= body.length) {
      res.end(piece)
      end()
    } else if (res.write(piece)) {
      setImmediate(next)
    }
  }
  res.on('drain', next).on('close', end)
  next()
}

/**
 * An answer as text, for a connection that Node's own machinery is not to touch any more. Always
 * the last on it.
 */
export function rawResponse(
  answer: HttpResponse,
  requestId: string = randomUUID(),
  withBody = true,
): string {
  const lines = [
    `HTTP/1.1 ${answer.status} ${STATUS_CODES[answer.status] ?? ''}`,
    `Date: ${new Date().toUTCString()}`,
  ]
  const headers = headersOf(answer, requestId, true)
  for (let i = 0; i + 1 < headers.length; i += 2) lines.push(`${headers[i]}: ${headers[i + 1]}`)
  const body = withBody && Buffer.isBuffer(answer.body) ? answer.body.toString('utf8') : ''
  return `${lines.join('\r\n')}\r\n\r\n${body}`
}
