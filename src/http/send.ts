import type { ServerResponse } from 'node:http'
import type { Exchange } from './exchange.ts'
import { cutOff } from './linger.ts'
import { abandon, CLOSE, COMMON, headersOf, type HttpResponse } from './response.ts'
import { isStream, PIECE_MAX_BYTES, startOf } from './response.ts'
import { WholeResponse } from './whole-response.ts'

/**
 * Sends a response that is at hand, after which the connection is kept. False if Node must send it:
 * nothing is sent then.
 */
export function sendWhole(
  { req, res, requestId, headers }: Exchange,
  response: HttpResponse,
  keepAlive: string,
): boolean {
  const { body, status } = response
  if (!(res instanceof WholeResponse) || body === undefined || isStream(body)) return false
  if (body.length > PIECE_MAX_BYTES || req.method === 'HEAD') return false
  // Node closes the connection if the client waits for "100 Continue".
  if (headers.expectations.length > 0) return false
  return res.sendWhole(status, startOf(response, requestId, keepAlive), body)
}

/**
 * Sends a response through Node. A failure in the middle of a body cuts the client off, so that a
 * part is never taken for the whole. `done` is called once the last byte is handed to the socket,
 * or the client has left, or with the failure.
 */
export function send(
  { req, res, requestId }: Exchange,
  response: HttpResponse,
  closes: boolean,
  done: (failure?: unknown) => void,
): void {
  const connection = closes ? CLOSE : []
  res.writeHead(response.status, [...COMMON, ...headersOf(response, requestId), ...connection])
  const { body } = response
  if (body === undefined || req.method === 'HEAD') {
    abandon(response)
    res.end()
    return done()
  }
  if (!isStream(body) && body.length <= PIECE_MAX_BYTES) {
    // Node sends the headers with a text, and encodes both in the same way. Headers are latin1.
    res.end(body, 'latin1')
    return done()
  }
  const fail = (error: unknown): void => {
    if (isLeft(res)) return done()
    cutOff(req.socket)
    done(error)
  }
  // A list may be waiting for room or for its turn.
  res.once('close', () => abandon(response))
  // Another application may have ended the response, and still write to it.
  res.on('error', () => {})
  const whole = typeof body === 'string' ? Buffer.from(body) : body
  const pieces = isStream(whole) ? whole : piecesOf(whole)
  void sendPieces(res, pieces).then(() => done(), fail).finally(() => abandon(response))
}

/** True if the client has left, or another application has ended the response. */
function isLeft(res: ServerResponse): boolean {
  return res.writableEnded || res.destroyed
}

/** Hands over a piece when the one before it has been taken. Stops early if `isLeft`. */
async function sendPieces(
  res: ServerResponse,
  pieces: Iterable<Buffer> | AsyncIterable<Buffer>,
): Promise<void> {
  let wake = (): void => {}
  // Not chained: a listener of another application may return another stream.
  res.on('drain', () => wake())
  res.on('close', () => wake())
  for await (const piece of pieces) {
    if (isLeft(res)) return
    // Another application's `write` may return nothing, or a promise.
    const taken: unknown = res.write(piece)
    const isFull = typeof taken === 'boolean' ? !taken : res.writableNeedDrain
    if (isFull && !isLeft(res)) await new Promise<void>((resolve) => (wake = resolve))
  }
  if (!isLeft(res)) res.end()
}

function* piecesOf(body: Buffer): Generator<Buffer, void, undefined> {
  for (let at = 0; at < body.length; at += PIECE_MAX_BYTES)
    yield body.subarray(at, at + PIECE_MAX_BYTES)
}
