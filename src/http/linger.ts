import type { Socket } from 'node:net'

/** After the last response an owner may still send this much before it reads the response. */
const OWNER_MAX_BYTES = 16 * 1024 * 1024
/** The same for a client without a valid token. */
const STRANGER_MAX_BYTES = 64 * 1024
const LINGER_MS = 1000

/**
 * Ends a connection in the middle of a response. A TCP connection is reset: an HTTP/1.0 client
 * would take a normal end for the end of its list. All others are closed: unix sockets, TLS, and
 * the streams of an embedding application. Never throws, because it is called in a timer.
 */
export function cutOff(socket: Socket): void {
  // Node would first wait until all is sent, which never happens if the reader has stalled.
  socket.destroySoon = () => socket.destroy()
  try {
    socket.resetAndDestroy()
  } catch {
    socket.destroy()
  }
}

/**
 * The end of a connection: it half-closes, goes on reading for a while, and closes. A close with
 * unread bytes is a reset, which destroys responses that the client has not read (RFC 9112 §9.6).
 */
export class Linger {
  readonly #socket: Socket
  /** After this many bytes reading stops, and the client is reset a little later. */
  #readUntilBytes = Infinity

  constructor(socket: Socket) {
    this.#socket = socket
  }

  /** True if the socket must stay paused. */
  get isFull(): boolean {
    return this.#socket.bytesRead > this.#readUntilBytes
  }

  pauseIfFull(): void {
    if (this.isFull) this.#socket.pause()
  }

  /** Limits how much is read from now on. */
  limit(isOwner: boolean): void {
    this.#readUntilBytes = this.#socket.bytesRead + (isOwner ? OWNER_MAX_BYTES : STRANGER_MAX_BYTES)
  }

  end(text: string, isOwner: boolean): void {
    this.limit(isOwner)
    // Once the client has ended its side too, the socket destroys itself.
    this.#socket.end(text)
    this.#socket.resume()
    const timer = setTimeout(() => this.#socket.destroy(), LINGER_MS)
    this.#socket.once('close', () => clearTimeout(timer))
  }
}
