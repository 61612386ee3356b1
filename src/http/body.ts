/* Reads a body, or drops it. */

import { ClientGone, HttpError } from '../errors.ts'
import { type Hold, overloaded } from '../limits/budget.ts'
import type { Exchange } from './exchange.ts'

const NOT_BYTES = 'the body was read before the handler: mount it before body parsers'

/**
 * Stops the socket until a chunked body is read or dropped, and collects what the read under way
 * brings. Node would hold each chunk by itself: 2.7 MiB for one read of one-byte chunks.
 */
export function collectBody(exchange: Exchange): void {
  if (!exchange.isChunked || !exchange.hasUnreadBody || exchange.isDiscarding) return
  const { req } = exchange
  let held = Buffer.alloc(0)
  let length = 0
  const take = (chunk: Buffer): void => {
    const needed = length + chunk.length
    if (needed > held.length) held = Buffer.concat([held], 2 * needed)
    length += chunk.copy(held, length)
  }
  exchange.takeCollected = () => {
    exchange.takeCollected = undefined
    req.off('data', take).socket.resume()
    // A copy: the buffer may be twice as long.
    return Buffer.from(held.subarray(0, length))
  }
  // It flows at once, so that each chunk is taken while Node parses the next.
  req.on('data', take).read(0)
  req.socket.pause()
}

/**
 * Reads a body to its end. Its memory is reserved in `hold` as it grows. Its chunks are copied into
 * one buffer: a list of them would take 250 bytes for a chunk of one byte.
 * @throws HttpError `bodyTooLarge` after `maxBytes`, `overloaded` without room. The rest is then
 * unread.
 * @throws ClientGone if the body ends early.
 */
export function readBody(exchange: Exchange, maxBytes: number, hold: Hold): Promise<Buffer> {
  const { req } = exchange
  // It was refused, or its client has left, while the token was verified.
  if (exchange.outcome || exchange.isOver) throw new ClientGone()
  const collected = exchange.takeCollected?.()
  // The application of another server has read it, or reads it.
  const isRead = req.readableDidRead || req.readableEnded || req.listenerCount('readable') > 0
  if (!collected && isRead) throw new Error(NOT_BYTES)
  if (exchange.awaitsContinue) exchange.res.writeContinue()
  exchange.awaitsContinue = false
  return new Promise((resolve, reject) => {
    let held: Buffer = Buffer.alloc(0)
    let length = 0
    const take = (chunk: Buffer | string): void => {
      // The application has set its encoding.
      if (typeof chunk === 'string') return stop(new Error(NOT_BYTES))
      const needed = length + chunk.length
      if (needed > maxBytes) return stop(new HttpError('bodyTooLarge'))
      if (needed > held.length) {
        const capacity = Math.max(needed, Math.min(2 * length, exchange.contentLength || maxBytes))
        if (!hold.grow(capacity)) return stop(overloaded())
        // Most bodies are one chunk, which is not copied.
        held = length === 0 ? chunk : Buffer.concat([held.subarray(0, length)], capacity)
      }
      if (length > 0) chunk.copy(held, length)
      length = needed
    }
    const end = (): void => {
      release()
      resolve(held.subarray(0, length))
    }
    const stop = (error: Error): void => {
      release()
      reject(error)
    }
    // What was read must not stay in memory while the store works.
    const release = (): void => {
      exchange.endBody = undefined
      req.off('data', take).off('end', end)
    }
    exchange.endBody = () => stop(new ClientGone())
    // The application of another server may have paused the request.
    req.on('end', end).on('data', take).resume().read(0)
    if (collected) take(collected)
    if (req.readableEnded) end()
  })
}

/**
 * Reads a body that is not wanted and drops it. To be called as soon as that is known: Node would
 * hold what comes of it.
 */
export function discardBody(exchange: Exchange): void {
  // What was collected is taken even if it is the whole body.
  let left = exchange.discardMaxBytes - (exchange.takeCollected?.().length ?? 0)
  // Without this Node drops a body that is not there, in five turns of its queue: a tenth of the
  // time of a cached list (`make bench WORKLOADS=mixed`).
  if (!exchange.hasBody) exchange.req.read()
  if (!exchange.hasUnreadBody || exchange.isDiscarding) return
  exchange.isDiscarding = true
  dropBody(exchange, (chunk) => {
    left -= chunk.length
    if (left < 0) exchange.stopReading?.()
  })
}

/** Drops all that comes. It flows at once, so that Node holds nothing of it. */
export function dropBody(exchange: Exchange, count = (_chunk: Buffer): void => {}): void {
  exchange.takeCollected?.()
  exchange.req.on('data', count).resume().read(0)
}
