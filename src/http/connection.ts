import { randomUUID } from 'node:crypto'
import type { Socket } from 'node:net'
import { Problem } from '../errors.ts'
import { discardBody } from './body.ts'
import type { Exchange } from './exchange.ts'
import { type Answer, problemAnswer, rawAnswer, send } from './respond.ts'

/** Requests of one connection that may wait behind another before the socket is paused. */
const WAITING_MAX = 16
/** A body that nobody reads is discarded up to here; with more of it the connection is closed. */
const DISCARD_MAX_BYTES = 64 * 1024
/** Behind an answer that closes the connection, a known owner may still send so much: a client that reads only once it has sent sees the answer. */
const LINGER_MAX_BYTES = 16 * 1024 * 1024
const LINGER_MS = 1000

export interface ConnectionHost {
  /** Answers a request; a rejection is the caller's to turn into an answer. */
  serve(exchange: Exchange): Answer | Promise<Answer>
  /** What to answer for a failure; undefined where there is nobody to answer. */
  explain(error: unknown, exchange: Exchange): Answer | undefined
  answered(exchange: Exchange, status: number): void
  readonly draining: boolean
}

/**
 * One client connection: its requests are served one at a time, in order, so that a request sees what the one before
 * it did (RFC 9112 §9.3.2; Node would run them side by side), and what comes first is answered first.
 */
export class Connection {
  readonly #socket: Socket
  readonly #host: ConnectionHost
  readonly #waiting: Exchange[] = []
  #current: Exchange | undefined
  /** Whether `#current` has been answered; its bytes may still be on their way. */
  #answered = true
  /** Whether the end of the current answer is waited for. */
  #armed = false
  /** What to say behind the last answer: the parser has given up on what follows. */
  #failure: Problem | undefined
  /** Set with the last answer: whatever else comes in is not looked at. */
  #closing = false
  #lingerUntilBytes = 0

  constructor(socket: Socket, host: ConnectionHost) {
    this.#socket = socket
    this.#host = host
    // Node resumes a socket whenever somebody reads a body; while too much waits it stays paused.
    socket.on('resume', () => {
      if (this.#waiting.length >= WAITING_MAX) socket.pause()
    })
  }

  get idle(): boolean {
    return this.#settled && this.#waiting.length === 0
  }

  enter(exchange: Exchange): void {
    if (this.#closing || this.#failure) return
    if (this.#settled) {
      this.#start(exchange)
      return
    }
    if (this.#waiting.push(exchange) >= WAITING_MAX) this.#socket.pause()
    this.#proceed()
  }

  /** What Node could not parse, or waited for in vain. Everything before it is answered first. */
  fail(problem: Problem): void {
    if (this.#closing) {
      this.#linger()
      return
    }
    if (this.#failure) return
    this.#failure = problem
    const newest = this.#waiting.at(-1) ?? this.#current
    if (newest && !newest.req.complete) {
      // It is this request that has no end.
      newest.cancelled = true
      if (this.#waiting.length > 0) this.#waiting.pop()
      else if (this.#answered) this.#end('')
      else this.#closeWith(problemAnswer(problem), newest)
    }
    if (!this.#closing) this.#proceed()
  }

  get #settled(): boolean {
    return this.#current === undefined || (this.#answered && this.#current.res.writableFinished)
  }

  /** Goes on once the current answer is on its way, so that answers to a client that does not read never pile up. */
  #proceed(): void {
    if (this.#settled) this.#next()
    else if (this.#answered && !this.#armed) {
      this.#armed = true
      this.#current?.res.once('finish', () => {
        this.#armed = false
        this.#next()
      })
    }
  }

  #next(): void {
    if (this.#closing) return
    const exchange = this.#waiting.shift()
    if (exchange) {
      this.#start(exchange)
      if (this.#waiting.length < WAITING_MAX) this.#socket.resume()
    } else if (this.#failure) {
      this.#closeWith(problemAnswer(this.#failure), undefined)
    }
  }

  #start(exchange: Exchange): void {
    this.#current = exchange
    this.#answered = false
    try {
      const answer = this.#host.serve(exchange)
      if (!(answer instanceof Promise)) {
        this.#answer(exchange, answer)
        return
      }
      answer.then(
        (value) => this.#answer(exchange, value),
        (error: unknown) => this.#explain(exchange, error),
      )
    } catch (error) {
      this.#explain(exchange, error)
    }
  }

  #explain(exchange: Exchange, error: unknown): void {
    const answer = this.#host.explain(error, exchange)
    if (answer) this.#answer(exchange, answer)
    else exchange.cancelled = true
  }

  #answer(exchange: Exchange, answer: Answer): void {
    if (exchange.cancelled || this.#socket.destroyed) return
    if (!exchange.hasUnreadBody) {
      this.#send(exchange, answer)
      return
    }
    const { contentLengthBytes } = exchange.head
    const tooLong = (contentLengthBytes ?? 0) > DISCARD_MAX_BYTES
    // A client that still waits for "100 Continue" may send the body or not: what follows could be read either way.
    if (tooLong || exchange.expectsContinue || answer.status === 413) this.#closeWith(answer, exchange)
    // Node itself discards what is left of a body once its answer is sent.
    else if (contentLengthBytes !== undefined) this.#send(exchange, answer)
    else {
      void discardBody(exchange, DISCARD_MAX_BYTES).then((ended) => {
        if (exchange.cancelled || this.#closing) return
        if (ended) this.#send(exchange, answer)
        else this.#closeWith(answer, exchange)
      })
    }
  }

  #send(exchange: Exchange, answer: Answer): void {
    const close = this.#host.draining && this.#waiting.length === 0
    if (close) this.#closing = true
    send(exchange, answer, close, () => {
      this.#answered = true
      this.#host.answered(exchange, answer.status)
      if (this.#waiting.length > 0 || this.#failure) this.#proceed()
    })
  }

  /** The last answer on this connection, past Node's own: that would reset a client which is still sending. */
  #closeWith(answer: Answer, exchange: Exchange | undefined): void {
    if (exchange) {
      exchange.cancelled = true
      this.#host.answered(exchange, answer.status)
    }
    // A list cannot be sent this way; nobody sends 64 KiB along with a GET for an answer that matters.
    const { body } = answer
    const text = rawAnswer(answer, exchange?.requestId ?? randomUUID(), exchange?.method !== 'HEAD')
    this.#end(body === undefined || Buffer.isBuffer(body) ? text : '')
    exchange?.req.on('data', () => this.#linger()).resume()
  }

  /** Half-closes, and lets go of the socket only once the client had time to read: data that nobody reads turns a close into a reset. */
  #end(text: string): void {
    const known = this.#current?.owner !== undefined
    this.#closing = true
    this.#waiting.length = 0
    this.#lingerUntilBytes = this.#socket.bytesRead + (known ? LINGER_MAX_BYTES : DISCARD_MAX_BYTES)
    this.#socket.end(text)
    this.#socket.once('end', () => this.#socket.destroy())
    const timer = setTimeout(() => this.#socket.destroy(), LINGER_MS)
    this.#socket.once('close', () => clearTimeout(timer))
  }

  #linger(): void {
    if (this.#closing && this.#lingerUntilBytes > 0 && this.#socket.bytesRead > this.#lingerUntilBytes) this.#socket.pause()
  }
}
