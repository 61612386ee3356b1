import type { Socket } from 'node:net'
import { HttpError } from '../errors.ts'
import { discardBody } from './body.ts'
import type { Hold } from './budget.ts'
import { Clock, type HttpTimeouts, stateOf } from './clock.ts'
import { type Exchange, recordOf, type RequestRecord } from './exchange.ts'
import { cutOff, Linger } from './linger.ts'
import { abandon, type HttpResponse, errorResponse, rawResponse, send } from './response.ts'
import type { TickEnd } from './tick.ts'

/** Requests of one connection that may wait behind another before the socket is paused. */
const WAITING_MAX = 16
/** `pause()` acts after the current 64 KiB read, which holds at most 256 requests with a token. */
const WAITING_LIMIT = 256
/** A body that nothing reads is discarded up to here; with more of it the connection is closed. */
const DISCARD_MAX_BYTES = 64 * 1024

export interface ConnectionHost {
  /** Answers a request; a rejection is the caller's to turn into an answer. */
  serve(exchange: Exchange): HttpResponse | Promise<HttpResponse>
  /** What to answer for a failure; undefined where there is nobody to answer. */
  explain(error: unknown, request: RequestRecord): HttpResponse | undefined
  /** Called once for every request that is answered, those included that Node's parser refuses. */
  answered(request: RequestRecord, status: number): void
  /** Called when a server of the service's own has accepted a connection. */
  accepted(): void
  /** Counts an answer that waits in memory until its client takes it. */
  holdResponse(owner: string, bytes: number): Hold
  readonly draining: boolean
}

/**
 * What may follow the requests that are known: more of them; nothing; only the answer to a failure
 * of the parser; or nothing, and the last answer is made.
 */
type Intake = 'open' | 'last' | 'failed' | 'closed'

/**
 * One client connection: its requests are served one at a time, in order, so that a request sees
 * what the one before it did (RFC 9112 §9.3.2; Node would run them side by side), and what comes
 * first is answered first.
 */
export class Connection {
  readonly #socket: Socket
  readonly #host: ConnectionHost
  readonly #tickEnd: TickEnd
  readonly #clock: Clock
  readonly #linger: Linger
  /** In another application's server, which owns the socket and may answer requests on it too. */
  readonly #embedded: boolean
  readonly #waiting: Exchange[] = []
  #current: Exchange | undefined
  #intake: Intake = 'open'
  /** What to say after the last answer: the parser has given up on what follows. */
  #failure: { readonly problem: HttpError; readonly request: RequestRecord } | undefined
  /** Node reports a late head once: it did so while another request was answered. */
  #headIsLate = false
  /** What had come in when a stop last looked. */
  #seenBytes = -1
  /** The current answer, while it waits in memory. */
  #held: Hold | undefined

