import type { Socket } from 'node:net'

/** After the last answer a known owner may still send this much, and read the answer then. */
const OWNER_MAX_BYTES = 16 * 1024 * 1024
const STRANGER_MAX_BYTES = 64 * 1024
const LINGER_MS = 1000

/**
 * Ends a connection in the middle of an answer. To HTTP/1.0 a list has no other end than the
 * connection's: after a plain close a part of it would look whole, so TCP resets it. A unix socket
 * knows no reset.
 */
export function cutOff(socket: Socket): void {
  // Node would wait until all is sent, which a stalled reader never lets it.
  socket.destroySoon = () => socket.destroy()
  if (socket.remoteAddress === undefined) socket.destroy()
  else socket.resetAndDestroy()
}

/**
 * The end of a connection. It half-closes, and closes once the client had time to read: with bytes
 * left unread a close is a reset, which takes back answers on their way (RFC 9112 §9.6).
 */
export class Linger {
  readonly #socket: Socket
  /** More than this is not read: it only delays the reset. */
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

  /** How much is read from now on. */
  limit(known: boolean): void {
    this.#readUntilBytes = this.#socket.bytesRead + (known ? OWNER_MAX_BYTES : STRANGER_MAX_BYTES)
  }

  end(text: string, known: boolean): void {
    this.limit(known)
    // Once the client has ended its side too, the socket destroys itself.
    this.#socket.end(text)
    this.#socket.resume()
    const timer = setTimeout(() => this.#socket.destroy(), LINGER_MS)
    this.#socket.once('close', () => clearTimeout(timer))
  }
}
