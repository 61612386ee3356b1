import { readJsonObject } from './json-object.ts'
import { MAX_KEY_SET_BYTES } from './key-source.ts'

/** Characters of a URL in a message. */
const MAX_SHOWN = 200

/** Fetches one document, bounded in time and size. */
export type Get = (url: string) => Promise<Uint8Array>

/**
 * Whether keys that come from this URL can be believed: https, or http that does not leave the
 * machine. User info is refused because fetch refuses it, at every attempt and with the password in
 * its message.
 */
export function isTrustworthy(url: unknown): url is string {
  if (typeof url !== 'string' || !URL.canParse(url)) return false
  // The parser has brought every spelling of an IPv4 address to four decimal numbers.
  const { protocol, hostname, username, password } = new URL(url)
  const loopback =
    hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d+){3}$/.test(hostname)
  return (
    username === '' &&
    password === '' &&
    (protocol === 'https:' || (protocol === 'http:' && loopback))
  )
}

/** A URL for log and readiness: without its query, which may hold a secret, and not endless. */
function shown(url: string): string {
  return url.replace(/[?#].*$/s, '').slice(0, MAX_SHOWN)
}

/** Fetches one document at a time, each bounded in time and size. */
export class Fetcher {
  readonly #timeoutMs: number
  #running: AbortController | undefined
  #closed = false

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs
  }

  get closed(): boolean {
    return this.#closed
  }

  readonly get: Get = async (url) => {
    if (this.#closed) throw new Error('closed')
    const running = (this.#running = new AbortController())
    const late = new Error(`${shown(url)} did not answer in full within ${this.#timeoutMs} ms`)
    const timer = setTimeout(() => running.abort(late), this.#timeoutMs).unref()
    try {
      return await fetchBytes(url, running.signal)
    } finally {
      clearTimeout(timer)
    }
  }

  close(): void {
    this.#closed = true
    this.#running?.abort(new Error('closed'))
  }
}

/**
 * The body of a 200, read no further than MAX_KEY_SET_BYTES. No redirect: it could lead away from
 * https.
 */
async function fetchBytes(url: string, signal: AbortSignal): Promise<Uint8Array> {
  const { status, body } = await fetch(url, {
    signal,
    redirect: 'error',
    headers: { Accept: 'application/json' },
  })
  if (status !== 200 || body === null) {
    await body?.cancel()
    throw new Error(`${shown(url)} answered ${status}`)
  }
  const chunks: Uint8Array[] = []
  let size = 0
  // Leaving the loop cancels the body, and with it the connection.
  for await (const chunk of body) {
    size += chunk.length
    if (size > MAX_KEY_SET_BYTES)
      throw new Error(`${shown(url)} answered more than ${MAX_KEY_SET_BYTES} bytes`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

/**
 * The URL of an issuer's key set, from its discovery document (OpenID Connect Discovery 1.0 §4).
 * @throws Error when the document is not this issuer's (§4.3: exactly the same string), or names no
 * URL to be believed.
 */
export async function discoverKeySetUrl(issuer: string, get: Get): Promise<string> {
  const url = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
  const { issuer: named, jwks_uri: keySetUrl } = readJsonObject(await get(url))
  if (named !== issuer) {
    const other = typeof named === 'string' ? `of another issuer: ${shown(named)}` : 'of no issuer'
    throw new Error(`${shown(url)} is ${other}`)
  }
  if (!isTrustworthy(keySetUrl))
    throw new Error(`${shown(url)} names a jwks_uri that is neither https nor on loopback`)
  return keySetUrl
}
