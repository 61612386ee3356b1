import type { Socket } from 'node:net'
import { Problem } from '../errors.ts'
import { discardBody } from './body.ts'
import { type Exchange, recordOf, type RequestRecord } from './exchange.ts'
import { abandon, type Answer, problemAnswer, rawAnswer, send } from './respond.ts'
import type { TurnEnd } from './turn.ts'

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
  explain(error: unknown, request: RequestRecord): Answer | undefined
  /** Called once for every request that is answered, those included that Node's parser refuses. */
  answered(request: RequestRecord, status: number): void
  readonly draining: boolean
}

/**
 * One client connection: its requests are served one at a time, in order, so that a request sees what the one before
 * it did (RFC 9112 §9.3.2; Node would run them side by side), and what comes first is answered first.
 */
export class Connection {
  readonly #socket: Socket
  readonly #host: ConnectionHost
  readonly #turnEnd: TurnEnd
  /** How long a reader may stand still; undefined where somebody else's server holds the socket, and may answer requests on it too. */
  readonly #stalledMs: number | undefined
  readonly #waiting: Exchange[] = []
  #current: Exchange | undefined
  /** Whether `#current` has been answered; its bytes may still be on their way. */
  #answered = true
  /** Whether the end of the current answer is waited for. */
  #armed = false
  /** What to say behind the last answer: the parser has given up on what follows. */
  #failure: { readonly problem: Problem; readonly request: RequestRecord } | undefined
  /** Set by a request that is the last: whatever comes behind it is not looked at. */
  #last = false
  /** Set with the last answer. */
  #closing = false
  /** Nothing is read beyond this: behind the last answer it only delays a reset. */
  #readUntilBytes = Infinity
  /** What had come in when a stop last looked. */
  #seenBytes = 0

