/** Fetches one document of an issuer, bounded in time and size. */
import { Readable } from 'node:stream'
import { MAX_KEY_SET_BYTES } from './key-source.ts'

/** Characters of a URL in a message. */
const MAX_SHOWN = 200

/**
 * Whether keys from this URL can be trusted: https, or http that does not leave the machine. User
 * info is refused because `fetch` refuses it, with the password in its message.
 */
export function isTrustworthy(url: unknown): url is string {
  if (typeof url !== 'string' || !URL.canParse(url)) return false
  // The parser writes every IPv4 address as four decimal numbers.
  const { protocol, hostname, username, password } = new URL(url)
  const isLoopback = /^(localhost|\[::1\]|127(\.\d+){3})$/.test(hostname)
  const isSafe = protocol === 'https:' || (protocol === 'http:' && isLoopback)
  return isSafe && username === '' && password === ''
}

/** A URL in a message: cut, and without its query, which may hold a secret. */
export function shownUrl(url: string): string {
  return url.replace(/[?#].*$/s, '').slice(0, MAX_SHOWN)
}

/**
 * Reads the body of a 200. A redirect is refused, because it could lead away from https. Aborting
 * `running` ends the fetch. An error names the URL.
 */
export async function fetchDocument<T>(
  url: string,
  read: (bytes: Uint8Array) => T,
  timeoutMs: number,
  running: AbortController,
): Promise<T> {
  const late = new Error(`no whole answer within ${timeoutMs} ms`)
  const timer = setTimeout(() => running.abort(late), timeoutMs).unref()
  const { signal } = running
  try {
    const headers = { Accept: 'application/json' }
    const { status, body } = await fetch(url, { signal, redirect: 'error', headers })
    if (status !== 200 || body === null) {
      await body?.cancel()
      throw new Error(`answered ${status}`)
    }
    // Node's fetch reaches the signal through weak references only: once the garbage collector has
    // run, the signal alone does not end a body that has stopped coming. So the stream has it too.
    const stream: AsyncIterable<Uint8Array> = Readable.fromWeb(body, { signal })
    const chunks: Uint8Array[] = []
    let size = 0
    for await (const chunk of stream) {
      size += chunk.length
      // Leaving the loop closes the connection.
      if (size > MAX_KEY_SET_BYTES) throw new Error(`answered more than ${MAX_KEY_SET_BYTES} bytes`)
      chunks.push(chunk)
    }
    return read(Buffer.concat(chunks))
  } catch (cause) {
    throw new Error(shownUrl(url), { cause })
  } finally {
    clearTimeout(timer)
  }
}
