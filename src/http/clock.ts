import type { Socket } from 'node:net'
import type { Exchange } from './exchange.ts'

/** How long a connection may stay in each state; `headersMs` is Node's to measure. */
export interface HttpTimeouts {
  readonly headersMs: number
  readonly keepAliveMs: number
  readonly requestMs: number
  readonly servingMs: number
  readonly stalledMs: number
}

/**
 * What a connection waits for. One that lingers after its last answer has a timer instead.
 * - idle: the next request's head. It ends without a word, or with 408 if Node called a head late.
 * - receiving: the rest of a body that is read. It ends with 408.
 * - serving: the service itself. It ends with 503: a create may still be stored.
 * - sending: the client, which takes the answer; each piece that it takes starts the time anew.
 *   It ends with the socket, so that a part of an answer is never taken for the whole.
 * - discarding: the rest of a body whose request is answered. It ends without a word.
 */
export type State = 'idle' | 'receiving' | 'serving' | 'sending' | 'discarding'

export function stateOf(current: Exchange | undefined): State {
  if (!current) return 'idle'
  const { phase, req, res, bodyTaken } = current
  // An application that embeds the service may have answered itself.
  if (phase === 'cancelled' || (phase === 'serving' && res.headersSent)) return 'idle'
  if (phase === 'serving') return bodyTaken && !req.complete ? 'receiving' : 'serving'
  if (!res.writableFinished) return 'sending'
  return req.complete ? 'idle' : 'discarding'
}

/** Measures how long one connection stays in one state. It costs a request nothing. */
export class Clock {
  readonly #socket: Socket
  readonly #timeouts: HttpTimeouts
  /** In another application's server, whose connection it is between our requests. */
  readonly #embedded: boolean
  // What it saw last, and for how long.
  #state: State = 'idle'
  #exchange: Exchange | undefined
  #sentBytes = 0
  #ageMs = 0

  constructor(socket: Socket, timeouts: HttpTimeouts, embedded: boolean) {
    this.#socket = socket
    this.#timeouts = timeouts
    this.#embedded = embedded
  }

  /** True if the state of `current` has lasted too long. To be asked every second or so. */
  isOver(current: Exchange | undefined, headIsLate: boolean, passedMs: number): boolean {
    const state = stateOf(current)
    if (this.#hasMoved(state, current)) {
      this.#state = state
      this.#exchange = current
      this.#sentBytes = this.#sent(state)
      this.#ageMs = 0
      return false
    }
    this.#ageMs += passedMs
    return this.#ageMs >= this.#limitMs(state, headIsLate)
  }

  /**
   * How long the client has been still; undefined while it is served. `unseenMs`: since `isOver`.
   */
  quietMs(current: Exchange | undefined, unseenMs: number): number | undefined {
    const state = stateOf(current)
    if (state === 'serving') return undefined
    if (this.#hasMoved(state, current)) return state === 'sending' ? undefined : 0
    return this.#ageMs + unseenMs
  }

  #hasMoved(state: State, current: Exchange | undefined): boolean {
    if (state !== this.#state || current !== this.#exchange) return true
    return this.#sent(state) !== this.#sentBytes
  }

  /** Bytes that have left the process; of a chunk none are counted until all of it has left. */
  #sent(state: State): number {
    return state === 'sending' ? this.#socket.bytesWritten - this.#socket.writableLength : 0
  }

  #limitMs(state: State, headIsLate: boolean): number {
    const { headersMs, keepAliveMs, requestMs, servingMs, stalledMs } = this.#timeouts
    switch (state) {
      case 'idle':
        // Without a late head it is Node that closes first.
        if (this.#embedded) return Infinity
        return headIsLate ? headersMs : keepAliveMs + headersMs
      case 'receiving':
        return requestMs
      case 'serving':
        return servingMs
      case 'sending':
        return stalledMs
      case 'discarding':
        return this.#embedded ? Infinity : requestMs
    }
  }
}
