import { isUtf8 } from 'node:buffer'
import type { IncomingMessage } from 'node:http'
import { ClientGone, HttpError } from '../errors.ts'
import type { Exchange } from './exchange.ts'

/** @throws HttpError when the headers say that the body is no JSON in UTF-8, or too large. */
export function checkBodyHeaders({ headers }: Exchange, maxBodyBytes: number): void {
  const [type, second] = headers.contentTypes
  if (second !== undefined) throw new HttpError('contentTypeRepeated')
  if (type === undefined || !isJson(type)) throw new HttpError('mediaTypeUnsupported')
  if (headers.contentEncodings.some((coding) => coding.toLowerCase() !== 'identity')) {
    throw new HttpError('contentEncodingUnsupported', ['Accept-Encoding', 'identity'])
  }
  if ((headers.contentLengthBytes ?? 0) > maxBodyBytes) throw new HttpError('bodyTooLarge')
}

const TOKEN = "[!#$%&'*+.^_`|~0-9A-Za-z-]+"
/**
 * RFC 9110 §8.3.1: type, then parameters whose value is a token or a quoted string. A text fits it
 * in one way at most, so that it is refused in linear time.
 */
const MEDIA_TYPE = new RegExp(
  `^application/json((?:[ \\t]*;(?:[ \\t]*${TOKEN}=(?:${TOKEN}|"(?:[^"\\\\]|\\\\.)*"))?)*)[ \\t]*$`,
  'i',
)
const CHARSET = new RegExp(`;[ \\t]*charset=(${TOKEN}|"[^"]*")`, 'gi')

function isJson(contentType: string): boolean {
  // As nearly every client writes it.
  if (contentType === 'application/json') return true
  const parameters = MEDIA_TYPE.exec(contentType)?.[1]
  if (parameters === undefined) return false
  return [...parameters.matchAll(CHARSET)].every(([, charset]) =>
    /^"?utf-8"?$/i.test(charset ?? ''),
  )
}

/**
 * Reads a body to its end.
 * @throws HttpError `bodyTooLarge` after `maxBodyBytes`.
 * @throws ClientGone when it ends early.
 */
export async function readBody(exchange: Exchange, maxBodyBytes: number): Promise<Buffer> {
  const bytes = await readBytes(exchange, maxBodyBytes)
  if (bytes === undefined) throw new HttpError('bodyTooLarge')
  return bytes
}

/** @throws HttpError `bodyNotUtf8`. */
export function textOf(bytes: Buffer): string {
  if (!isUtf8(bytes) || (bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf))
    throw new HttpError('bodyNotUtf8')
  return bytes.toString('utf8')
}

/** Reads a body to its end, or returns undefined and stops once it is longer than allowed. */
function readBytes(exchange: Exchange, maxBytes: number): Promise<Buffer | undefined> {
  const { req, res } = exchange
  // While its token was verified the parser gave up on its body.
  if (exchange.phase === 'cancelled') return Promise.reject(new ClientGone())
  if (!exchange.bodyTaken && isRead(req)) {
    exchange.bodyTaken = true
    const cause = 'the body was read before the handler: mount it before body parsers'
    return Promise.reject(new Error(cause))
  }
  // The client left while its token was verified: the request's events are over.
  if (req.destroyed) return Promise.reject(new ClientGone())
  if (exchange.awaitsContinue) res.writeContinue()
  exchange.awaitsContinue = false
  exchange.bodyTaken = true
  return new Promise((resolve, reject) => {
    // Copied together as they come: a chunk of one byte would cost 200 where each was kept. Most
    // bodies are one chunk, and are not copied.
    let held: Buffer = Buffer.alloc(0)
    let bytes = 0
    let ended = false
    const take = (chunk: Buffer): void => {
      const before = bytes
      bytes += chunk.length
      if (bytes > maxBytes) {
        req.off('data', take).pause()
        exchange.bodyTaken = false
        resolve(undefined)
      } else if (before === 0) {
        held = chunk
      } else {
        if (bytes > held.length)
          held = Buffer.concat([held.subarray(0, before)], Math.max(bytes, 2 * before))
        chunk.copy(held, before)
      }
    }
    // An embedding application may have paused it: a listener alone does not undo that.
    req.on('data', take).resume()
    req.once('end', () => {
      ended = true
      // Answered by then that it took too long: it must not take effect after all.
      if (exchange.phase === 'cancelled') reject(new ClientGone())
      else resolve(held.subarray(0, bytes))
    })
    // An error of the request is always followed by its close.
    req.once('error', () => {})
    req.once('close', () => {
      if (!ended) reject(new ClientGone())
    })
  })
}

/** True if an embedding application has read the body, reads it, or turned its bytes into text. */
function isRead(req: IncomingMessage): boolean {
  if (req.readableDidRead || req.readableEnded) return true
  return req.readableEncoding !== null || req.listenerCount('readable') > 0
}
