import type { Socket } from 'node:net'
import type { HttpError } from '../errors.ts'
import type { Exchange, RequestRecord } from './exchange.ts'

/** With this many waiting requests the socket is paused. */
export const PAUSE_AT_WAITING = 16
/** `pause()` acts after the current 64 KiB read, which holds at most 256 requests with a token. */
export const WAITING_MAX = 256

/** Pauses a socket again when Node resumes it, which it does whenever a body is read. */
export function keepPaused(socket: Socket, mustPause: () => boolean): void {
  socket.on('resume', () => {
    if (!mustPause()) return
    // If it was paused in the same tick, Node reads again although `isPaused()` is true; 'pause'
    // makes Node stop.
    if (socket.isPaused()) socket.emit('pause')
    else socket.pause()
  })
}

/** What Node's parser could not read, or waited for too long. */
export interface Refusal {
  readonly error: HttpError
  readonly request: RequestRecord
}

/**
 * What comes after the requests that wait:
 * - open: more requests.
 * - late: more requests, and Node has reported that the headers of the next one are late.
 * - last: nothing.
 * - a refusal: its response, and then nothing.
 * - closed: nothing, and no request waits either: the last response is made.
 *
 * It only goes down this list, except from late to open.
 */
type State = 'open' | 'late' | 'last' | Refusal | 'closed'

/** What follows the current request of one connection. */
export class Intake {
  readonly #waiting: Exchange[] = []
  #state: State = 'open'

  /** How many requests wait. */
  get size(): number {
    return this.#waiting.length
  }

  /** The last request that waits. */
  get newest(): Exchange | undefined {
    return this.#waiting.at(-1)
  }

  /** True if more requests may come. */
  get isOpen(): boolean {
    return this.#state === 'open' || this.#state === 'late'
  }

  get isLate(): boolean {
    return this.#state === 'late'
  }

  /** True if no request comes after those that wait, and no refusal either. */
  get isExhausted(): boolean {
    return this.#state === 'last'
  }

  /** True if the connection's last response is known. */
  get isDecided(): boolean {
    return this.#state === 'closed' || typeof this.#state === 'object'
  }

  /** Memory of the requests that wait. */
  get heldBytes(): number {
    return this.#waiting.reduce((sum, each) => sum + each.headerBytes + each.bodyBytes, 0)
  }

  /**
   * True if the socket must stay paused: too many requests wait, or one with a body. Node keeps a
   * body in the chunks that the client sent, and each costs 250 bytes.
   */
  get isFull(): boolean {
    if (this.#waiting.length >= PAUSE_AT_WAITING) return true
    return this.#waiting.some(({ hasUnreadBody }) => hasUnreadBody)
  }

  get isOverfull(): boolean {
    return this.#waiting.length > WAITING_MAX
  }

  /** To be called for each request that comes. `more`: others may follow it. */
  expectMore(more: boolean): void {
    this.#state = more ? 'open' : 'last'
  }

  headersLate(): void {
    if (this.#state === 'open') this.#state = 'late'
  }

  /**
   * Ends with a refusal. Ignored if no more requests may come, unless it refuses the newest request
   * that waits.
   */
  refuse(refusal: Refusal): void {
    if (this.newest === refusal.request) this.#waiting.pop()
    else if (!this.isOpen) return
    this.#state = refusal
  }

  /** Returns the requests that waited: they are not served. */
  close(): readonly Exchange[] {
    this.#state = 'closed'
    return this.#waiting.splice(0)
  }

  wait(exchange: Exchange): void {
    this.#waiting.push(exchange)
  }

  /** Takes what is due after the current request; undefined if it has not come yet. */
  next(): Exchange | Refusal | 'end' | undefined {
    if (this.#state === 'closed') return 'end'
    return this.#waiting.shift() ?? (typeof this.#state === 'object' ? this.#state : undefined)
  }
}
