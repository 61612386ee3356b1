/* Reads a body, or drops it. */

import { ClientGone, HttpError } from '../errors.ts'
import { type Hold, overloaded } from '../limits/budget.ts'
import type { Exchange } from './exchange.ts'

/** What one read of a socket brings at most. */
const READ_BYTES = 64 * 1024

/** Chunks, copied into one buffer: a list of them would take 250 bytes for a chunk of one byte. */
class Chunks {
  #buffer: Buffer = Buffer.alloc(0)
  length = 0

  get all(): Buffer {
    return this.#buffer.subarray(0, this.length)
  }

  /** The buffer doubles, up to `maxBytes`. False, and nothing is added, if `hold` has no room. */
  add(chunk: Buffer, maxBytes: number, hold?: Hold): boolean {
    const needed = this.length + chunk.length
    if (needed > this.#buffer.length) {
      const size = Math.max(needed, Math.min(2 * this.length, maxBytes))
      if (hold?.grow(size) === false) return false
      // Most bodies are one chunk, which is not copied.
      this.#buffer = this.length === 0 ? chunk : Buffer.concat([this.all], size)
    }
    if (this.length > 0) chunk.copy(this.#buffer, this.length)
    this.length = needed
    return true
  }
}

/**
 * Stops the socket until a chunked body is read or dropped, and collects what the read under way
 * brings. Node would hold each chunk by itself: 2.7 MiB for one read of one-byte chunks.
 */
export function collectBody(exchange: Exchange): void {
  if (!exchange.isChunked || !exchange.hasUnreadBody || exchange.isDiscarding) return
  const { req } = exchange
  const chunks = new Chunks()
  const take = (chunk: Buffer): void => void chunks.add(chunk, READ_BYTES)
  exchange.takeCollected = () => {
    exchange.takeCollected = undefined
    req.off('data', take).socket.resume()
    return chunks.all
  }
  req.socket.pause()
  // It flows at once, so that each chunk is taken while Node parses the next.
  req.on('data', take).read(0)
}

/**
 * Reads a body to its end. Its memory is reserved in `hold` as it grows.
 * @throws HttpError `bodyTooLarge` after `maxBytes`, `overloaded` without room. The rest is then
 * unread.
 * @throws ClientGone if the body ends early.
 */
export function readBody(exchange: Exchange, maxBytes: number, hold: Hold): Promise<Buffer> {
  const { req, res } = exchange
  // It was refused, or its client has left, while the token was verified.
  if (exchange.response || exchange.isOver) throw new ClientGone()
  const collected = exchange.takeCollected?.()
  // The application of another server has read it, reads it, or has set its encoding.
  const isText = req.readableEncoding !== null || req.listenerCount('readable') > 0
  if (!collected && (req.readableDidRead || req.readableEnded || isText))
    throw new Error('the body was read before the handler: mount it before body parsers')
  exchange.isBodyTaken = true
  if (exchange.awaitsContinue) res.writeContinue()
  exchange.awaitsContinue = false
  return new Promise((resolve, reject) => {
    const chunks = new Chunks()
    const take = (chunk: Buffer): void => {
      // It came too late: the request has its response.
      if (exchange.response || exchange.isDone) return gone()
      if (chunks.length + chunk.length > maxBytes) return stop(new HttpError('bodyTooLarge'))
      const isAdded = chunks.add(chunk, exchange.contentLength ?? maxBytes, hold)
      if (!isAdded) stop(overloaded())
    }
    const end = (): void => {
      if (exchange.response || exchange.isDone) return gone()
      release()
      resolve(chunks.all)
    }
    const stop = (error: Error): void => {
      release()
      exchange.isBodyTaken = false
      reject(error)
    }
    const gone = (): void => stop(new ClientGone())
    // What was read must not stay in memory while the store works.
    const release = (): void => void req.off('data', take).off('end', end).off('close', gone)
    // The application of another server may have paused the request.
    req.on('end', end).on('close', gone).on('data', take).resume().read(0)
    if (collected) take(collected)
    if (req.readableEnded) end()
  })
}

/**
 * Reads a body that is not wanted and drops it. To be called as soon as that is known: Node would
 * hold what comes of it.
 */
export function discardBody(exchange: Exchange): void {
  // Else Node drops a body that is not there, which takes it five turns of its queue, a tenth of a
  // cached list (`make bench WORKLOADS=mixed`).
  if (!exchange.hasBody) exchange.req.read()
  if (!exchange.hasUnreadBody || exchange.isDiscarding) return
  exchange.isDiscarding = true
  let left = exchange.discardMaxBytes
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
