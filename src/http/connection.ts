import { randomUUID } from 'node:crypto'
import type { Socket } from 'node:net'
import { Problem } from '../errors.ts'
import { discardBody } from './body.ts'
import type { Exchange } from './exchange.ts'
import { abandon, type Answer, problemAnswer, rawAnswer, send } from './respond.ts'

/** Requests of one connection that may wait behind another before the socket is paused. */
const WAITING_MAX = 16
/** A pause takes hold only behind what was read at once, 64 KiB: no more requests than this with a token fit there, and whoever sends more is let go of. */
const WAITING_LIMIT = 256
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
  #failure: { readonly problem: Problem; readonly requestId: string } | undefined
  /** Set by a request that is the last: whatever comes behind it is not looked at. */
  #last = false
  /** Set with the last answer. */
  #closing = false
  /** Nothing is read beyond this: behind the last answer it only delays a reset. */
  #readUntilBytes = Infinity
  /** What had come in when a stop last looked. */
  #seenBytes = 0

  constructor(socket: Socket, host: ConnectionHost) {
    this.#socket = socket
    this.#host = host
    // Node resumes a socket whenever somebody reads a body; while too much has come in it stays paused.
    socket.on('resume', () => {
      if (this.#waiting.length >= WAITING_MAX || socket.bytesRead > this.#readUntilBytes) socket.pause()
    })
  }

  enter(exchange: Exchange): void {
    if (this.#closing || this.#failure || this.#last) return
    this.#last = exchange.isLast
    if (this.#settled) {
      this.#start(exchange)
      return
    }
    if (this.#waiting.push(exchange) >= WAITING_MAX) this.#socket.pause()
    if (this.#waiting.length > WAITING_LIMIT) this.#abandon()
    else this.#proceed()
  }

  /** What Node could not parse, or waited for in vain. Everything before it is answered first. */
  fail(problem: Problem, requestId: string = randomUUID()): void {
    this.#linger()
    if (this.#closing || this.#failure) return
    const newest = this.#waiting.at(-1) ?? this.#current
    if (!newest || newest.req.complete) {
      if (this.#last) return
      this.#failure = { problem, requestId }
      this.#proceed()
      return
    }
    // It is this request that has no end.
    newest.cancelled = true
    if (this.#waiting.length > 0) {
      this.#waiting.pop()
      this.#failure = { problem, requestId: newest.requestId }
      this.#proceed()
    } else if (newest.res.headersSent) {
      // Its answer is on its way, and nothing may be said behind it.
      this.#closing = true
      if (newest.res.writableFinished) this.#end('')
      else newest.res.once('finish', () => this.#end(''))
    } else {
      this.#closeWith(problemAnswer(problem), newest)
    }
  }

  /** Node has waited too long for the rest of a request. While another one is being answered that is not the client's fault: its bytes may not even be read. */
  expire(): void {
    if (this.#settled || !this.#current?.req.complete) this.fail(new Problem('requestTimeout'))
  }

  /** Nothing has moved for too long: the client does not read, or a body does not come. */
  stall(): void {
    const current = this.#current
    if (current && !current.req.complete && !current.res.headersSent && this.#waiting.length === 0) this.fail(new Problem('requestTimeout'))
    else this.#socket.destroy()
  }

  /** Node lets go of a socket that CONNECT came in on: what it did for the answers under way is done here then. */
  adopt(stalledMs: number): void {
    this.#socket.on('error', () => {})
    this.#socket.on('drain', () => this.#current?.res.emit('drain'))
    this.#readUntilBytes = this.#socket.bytesRead + DISCARD_MAX_BYTES
    this.#socket.on('data', () => this.#linger())
    this.#socket.setTimeout(stalledMs, () => this.#socket.destroy())
  }

  /** Lets go of the client where nothing is under way, and nothing has come in since this was last asked. */
  closeIdle(): void {
    const { bytesRead } = this.#socket
    if (this.#settled && this.#waiting.length === 0 && bytesRead === this.#seenBytes) this.#socket.destroy()
    this.#seenBytes = bytesRead
  }

  #abandon(): void {
    this.#closing = true
    this.#waiting.length = 0
    this.#socket.destroy()
  }

  get #settled(): boolean {
    return this.#current === undefined || (this.#answered && this.#current.res.writableFinished)
  }

  /** Goes on once the current answer is on its way, so that answers to a client that does not read never pile up. */
  #proceed(): void {
    if (this.#settled) this.#next()
    else if (this.#answered && !this.#armed) {
      this.#armed = true
      // In front of Node's own listener, which closes the socket where the client has half-closed it.
      this.#current?.res.prependOnceListener('finish', () => {
        this.#armed = false
        this.#next()
      })
    }
  }

  #next(): void {
    // Node closes behind a list to HTTP/1.0, which knows no other end of it.
    if (this.#closing || !this.#socket.writable) return
    const exchange = this.#waiting.shift()
    if (exchange) {
      this.#start(exchange)
      if (this.#waiting.length < WAITING_MAX) this.#socket.resume()
    } else if (this.#failure) {
      this.#closeWith(problemAnswer(this.#failure.problem), undefined)
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
    if (exchange.cancelled || this.#socket.destroyed) {
      abandon(answer)
      return
    }
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
        if (exchange.cancelled || this.#socket.destroyed) abandon(answer)
        else if (ended) this.#send(exchange, answer)
        else this.#closeWith(answer, exchange)
      })
    }
  }

  #send(exchange: Exchange, answer: Answer): void {
    const close = this.#waiting.length === 0 && (this.#last || this.#host.draining)
    if (close) this.#closing = true
    send(exchange, answer, close, () => {
      this.#answered = true
      this.#host.answered(exchange, answer.status)
      if (this.#waiting.length > 0 || this.#failure) this.#proceed()
    })
  }

  /** The last answer on this connection, past Node's own: that would reset a client which is still sending. */
  #closeWith(answer: Answer, exchange: Exchange | undefined): void {
    if (exchange && answer.body !== undefined && !Buffer.isBuffer(answer.body)) {
      // A list needs Node's own; what its owner, who is known, sent along is read meanwhile.
      this.#last = true
      exchange.req.resume()
      this.#send(exchange, answer)
      return
    }
    if (exchange) {
      exchange.cancelled = true
      this.#host.answered(exchange, answer.status)
    }
    this.#end(rawAnswer(answer, exchange?.requestId ?? this.#failure?.requestId ?? randomUUID(), exchange?.method !== 'HEAD'))
    exchange?.req.on('data', () => this.#linger()).resume()
  }

  /** Half-closes, and lets go of the socket only once the client had time to read: data that nobody reads turns a close into a reset. */
  #end(text: string): void {
    const known = this.#current?.owner !== undefined
    this.#readUntilBytes = this.#socket.bytesRead + (known ? LINGER_MAX_BYTES : DISCARD_MAX_BYTES)
    this.#closing = true
    this.#waiting.length = 0
    this.#socket.end(text)
    this.#socket.once('end', () => this.#socket.destroy())
    this.#socket.resume()
    const timer = setTimeout(() => this.#socket.destroy(), LINGER_MS)
    this.#socket.once('close', () => clearTimeout(timer))
  }

  #linger(): void {
    if (this.#socket.bytesRead > this.#readUntilBytes) this.#socket.pause()
  }
}
