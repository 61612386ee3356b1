import type { Exchange } from './exchange.ts'

/*
 * Everything about a body that is not read, or not read yet. After the connection's last response
 * linger.ts takes over.
 */

/** An unread body is discarded up to here. A longer one closes the connection. */
const DISCARD_MAX_BYTES = 64 * 1024

/**
 * True if a waiting request has a body: the socket is paused then. Node keeps the body in the
 * chunks that the client sent, and each costs 250 bytes.
 */
export function isBodyWaiting(waiting: readonly Exchange[]): boolean {
  return waiting.some(({ hasUnreadBody }) => hasUnreadBody)
}

/** Keeps a body until it is read: a listener of the embedding application would make it flow. */
export function holdBody({ req, hasUnreadBody }: Exchange): void {
  if (hasUnreadBody) req.pause()
}

/**
 * Deals with what is unread of a body when the response is known. True if the connection can go on
 * after the response, false if the response must close it.
 */
export function settleBody(exchange: Exchange, status: number): boolean | Promise<boolean> {
  const { awaitsContinue, hasUnreadBody, headers } = exchange
  // Also if all of the body has come: a client need not tell the two cases apart.
  if (status === 413) return false
  if (!hasUnreadBody) return true
  // Without "100 Continue" the client may send the body or not: what follows is unclear.
  if (awaitsContinue) return false
  // Node itself drops a body of known length after the response. A chunked one has no known end, so
  // it is dropped before.
  if (headers.contentLengthBytes === undefined) return discardBody(exchange)
  return headers.contentLengthBytes <= DISCARD_MAX_BYTES
}

/** Reads a body and drops it. False if it is too long, or the client has left. */
function discardBody(exchange: Exchange): Promise<boolean> {
  const { req } = exchange
  exchange.bodyTaken = true
  return new Promise((resolve) => {
    let bytes = 0
    const count = (chunk: Buffer): void => {
      bytes += chunk.length
      if (bytes <= DISCARD_MAX_BYTES) return
      req.off('data', count).pause()
      resolve(false)
    }
    req.on('data', count).resume()
    req.once('end', () => resolve(true))
    req.once('error', () => {})
    req.once('close', () => resolve(false))
  })
}