  constructor(socket: Socket, host: ConnectionHost, turnEnd: TurnEnd, stalledMs: number | undefined) {
    this.#socket = socket
    this.#host = host
    this.#turnEnd = turnEnd
    this.#stalledMs = stalledMs
    // Node would close at once behind the last answer: with bytes left unread that is a reset, which takes answers back that are still on their way (RFC 9112 §9.6).
    if (stalledMs !== undefined) socket.destroySoon = () => this.#end('')
    // Behind an Upgrade Node's parser is silent about what is wrong with chunks: once the client has ended its side, nothing else would end the request before its time.
    if (stalledMs !== undefined) socket.on('end', () => this.#endIncomplete())
    // Node resumes a socket whenever somebody reads a body; while too much has come in it stays paused.
    socket.on('resume', () => {
      if (this.#waiting.length >= WAITING_MAX || socket.bytesRead > this.#readUntilBytes) socket.pause()
    })
  }

  /** How many requests are being answered, or wait for it. */
  get active(): number {
    return this.#waiting.length + (this.#answered || this.#current?.cancelled ? 0 : 1)
  }

  enter(exchange: Exchange): void {
    if (this.#closing || this.#failure || this.#last) return
    // In a stop too: a client that always has a request waiting would never be told to leave.
    this.#last = exchange.isLast || this.#host.draining
    if (this.#settled) {
      this.#start(exchange)
      return
    }
    if (this.#waiting.push(exchange) >= WAITING_MAX) this.#socket.pause()
    if (this.#waiting.length > WAITING_LIMIT) this.#abandon()
    else this.#proceed()
  }

  /** What Node could not parse, or waited for in vain. Everything before it is answered first. */
  fail(problem: Problem, request: RequestRecord = recordOf()): void {
    this.#linger()
    if (this.#closing || this.#failure) return
    const newest = this.#waiting.at(-1) ?? this.#current
    if (!newest || newest.req.complete) {
      if (this.#last) return
      this.#failure = { problem, request }
      this.#proceed()
      return
    }
    // It is this request that has no end.
    newest.cancelled = true
    if (this.#waiting.length > 0) {
      this.#waiting.pop()
      this.#last = false
      this.#failure = { problem, request: newest }
      this.#proceed()
    } else if (newest.res.headersSent) {
      // Its answer is on its way, and nothing may be said behind it.
      this.#closing = true
      if (newest.res.writableFinished) this.#end('')
      else newest.res.once('finish', () => this.#end(''))
    } else {
      this.#closeWith(this.#refusal(problem, newest), newest, newest)
    }
  }

  #endIncomplete(): void {
    const newest = this.#waiting.at(-1) ?? this.#current
    if (newest && !newest.req.complete && !newest.cancelled) this.fail(new Problem('malformedRequest'))
  }

  /** Node has waited too long for the rest of a request. While another one is being answered that is not the client's fault: its bytes may not even be read. */
  expire(): void {
    if (this.#settled || !this.#current?.req.complete) this.fail(new Problem('requestTimeout'))
  }

  /** Node lets go of a socket that CONNECT came in on: what it did for the answers under way is done here then. */
  adopt(): void {
    this.#socket.on('error', () => {})
    this.#socket.on('drain', () => this.#current?.res.emit('drain'))
    this.#readUntilBytes = this.#socket.bytesRead + DISCARD_MAX_BYTES
    this.#socket.on('data', () => this.#linger())
    this.#socket.setTimeout(this.#stalledMs ?? 0, () => this.#socket.destroy())
  }

  /**
   * Lets go of the client where nothing is under way, and nothing has come in since this was last asked. True: nothing is
   * under way on a socket that is somebody else's to close.
   */
  closeIdle(): boolean {
    const { bytesRead } = this.#socket
    const idle = this.#settled && this.#waiting.length === 0
    if (idle && !this.#foreign && bytesRead === this.#seenBytes) this.#socket.destroy()
    this.#seenBytes = bytesRead
    return idle && this.#foreign
  }

  #abandon(): void {
    this.#closing = true
    this.#waiting.length = 0
    this.#socket.destroy()
  }

  get #foreign(): boolean {
    return this.#stalledMs === undefined
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
      const { problem, request } = this.#failure
      this.#closeWith(this.#refusal(problem, request), undefined, request)
    }
  }

  #start(exchange: Exchange): void {
    this.#current = exchange
    this.#answered = false
    try {
      const answer = this.#host.serve(exchange)
      if (answer instanceof Promise) {
        answer.then(
          (value) => this.#answer(exchange, value),
          (error: unknown) => this.#explain(exchange, error),
        )
      } else if (this.#foreign || this.#waiting.length > 0) {
        // Somebody else's server may end its side behind a client that has ended its own; and what waits must not pile up, a turn for each.
        this.#answer(exchange, answer)
      } else {
        this.#turnEnd.add(() => this.#answerLate(exchange, answer))
      }
    } catch (error) {
      this.#explain(exchange, error)
    }
  }

  #answerLate(exchange: Exchange, answer: Answer): void {
    try {
      this.#answer(exchange, answer)
    } catch (error) {
      // Thrown on, it would keep others' answers.
      this.#explain(exchange, error)
    }
  }

  #explain(exchange: Exchange, error: unknown): void {
    const answer = this.#host.explain(error, exchange)
    if (answer) this.#answer(exchange, answer)
    else exchange.cancelled = true
  }

  #refusal(problem: Problem, request: RequestRecord): Answer {
    return this.#host.explain(problem, request) ?? problemAnswer(problem)
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
    if (tooLong || exchange.expectsContinue || answer.status === 413) this.#closeWith(answer, exchange, exchange)
    // Node itself discards what is left of a body once its answer is sent.
    else if (contentLengthBytes !== undefined) this.#send(exchange, answer)
    else {
      void discardBody(exchange, DISCARD_MAX_BYTES).then((ended) => {
        if (exchange.cancelled || this.#socket.destroyed) abandon(answer)
        else if (ended) this.#send(exchange, answer)
        else this.#closeWith(answer, exchange, exchange)
      })
    }
  }

  #send(exchange: Exchange, answer: Answer): void {
    const close = this.#waiting.length === 0 && (this.#last || this.#host.draining)
    if (close) this.#closing = true
    send(exchange, answer, close, () => {
      this.#answered = true
      // Node ends the connection behind an answer that stands in for "100 Continue", and to HTTP/1.0 behind one without a length.
      if (!exchange.res.shouldKeepAlive || (exchange.req.httpVersion === '1.0' && !Buffer.isBuffer(answer.body))) this.#closing = true
      this.#host.answered(exchange, answer.status)
      if (this.#waiting.length > 0 || this.#failure) this.#proceed()
    })
    // What was taken at once cannot stall: a timer for every request, as Node would set it, is most often for nothing. Node clears it with the next one.
    if (this.#stalledMs !== undefined && (!exchange.res.writableEnded || this.#socket.writableLength > 0)) this.#socket.setTimeout(this.#stalledMs)
  }

  /** The last answer on this connection, past Node's own: on somebody else's server that would reset a client which is still sending. */
  #closeWith(answer: Answer, exchange: Exchange | undefined, request: RequestRecord): void {
    const isList = answer.body !== undefined && !Buffer.isBuffer(answer.body)
    if (exchange && (isList || (this.#foreign && exchange.res.socket === null))) {
      // A list needs Node's own, and so does what must not overtake an answer of somebody else's; what a known owner sent along is read meanwhile.
      this.#last = true
      exchange.req.resume()
      this.#send(exchange, answer)
      return
    }
    if (exchange) exchange.cancelled = true
    this.#host.answered(request, answer.status)
    this.#end(rawAnswer(answer, request.requestId, request.method !== 'HEAD'))
    exchange?.req.on('data', () => this.#linger()).resume()
  }

  /** Half-closes, and lets go of the socket only once the client had time to read: data that nobody reads turns a close into a reset. */
  #end(text: string): void {
    if (!this.#socket.writable) return
    const known = this.#current?.owner !== undefined
    this.#readUntilBytes = this.#socket.bytesRead + (known ? LINGER_MAX_BYTES : DISCARD_MAX_BYTES)
    this.#closing = true
    this.#waiting.length = 0
    // Once the client has ended its side too, the socket destroys itself.
    this.#socket.end(text)
    this.#socket.resume()
    const timer = setTimeout(() => this.#socket.destroy(), LINGER_MS)
    this.#socket.once('close', () => clearTimeout(timer))
  }

  #linger(): void {
    if (this.#socket.bytesRead > this.#readUntilBytes) this.#socket.pause()
  }
}
