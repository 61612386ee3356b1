import type { IncomingMessage } from 'node:http'
import { ClientGone, HttpError } from '../errors.ts'
import { type Hold, overloaded } from '../ops/budget.ts'
import { BodyBuffer } from './body-buffer.ts'
import { type BodySink, DirectRequest } from './direct-request.ts'
import type { Exchange } from './exchange.ts'

/**
 * Reads a body to its end. Its memory is reserved in `hold` as it grows.
 * @throws HttpError `bodyTooLarge` after `maxBytes`, `overloaded` without room. The rest is then
 * unread.
 * @throws ClientGone if the body ends early.
 */
export async function readBody(
  exchange: Exchange,
  maxBytes: number,
  hold: Hold,
): Promise<Buffer> {
  const { req, res } = exchange
  // The parser refused the body while the token was verified.
  if (exchange.phase !== 'serving') throw new ClientGone()
  exchange.bodyTaken = true
  if (isRead(req))
    throw new Error('the body was read before the handler: mount it before body parsers')
  // The client left while the token was verified: no more events will come.
  if (req.destroyed) throw new ClientGone()
  if (exchange.awaitsContinue) res.writeContinue()
  return new Promise((resolve, reject) => {
    const body = new BodyBuffer(exchange.headers.contentLengthBytes)
    const refuse = (error: HttpError): false => {
      exchange.bodyTaken = false
      reject(error)
      return false
    }
    const sink: BodySink = {
      accept(chunk) {
        // Already answered, perhaps with 408: a late body is dropped.
        if (exchange.phase !== 'serving') return true
        if (body.length + chunk.length > maxBytes) return refuse(new HttpError('bodyTooLarge'))
        if (!hold.grow(body.capacityWith(chunk.length))) return refuse(overloaded())
        body.add(chunk)
        return true
      },
      end() {
        if (exchange.phase !== 'serving') reject(new ClientGone())
        else resolve(body.bytes)
      },
      gone: () => reject(new ClientGone()),
    }
    receive(exchange, sink)
  })
}

/** Hands a body to a sink: from Node's parser if it can, else from the stream. */
export function receive(exchange: Exchange, sink: BodySink): void {
  const { req } = exchange
  if (req instanceof DirectRequest && req.divert(sink)) return
  const take = (chunk: Buffer): void => {
    if (sink.accept(chunk)) return
    req.pause()
    gone()
  }
  const end = (): void => {
    release()
    sink.end()
  }
  const gone = (): void => {
    release()
    sink.gone()
  }
  // What was read must not stay in memory while the store works.
  const release = (): void => {
    req.off('data', take).off('end', end).off('close', gone)
    exchange.stopReading = undefined
  }
  exchange.stopReading = gone
  // An application that embeds the service may have paused the request: a listener alone would
  // not resume it.
  req.on('data', take).on('end', end).on('close', gone).resume()
  req.once('error', ignore)
}

/** An error is always followed by a close. A function made above would keep the sink in memory. */
function ignore(): void {}

/** True if an embedding application has read the body, reads it, or has set its encoding. */
function isRead(req: IncomingMessage): boolean {
  if (req.readableDidRead || req.readableEnded) return true
  return req.readableEncoding !== null || req.listenerCount('readable') > 0
}
