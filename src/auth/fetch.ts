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
  const isLoopback =
    hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d+){3}$/.test(hostname)
  const isSafe = protocol === 'https:' || (protocol === 'http:' && isLoopback)
  return isSafe && username === '' && password === ''
}

/** A URL in a message: cut, and without its query, which may hold a secret. */
export function shownUrl(url: string): string {
  return url.replace(/[?#].*$/s, '').slice(0, MAX_SHOWN)
}

/** Fetches one document at a time, each bounded in time and size. */
export class Fetcher {
  readonly #timeoutMs: number
  #running = new AbortController()
  #isClosed = false

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs
  }

  get isClosed(): boolean {
    return this.#isClosed
  }

  async get(url: string): Promise<Uint8Array> {
    if (this.#isClosed) throw new Error('closed')
    const running = (this.#running = new AbortController())
    const late = new Error(`${shownUrl(url)} did not answer in full within ${this.#timeoutMs} ms`)
    const timer = setTimeout(() => running.abort(late), this.#timeoutMs).unref()
    try {
      return await fetchBytes(url, running.signal)
    } finally {
      clearTimeout(timer)
    }
  }

  close(): void {
    this.#isClosed = true
    this.#running.abort(new Error('closed'))
  }
}

/** The body of a 200. A redirect is refused, because it could lead away from https. */
async function fetchBytes(url: string, signal: AbortSignal): Promise<Uint8Array> {
  const headers = { Accept: 'application/json' }
  const { status, body } = await fetch(url, { signal, redirect: 'error', headers })
  if (status !== 200 || body === null) {
    await body?.cancel()
    throw new Error(`${shownUrl(url)} answered ${status}`)
  }
  const reader = body.getReader()
  // Node's fetch reaches the signal through weak references only: once the garbage collector has
  // run, the signal alone does not end a body that has stopped coming.
  const stop = (): void => void reader.cancel().catch(() => {})
  signal.addEventListener('abort', stop)
  try {
    signal.throwIfAborted()
    return await readAll(reader, url, signal)
  } finally {
    // Closes the connection if something was not read.
    stop()
    signal.removeEventListener('abort', stop)
  }
}

async function readAll(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  url: string,
  signal: AbortSignal,
): Promise<Uint8Array> {
  const chunks: Uint8Array[] = []
  let size = 0
  for (;;) {
    const { done, value } = await reader.read()
    signal.throwIfAborted()
    if (done) return Buffer.concat(chunks)
    size += value.length
    if (size > MAX_KEY_SET_BYTES)
      throw new Error(`${shownUrl(url)} answered more than ${MAX_KEY_SET_BYTES} bytes`)
    chunks.push(value)
  }
}