  constructor(
    socket: Socket,
    host: ConnectionHost,
    tickEnd: TickEnd,
    timeouts: HttpTimeouts,
    embedded: boolean,
  ) {
    this.#socket = socket
    this.#host = host
    this.#tickEnd = tickEnd
    this.#clock = new Clock(socket, timeouts, embedded)
    this.#linger = new Linger(socket)
    this.#embedded = embedded
    if (!embedded) {
      // Node would close at once after the last answer.
      socket.destroySoon = () => this.#end('')
      // After an Upgrade Node's parser is silent about broken chunks: when the client has ended its
      // side, nothing else would end the request before its time.
      socket.on('end', () => this.#endIncomplete())
    }
    // Node resumes a socket whenever a body is read; while too much has come in it stays paused.
    socket.on('resume', () => {
      if (this.#isFull || this.#linger.isFull) socket.pause()
    })
  }

  /**
   * True while no more may be read. The body of a request that waits is kept in its chunks, at 250
   * bytes for each.
   */
  get #isFull(): boolean {
    return (
      this.#waiting.length >= WAITING_MAX ||
      this.#waiting.some(({ hasUnreadBody }) => hasUnreadBody)
    )
  }

  /** How many requests are being answered, or wait for it. */
  get active(): number {
    const phase = this.#current?.phase
    return this.#waiting.length + (phase === 'serving' || phase === 'sending' ? 1 : 0)
  }

  enter(exchange: Exchange): void {
    if (this.#intake !== 'open') return
    this.#headIsLate = false
    // In a stop too: a client that always has a request waiting would never be told to leave.
    if (exchange.isLast || this.#host.draining) this.#intake = 'last'
    // Until its body is read it must not flow past: the application may listen too.
    if (this.#embedded && exchange.hasUnreadBody) exchange.req.pause()
    if (this.#embedded ? exchange.res.socket !== null : this.#settled) {
      this.#start(exchange)
      return
    }
    this.#waiting.push(exchange)
    if (this.#isFull) this.#socket.pause()
    if (this.#waiting.length > WAITING_LIMIT) this.#abandon()
    else if (this.#embedded) this.#startInTurn(exchange)
    else this.#proceed()
  }

  /** What Node could not parse, or waited for too long. Everything before it is answered first. */
  fail(problem: HttpError, request: RequestRecord = recordOf()): void {
    this.#linger.pauseIfFull()
    if (this.#intake === 'closed' || this.#intake === 'failed') return
    const newest = this.#waiting.at(-1) ?? this.#current
    if (!newest || newest.req.complete) {
      if (this.#intake === 'last') return
      this.#failAfter(problem, request)
    } else if (this.#waiting.length > 0) {
      // It is this request that has no end.
      this.#waiting.pop()
      this.#failAfter(problem, newest)
    } else if (newest.res.headersSent) {
      // Its answer is on its way, and nothing may be said after it.
      this.#intake = 'closed'
      if (newest.res.writableFinished) this.#end('')
      else newest.res.once('finish', () => this.#end(''))
    } else {
      this.#closeWith(this.#refusal(problem, newest), newest, newest)
    }
  }

  #failAfter(problem: HttpError, request: RequestRecord): void {
    this.#intake = 'failed'
    this.#failure = { problem, request }
    this.#proceed()
  }

  #endIncomplete(): void {
    const newest = this.#waiting.at(-1) ?? this.#current
    if (!newest || newest.req.complete || newest.phase === 'cancelled') return
    this.fail(new HttpError('malformedRequest'))
  }

  /** Node has waited too long for a head, which may not be read while another is answered. */
  expire(): void {
    if (this.#settled) this.fail(new HttpError('requestTimeout'))
    else this.#headIsLate = true
  }

  /** Node releases the socket of a CONNECT: what it did for the answers under way is done here. */
  adopt(): void {
    this.#socket.on('error', () => {})
    this.#socket.on('drain', () => this.#current?.res.emit('drain'))
    this.#linger.limit(false)
    this.#socket.on('data', () => this.#linger.pauseIfFull())
  }

  /**
   * Closes the connection if nothing is under way, and nothing has come in since the last call.
   * Returns true if the socket is idle and another application's to close.
   */
  closeIdle(): boolean {
    const { bytesRead } = this.#socket
    const settled = this.#embedded ? stateOf(this.#current) === 'idle' : this.#settled
    const idle = settled && this.#waiting.length === 0
    if (idle && !this.#embedded && bytesRead === this.#seenBytes) this.#socket.destroy()
    this.#seenBytes = bytesRead
    return idle && this.#embedded
  }

  /** The socket is closed: what its answer held is free. */
  gone(): void {
    this.#held?.(0)
    this.#held = undefined
  }

  /** How long the client has been still, `unseenMs` of it since `check`; undefined while served. */
  quietMs(unseenMs: number): number | undefined {
    return this.#clock.quietMs(this.#current, unseenMs)
  }

  /** Ends what has lasted too long. To be called every second or so. */
  check(passedMs: number): void {
    if (!this.#clock.isOver(this.#current, this.#headIsLate, passedMs)) return
    const state = stateOf(this.#current)
    if (state === 'receiving') this.#endCurrent(new HttpError('requestTimeout'))
    else if (state === 'serving') this.#endCurrent(unavailable())
    else if (state === 'discarding') this.#end('')
    else if (state === 'idle' && this.#headIsLate) this.#endLate()
    else cutOff(this.#socket)
  }

  #endCurrent(problem: HttpError): void {
    const current = this.#current
    if (current) this.#closeWith(this.#refusal(problem, current), current, current)
  }

  #endLate(): void {
    this.#headIsLate = false
    this.fail(new HttpError('requestTimeout'))
  }

  #abandon(): void {
    this.#intake = 'closed'
    this.#waiting.length = 0
    this.#socket.destroy()
  }

  get #settled(): boolean {
    if (!this.#current) return true
    const { phase, res } = this.#current
    return (phase === 'answered' || phase === 'flushing') && res.writableFinished
  }

  /**
   * Goes on once the current answer is on its way, so that answers to a client that does not read
   * never pile up.
   */
  #proceed(): void {
    if (this.#settled) this.#next()
    else if (this.#current?.phase === 'answered') {
      this.#current.phase = 'flushing'
      // Before Node's own listener, which closes the socket where the client has half-closed it.
      this.#current.res.prependOnceListener('finish', () => this.#next())
    }
  }

  /** In another application's server Node keeps the order: by it a response gets the socket. */
  #startInTurn(exchange: Exchange): void {
    exchange.res.once('socket', () => {
      process.nextTick(() => {
        const at = this.#waiting.indexOf(exchange)
        if (at < 0) return
        this.#waiting.splice(at, 1)
        this.#start(exchange)
        if (!this.#isFull) this.#socket.resume()
      })
    })
  }

  #next(): void {
    // Node closes after a list to HTTP/1.0, which knows no other end of it.
    if (this.#intake === 'closed' || !this.#socket.writable) return
    const exchange = this.#waiting.shift()
    if (exchange) {
      this.#start(exchange)
      if (!this.#isFull) this.#socket.resume()
    } else if (this.#failure) {
      const { problem, request } = this.#failure
      this.#closeWith(this.#refusal(problem, request), undefined, request)
    }
  }

  #start(exchange: Exchange): void {
    this.#current = exchange
    if (this.#embedded && this.#cancelledElsewhere(exchange)) return
    exchange.phase = 'serving'
    try {
      const answer = this.#host.serve(exchange)
      if (answer instanceof Promise) {
        answer.then(
          (value) => this.#answer(exchange, value),
          (error: unknown) => this.#explain(exchange, error),
        )
      } else if (this.#embedded || this.#waiting.length > 0) {
        // Another application's server may close with a client that has ended its side. Requests
        // that wait must not take a tick each.
        this.#answer(exchange, answer)
      } else {
        this.#tickEnd.add(() => this.#answer(exchange, answer))
      }
    } catch (error) {
      this.#explain(exchange, error)
    }
  }

  #explain(exchange: Exchange, error: unknown): void {
    const answer = this.#host.explain(error, exchange)
    if (answer) this.#answer(exchange, answer)
    else exchange.phase = 'cancelled'
  }

  #refusal(problem: HttpError, request: RequestRecord): HttpResponse {
    return this.#host.explain(problem, request) ?? errorResponse(problem)
  }

  /** True if the client has left, or the application that embeds the service has answered. */
  #cancelledElsewhere(exchange: Exchange): boolean {
    const { res } = exchange
    if (this.#socket.destroyed || res.headersSent || res.destroyed) exchange.phase = 'cancelled'
    return exchange.phase === 'cancelled'
  }

  #answer(exchange: Exchange, answer: HttpResponse): void {
    const { contentLengthBytes } = exchange.head
    const tooLong = (contentLengthBytes ?? 0) > DISCARD_MAX_BYTES
    if (!exchange.hasUnreadBody || this.#cancelledElsewhere(exchange)) {
      this.#deliver(exchange, answer, false)
    } else if (tooLong || exchange.awaitsContinue || answer.status === 413) {
      // A client that waits for "100 Continue" may send the body or not: what follows is unclear.
      this.#deliver(exchange, answer, true)
    } else if (contentLengthBytes !== undefined) {
      // Node itself discards what is left of a body once its answer is sent.
      this.#deliver(exchange, answer, false)
    } else {
      void discardBody(exchange, DISCARD_MAX_BYTES).then((ended) => {
        this.#deliver(exchange, answer, !ended)
      })
    }
  }

  /** Never throws: it would keep the answers of others, or reach an application's server. */
  #deliver(exchange: Exchange, answer: HttpResponse, last: boolean): void {
    if (this.#embedded) exchange.req.resume()
    if (this.#cancelledElsewhere(exchange)) {
      abandon(answer)
      return
    }
    try {
      this.#sendAs(exchange, answer, last)
    } catch (error) {
      abandon(answer)
      const failure = exchange.res.headersSent ? undefined : this.#host.explain(error, exchange)
      try {
        if (failure) this.#sendAs(exchange, failure, last)
        else this.#socket.destroy()
      } catch {
        this.#socket.destroy()
      }
    }
  }

  #sendAs(exchange: Exchange, answer: HttpResponse, last: boolean): void {
    if (last) this.#closeWith(answer, exchange, exchange)
    else this.#send(exchange, answer)
  }

  #send(exchange: Exchange, answer: HttpResponse): void {
    const { req, res } = exchange
    const last = this.#intake === 'last' || this.#intake === 'closed' || this.#host.draining
    const close = last && this.#waiting.length === 0
    if (close) this.#intake = 'closed'
    exchange.phase = 'sending'
    send(exchange, answer, close, () => {
      exchange.phase = 'answered'
      // Node closes after an answer in place of "100 Continue", and after a list to HTTP/1.0.
      const hasLength = req.httpVersion !== '1.0' || Buffer.isBuffer(answer.body)
      if (!res.shouldKeepAlive || !hasLength) this.#intake = 'closed'
      this.#host.answered(exchange, answer.status)
      if (this.#waiting.length > 0 || this.#failure) this.#proceed()
    })
    if (!res.writableFinished) this.#hold(exchange, answer)
  }

  /** Most answers are taken at once, and never come here. */
  #hold({ owner, method, res }: Exchange, { body }: HttpResponse): void {
    if (owner === undefined || method === 'HEAD' || !Buffer.isBuffer(body)) return
    const held = this.#host.holdResponse(owner, body.length)
    this.#held = held
    res.once('finish', () => {
      held(0)
      // The next answer may be there already.
      if (this.#held === held) this.#held = undefined
    })
  }

  /** The last answer, past Node's own, which would reset a client that is still sending. */
  #closeWith(answer: HttpResponse, exchange: Exchange | undefined, request: RequestRecord): void {
    if (exchange && answer.body !== undefined && !Buffer.isBuffer(answer.body)) {
      // A list needs Node's own; what a known owner sent along is read meanwhile.
      this.#intake = 'last'
      exchange.req.resume()
      this.#send(exchange, answer)
      return
    }
    if (exchange) exchange.phase = 'cancelled'
    this.#host.answered(request, answer.status)
    this.#end(rawResponse(answer, request.requestId, request.method !== 'HEAD'))
    exchange?.req.on('data', () => this.#linger.pauseIfFull()).resume()
  }

  #end(text: string): void {
    if (!this.#socket.writable) return
    this.#intake = 'closed'
    this.#waiting.length = 0
    this.#linger.end(text, this.#current?.owner !== undefined)
  }
}

function unavailable(): HttpError {
  return new HttpError('storageUnavailable', ['Retry-After', '1'])
}
