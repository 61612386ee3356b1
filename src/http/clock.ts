import type { Socket } from 'node:net'
import type { Exchange } from './exchange.ts'

/** How long a connection may stay in each state. Node itself measures `headersMs`. */
export interface HttpTimeouts {
  readonly headersMs: number
  readonly keepAliveMs: number
  readonly requestMs: number
  readonly servingMs: number
  readonly stalledMs: number
}

/**
 * What a connection waits for. After its last response it lingers; linger.ts has that timer.
 * - idle: the next request's headers.
 * - receiving: the rest of a body that is read.
 * - serving: the service itself.
 * - sending: the client takes the response. The limit starts again with each piece that it takes.
 * - discarding: the rest of a body whose request is answered.
 */
type State = 'idle' | 'receiving' | 'serving' | 'sending' | 'discarding'

/** How a connection ends whose state has lasted too long: with this response, or without one. */
type End = 'requestTimeout' | 'late' | 'close' | 'cut off'

/** The state of a connection, from its current request. */
function stateOf(current: Exchange | undefined): State {
  if (!current) return 'idle'
  const { phase, req, res, bodyTaken } = current
  // The second: an embedding application has responded itself.
  if (phase === 'cancelled' || (phase === 'serving' && res.headersSent)) return 'idle'
  if (phase === 'serving') return bodyTaken && !req.complete ? 'receiving' : 'serving'
  if (!current.hasLeft) return 'sending'
  return req.complete ? 'idle' : 'discarding'
}

/** Measures how long one connection stays in one state. A request adds no work: `check` does it. */
export class Clock {
  readonly #socket: Socket
  readonly #timeouts: HttpTimeouts
  // What the last check saw, and for how long that has lasted.
  #state: State = 'idle'
  /** A number: the exchange itself would stay in memory until the next check. */
  #exchange = 0
  #sentBytes = 0
  #ageMs = 0

  constructor(socket: Socket, timeouts: HttpTimeouts) {
    this.#socket = socket
    this.#timeouts = timeouts
  }

  /** How the connection ends if its state has lasted too long. To be called every second or so. */
  check(current: Exchange | undefined, isLate: boolean, passedMs: number): End | undefined {
    const state = stateOf(current)
    if (this.#hasMoved(state, current)) {
      this.#state = state
      this.#exchange = current?.number ?? 0
      this.#sentBytes = this.#sent(state)
      this.#ageMs = 0
      return undefined
    }
    this.#ageMs += passedMs
    const [limitMs, end] = this.#limitOf(state, isLate)
    return this.#ageMs < limitMs ? undefined : end
  }

  /**
   * How long the client had done nothing at the last `check`, or -1 if it has done something since;
   * undefined if it waits for the service or is taking a response.
   */
  quietMs(current: Exchange | undefined): number | undefined {
    const state = stateOf(current)
    if (state === 'serving') return undefined
    if (this.#hasMoved(state, current)) return state === 'sending' ? undefined : -1
    return this.#ageMs
  }

  #hasMoved(state: State, current: Exchange | undefined): boolean {
    if (state !== this.#state || (current?.number ?? 0) !== this.#exchange) return true
    return this.#sent(state) !== this.#sentBytes
  }

  /** Bytes that have left the process. A piece counts only when all of it has left. */
  #sent(state: State): number {
    if (state !== 'sending') return 0
    // A stream of an embedding application has no `bytesWritten`.
    const { bytesWritten = 0, writableLength } = this.#socket
    return bytesWritten - writableLength
  }

  #limitOf(state: State, isLate: boolean): readonly [limitMs: number, end: End] {
    const { headersMs, keepAliveMs, requestMs, servingMs, stalledMs } = this.#timeouts
    switch (state) {
      case 'idle':
        if (isLate) return [headersMs, 'requestTimeout']
        // Node's own keep-alive timeout comes first, unless the client sends bare line ends.
        return [keepAliveMs + headersMs, 'cut off']
      case 'receiving':
        return [requestMs, 'requestTimeout']
      case 'serving':
        // A create may still be stored.
        return [servingMs, 'late']
      case 'sending':
        // A part of the response must not be taken for the whole.
        return [stalledMs, 'cut off']
      case 'discarding':
        return [requestMs, 'close']
    }
  }
}

/** How often a stop looks for connections that it can close. */
export const DRAIN_CHECK_MS = 25

/** How often timeouts are checked. Node's own default for late headers is 30 s. */
const CHECK_MS = 1000

/** Calls `check` every second or so, with the time that has passed, until it returns false. */
export class Watch {
  /** How often; more often only for shorter timeouts. */
  readonly everyMs: number
  readonly #check: (passedMs: number) => boolean
  #timer: NodeJS.Timeout | undefined
  #lastMs = 0

  constructor(timeouts: HttpTimeouts, check: (passedMs: number) => boolean) {
    this.everyMs = Math.min(CHECK_MS, ...Object.values(timeouts))
    this.#check = check
  }

  start(): void {
    if (this.#timer) return
    this.#lastMs = performance.now()
    this.#timer = setInterval(() => this.#tick(), this.everyMs).unref()
  }

  #tick(): void {
    // After a pause of the whole process, this runs before the data that came meanwhile is read. So
    // two intervals count at most: a client is not charged for our pause.
    const passedMs = Math.min(performance.now() - this.#lastMs, 2 * this.everyMs)
    this.#lastMs = performance.now()
    if (this.#check(passedMs)) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }
}
