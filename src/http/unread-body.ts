import { receive } from './body.ts'
import type { Exchange } from './exchange.ts'

/*
 * What is done with a body that is not read. After the connection's last response linger.ts takes
 * over.
 */

/** An unread body is discarded up to here. A longer one closes the connection. */
const DISCARD_MAX_BYTES = 64 * 1024

/**
 * Deals with what is unread of a body when the response is known. True if the connection can go on
 * after the response, false if the response must close it.
 */
export function settleBody(exchange: Exchange, status: number): boolean | Promise<boolean> {
  const { awaitsContinue, hasUnreadBody, headers } = exchange
  // Even if the whole body has come: so clients see one behaviour. Of too many headers Node keeps
  // only some, so the end of that request is not known.
  if (status === 413 || status === 431) return false
  if (!hasUnreadBody) return true
  // Without "100 Continue" the client may send the body or not: what follows is unclear.
  if (awaitsContinue) return false
  // Node itself drops a body of known length after the response. A chunked one has no known end, so
  // it is dropped before.
  if (headers.contentLengthBytes === undefined) return discardBody(exchange)
  return headers.contentLengthBytes <= DISCARD_MAX_BYTES
}

/** Reads what comes of a body and drops it; `onChunk` is called for each chunk. */
export function dropBody(exchange: Exchange, onChunk: () => void = () => {}): void {
  const accept = (): boolean => {
    onChunk()
    return true
  }
  receive(exchange, { accept, end() {}, gone() {} })
}

/** Reads a body and drops it. False if it is too long, or the client has left. */
function discardBody(exchange: Exchange): Promise<boolean> {
  exchange.bodyTaken = true
  return new Promise((resolve) => {
    let bytes = 0
    receive(exchange, {
      accept(chunk) {
        bytes += chunk.length
        return bytes <= DISCARD_MAX_BYTES
      },
      end: () => resolve(true),
      gone: () => resolve(false),
    })
  })
}
