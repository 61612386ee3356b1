/* Sends a response, and cuts a connection off. */

import type { Socket } from 'node:net'
import type { Writable } from 'node:stream'
import type { Exchange, Responder } from './exchange.ts'
import type { BodyStream, HttpResponse } from './response.ts'
import { headersOf, lastHeadersOf, SHORT_MAX_BYTES } from './response.ts'

/** A client has this long to take a piece that is not short. */
const LONG_PIECE_MS = 120_000

/**
 * Sends a response through Node; the last one of a connection to the socket itself, because Node
 * would close that at once. The responder hears of it once the exchange is done. If a header cannot
 * be sent or the source of a long body fails, the connection is cut off.
 */
export function send(
  exchange: Exchange,
  response: HttpResponse,
  isLast: boolean,
  responder: Responder,
): void {
  const { req, res, record } = exchange
  const { status, error } = response
  exchange.isAnswered = true
  exchange.whenDone((isAborted) => responder.answered(record, { status, error }, isAborted))
  const fail = (reason: unknown): void => {
    responder.responseFailed(reason, record)
    cutOff(req.socket)
  }
  try {
    // A response to HEAD has a length, never a body: no budget counts it.
    const body = req.method === 'HEAD' ? undefined : response.body
    const isChunked = isLast && typeof body === 'function' && req.httpVersion !== '1.0'
    const to: Writable = isLast ? req.socket : res
    if (isLast) req.socket.write(lastHeadersOf(response, record.requestId, isChunked), 'latin1')
    else res.writeHead(status, headersOf(response, record.requestId))
    const isLong = typeof body === 'object' && body.length > SHORT_MAX_BYTES
    const pieces = isLong ? pieceOf(body) : body
    if (typeof pieces === 'function')
      return void sendPieces(exchange, pieces, to, isChunked).catch(fail)
    if (body !== undefined) {
      // One write with the headers, and none in `end`: a list of two writes takes a fifth longer.
      // A text is encoded as the headers are, in latin1.
      to.cork()
      to.write(body, 'latin1')
      to.uncork()
    }
    to.end()
  } catch (error) {
    fail(error)
  }
}

/** A long body as its only piece, which is released as soon as it is taken. */
function pieceOf(body: Buffer): BodyStream {
  const left = [body]
  return async () => left.shift()
}

/** Writes a piece once the one before it has been taken. Chunks are as in RFC 9112 §7.1. */
async function sendPieces(exchange: Exchange, next: BodyStream, to: Writable, isChunked: boolean) {
  let wake = (): void => {}
  to.on('drain', () => wake())
  exchange.whenDone(() => wake())
  /** Returns true if there was a piece, once it is taken. */
  const sendPiece = async (): Promise<boolean> => {
    const piece = await next()
    if (!piece || exchange.isDone) return false
    if (isChunked) to.write(`${piece.length.toString(16)}\r\n`)
    // The application of another server may have a `write` that returns nothing, or a promise.
    const written: unknown = to.write(piece)
    if (isChunked) to.write('\r\n')
    if (typeof written === 'boolean' ? written : !to.writableNeedDrain) return true
    const isShort = piece.length <= SHORT_MAX_BYTES
    const timer = isShort ? undefined : setTimeout(cutOff, LONG_PIECE_MS, exchange.req.socket)
    await new Promise<void>((resolve) => (wake = resolve))
    clearTimeout(timer)
    return !exchange.isDone
  }
  // A call for each piece: the loop would keep a piece while the next one is made.
  while (await sendPiece());
  if (!exchange.isDone) to.end(isChunked ? '0\r\n\r\n' : '')
}

/**
 * Ends a connection in the middle of a response. TCP is reset: an HTTP/1.0 client would take a
 * normal end for the end of its list. That is impossible for unix sockets and TLS.
 */
export function cutOff(socket: Socket): void {
  try {
    // Node fails to reset a socket whose end is on its way, and then never closes it.
    if (!socket.writableEnded || socket.writableLength > 0) socket.resetAndDestroy()
  } catch {
    // Not TCP.
  }
  // A reset waits until all is sent, which never happens if the reader has stalled.
  socket.destroy()
}
