/* Sends a response, and cuts a connection off. */

import type { Socket } from 'node:net'
import type { Writable } from 'node:stream'
import type { Exchange } from './exchange.ts'
import { type BodyStream, headersOf, type HttpResponse, isStream } from './response.ts'
import { lastHeadersOf, SHORT_MAX_BYTES } from './response.ts'

/** A client has this long to take a piece that is not short. */
const LONG_PIECE_MS = 120_000

/**
 * Sends a response through Node; the last one of a connection to the socket itself, because Node
 * would close that at once. If a header cannot be sent or the source of a long body fails, the
 * connection is cut off.
 */
export function send(exchange: Exchange, response: HttpResponse, isLast: boolean): void {
  const { req, res, requestId } = exchange
  exchange.response = response
  exchange.endBody?.()
  const fail = (error: unknown): void => {
    exchange.responder.responseFailed(error, exchange)
    cutOff(req.socket)
  }
  try {
    const body = req.method === 'HEAD' ? undefined : response.body
    const isChunked = isLast && isStream(body) && req.httpVersion !== '1.0'
    const to: Writable = isLast ? req.socket : res
    if (isLast) req.socket.write(lastHeadersOf(response, requestId, isChunked), 'latin1')
    else res.writeHead(response.status, headersOf(response, requestId))
    if (isStream(body) || (typeof body === 'object' && body.length > SHORT_MAX_BYTES))
      return void sendPieces(exchange, body, to, isChunked).catch(fail)
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

/** Writes a piece once the one before it has been taken. Chunks are as in RFC 9112 §7.1. */
async function sendPieces(
  exchange: Exchange,
  body: Buffer | BodyStream,
  to: Writable,
  isChunked: boolean,
): Promise<void> {
  let wake = (): void => {}
  to.on('drain', () => wake())
  exchange.whenDone(() => wake())
  for await (const piece of isStream(body) ? body : [body]) {
    if (exchange.isDone) return
    if (isChunked) to.write(`${piece.length.toString(16)}\r\n`)
    // The application of another server may have a `write` that returns nothing, or a promise.
    const isTaken: unknown = to.write(piece)
    if (isChunked) to.write('\r\n')
    if (typeof isTaken === 'boolean' ? isTaken : !to.writableNeedDrain) continue
    const isShort = piece.length <= SHORT_MAX_BYTES
    const timer = isShort ? undefined : setTimeout(cutOff, LONG_PIECE_MS, exchange.req.socket)
    await new Promise<void>((resolve) => (wake = resolve))
    clearTimeout(timer)
    if (exchange.isDone) return
  }
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
