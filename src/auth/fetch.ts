/** Fetches one document of an issuer, bounded in time and size. */
import { Readable } from 'node:stream'

/** Of a key set or a discovery document. A set of 100 keys has about 50,000. */
export const MAX_KEY_SET_BYTES = 1024 * 1024
/** Characters of a URL in a message. */
const MAX_SHOWN = 200

/** Node then accepts every certificate. */
const UNCHECKED =
  'is of no use: with NODE_TLS_REJECT_UNAUTHORIZED=0 anyone could name the keys; ' +
  'unset it, and name your authority in NODE_EXTRA_CA_CERTS'

/**
 * Returns the URL if keys from it can be trusted. Over plain http they come from this machine
 * alone, or from `anywhere`; `setting` is what messages call that choice. User info is refused
 * because `fetch` refuses it, with the password in its message.
 * @throws Error that begins with `what`, and does not show the URL, which may hold a password.
 */
export function trustedUrl(url: string, isAnywhere: boolean, setting: string, what: string) {
  const { protocol, hostname, username, password } = new URL(URL.canParse(url) ? url : 'none:')
  // The parser writes every IPv4 address as four decimal numbers.
  const isLoopback = /^(localhost|\[::1\]|127(\.\d+){3})$/.test(hostname)
  const isHttp = protocol === 'http:' && (isAnywhere || isLoopback)
  const hosts = `127.0.0.0/8, [::1] or localhost (with ${setting}=anywhere on any host)`
  if ((protocol !== 'https:' && !isHttp) || username !== '' || password !== '')
    throw new Error(`${what}must be an https URL, or http on ${hosts}, without user info`)
  const isChecked = isHttp || process.env['NODE_TLS_REJECT_UNAUTHORIZED'] !== '0'
  if (!isChecked) throw new Error(`${what}${UNCHECKED}`)
  return url
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
  running: AbortController,
  timeoutMs: number,
): Promise<T> {
  const late = new Error(`no whole answer within ${timeoutMs} ms`)
  const timer = setTimeout(() => running.abort(late), timeoutMs).unref()
  const { signal } = running
  try {
    // RFC 7517 §8.5.2. Kubernetes has the first type alone; others send key sets as they like.
    const headers = { Accept: 'application/jwk-set+json, application/json, */*;q=0.1' }
    const { status, body } = await fetch(url, { signal, redirect: 'error', headers })
    if (status !== 200) throw new Error(`answered ${status}`)
    // Node's fetch reaches the signal through weak references only: once the garbage collector has
    // run, the signal alone does not end a body that has stopped coming. So the stream has it too.
    const stream: AsyncIterable<Uint8Array> | [] = body ? Readable.fromWeb(body, { signal }) : []
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
    // What is left of the body would hold the connection.
    running.abort()
    throw new Error(shownUrl(url), { cause })
  } finally {
    clearTimeout(timer)
  }
}
