/* One client connection: its requests one after the other, and how it ends. */

import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { HttpError } from '../errors.ts'
import { type Exchange, faultOf, RequestRecord, type Responder } from './exchange.ts'
import { type HttpResponse, lastHeadersOf } from './response.ts'
import { cutOff, send } from './send.ts'
import { atTickEnd } from './tick.ts'

/** At most this many requests wait for the one that is served; one more resets the connection. */
const WAITING_MAX = 8
/**
 * Those after the first of them have at most this many headers together: in memory, tiny headers
 * take thirty times their bytes. The first one may have as many as any request.
 */
const WAITING_HEADERS_MAX = 100
/** How long a client may still send, and read, after the last response. */
const LINGER_MS = 1000

/**
 * What follows the requests that wait:
 * - open: more requests.
 * - closing: nothing.
 * - failing: the response to what Node's parser could not read, or waited for too long; and then
 *   nothing.
 * - ended: nothing, and no request waits: the last response is sent, or being sent.
 */
type State = 'open' | 'closing' | 'failing' | 'ended'

/**
 * Node would serve the requests of a connection side by side. Here they are served one at a time,
 * so that each sees what the one before it did (RFC 9112 §9.3.2).
 */
export class Connection {
  readonly #socket: Socket
  readonly #responder: Responder
  /** The request that is answered, or whose body still comes after its response. */
  #current: Exchange | undefined
  readonly #waiting: Exchange[] = []
  /** Requests that are not served. Node keeps them until the connection ends. */
  readonly #unserved: Exchange[] = []
  #state: State = 'open'
  /** While it is failing: sends the response that follows. */
  #sendFailure = (): void => {}
  /** True once a body is longer than what is dropped of it: no more is read. */
  #isStopped = false

  /**
   * Node resumes the socket after each request, and emits 'resume' in the next tick. A pause that
   * must last is made once more then. There are three cases:
   * - The socket is not paused: it is paused.
   * - It was paused between Node's resume and its event. Such a pause does not stop Node from
   *   reading: the socket is resumed, and paused at the next 'resume'.
   * - Node's own listener for 'resume' has paused it, because its client takes no response: that
   *   pause holds.
   */
  constructor(socket: Socket, responder: Responder) {
    this.#socket = socket
    this.#responder = responder
    let wasPaused = false
    // Runs before Node's listener, and the other one after it.
    socket.prependListener('resume', () => (wasPaused = socket.isPaused()))
    socket.on('resume', () => {
      const isCollecting = this.#current?.body.state === 'collecting'
      if (this.#waiting.length === 0 && !this.#isStopped && !isCollecting) return
      if (!socket.isPaused()) socket.pause()
      else if (wasPaused) socket.resume()
    })
    // Node keeps the requests of a connection as long as its first one, and a create that waits for
    // the store keeps that one, also after the connection. What was never served is of no use.
    socket.once('close', () => {
      for (const { req } of [...this.#waiting, ...this.#unserved]) req.rawHeaders.length = 0
    })
  }

  /** How many requests are being answered or wait. */
  get active(): number {
    return this.#waiting.length + (this.#isBusy ? 1 : 0)
  }

  /** True if the end of a response may still be on its way to the client. */
  get isFlushing(): boolean {
    return this.#state === 'ended' || (this.#isBusy && this.#current?.res.writableEnded === true)
  }

  /** Takes the next request that Node has parsed. */
  enter(exchange: Exchange): void {
    exchange.body.onTooLong = this.#stopReading
    // Node may have closed the connection itself, after a response that says so.
    const isOpen = this.#state === 'open' && this.#socket.writable
    if (isOpen && exchange.isLast) this.#state = 'closing'
    if (isOpen && !this.#isBusy && this.#waiting.length === 0) return this.#serve(exchange)
    // Node holds a body that is not read: of a chunked one up to 2.7 MiB for each read.
    const isServed = isOpen && !exchange.isChunked
    if (isServed) this.#waiting.push(exchange)
    else this.#unserved.push(exchange)
    const held = [...this.#waiting, ...this.#unserved]
    const headers = held.slice(1).reduce((sum, { req }) => sum + req.rawHeaders.length / 2, 0)
    if (held.length > WAITING_MAX || headers > WAITING_HEADERS_MAX) return cutOff(this.#socket)
    if (isServed) return void this.#socket.pause()
    exchange.body.drop()
    this.#takeNoMore()
  }

  /**
   * Answers what Node could not parse, or waited for too long, after all requests before it. What
   * is broken is the newest request, if it is not complete, or else what comes after it:
   * - The request that is served: it gets the error at once, unless it has its response.
   * - A request that waits, or what comes after all of them: the error has its place in the order.
   */
  fail(error: HttpError, record = new RequestRecord()): void {
    if (this.#state === 'ended' || this.#state === 'failing') return
    const newest = this.#waiting.at(-1) ?? this.#current
    const broken = newest?.req.complete === false ? newest : undefined
    if (broken && broken === this.#current) {
      if (!broken.isAnswered) return this.#refuse(error, broken.record, broken)
      // It has its response, and no other may follow.
      this.#state = 'closing'
    } else if (broken || this.#state === 'open') {
      if (broken) this.#waiting.pop()
      this.#state = 'failing'
      this.#sendFailure = () => this.#refuse(error, broken?.record ?? record, broken)
      this.#finishFirst()
    }
    // What comes after a last request is not answered.
    this.#advance()
  }

  /** The client has neither sent nor taken anything for long. */
  timedOut(): void {
    const current = this.#current
    if (this.#state === 'ended') cutOff(this.#socket)
    else if (!current || current.isDone) this.#socket.destroy()
    // A part of a response must not look like the whole.
    else if (current.res.headersSent) cutOff(this.#socket)
    else this.#refuse(this.#responder.timeoutError(current.record), current.record, current)
  }

  /** Node has removed its own listeners from the socket of a CONNECT. */
  refuseConnect(req: IncomingMessage): void {
    this.#socket.on('error', () => {}).on('timeout', () => this.timedOut())
    this.#socket.on('drain', () => this.#current?.res.emit('drain'))
    const error = new HttpError(faultOf(req) ?? 'methodUnknown', [], 'CONNECT')
    this.fail(error, new RequestRecord(req.method, req.rawHeaders))
  }

  /** Ends it if it was never used, or waits for a body that is dropped: Node calls neither idle. */
  endIfUnused(): void {
    if (this.#socket.bytesRead === 0 || this.#current?.isDone) this.#close()
  }

  get #isBusy(): boolean {
    return this.#current?.isDone === false
  }

  #serve(exchange: Exchange): void {
    this.#current = exchange
    // Not 'finish': Node has a listener for it, and a list of two makes a create slower (V8 moves
    // such lists to its old objects, where they keep whole requests until a full collection).
    exchange.res.on('close', () => this.#finished(exchange))
    if (this.#state === 'failing') this.#finishFirst()
    const { body, record } = exchange
    const answer = (response: HttpResponse): void => this.#answer(exchange, response)
    const fail = (error: unknown): void => answer(this.#responder.explain(error, record, exchange))
    try {
      const response = this.#responder.serve(exchange)
      if (response instanceof Promise) body.collect()
      else if (body.state !== 'done') body.drop()
      if (response instanceof Promise) response.then(answer, fail)
      else atTickEnd(() => answer(response))
    } catch (error) {
      fail(error)
    }
  }

  /** Runs before Node's own listener, which closes a socket that its client has half-closed. */
  #finishFirst(): void {
    const exchange = this.#current
    exchange?.res.prependListener('finish', () => this.#finished(exchange))
  }

  #answer(exchange: Exchange, response: HttpResponse): void {
    // It was refused meanwhile.
    if (exchange.isAnswered) return
    if (exchange.isOver) return this.#responder.answered(exchange.record, response, true)
    const isFinal = this.#state === 'closing' && this.#waiting.length === 0
    const isLast = isFinal || this.#responder.isDraining() || exchange.endsWith(response)
    exchange.body.drop()
    this.#send(exchange, response, isLast)
  }

  #refuse(error: HttpError, record: RequestRecord, exchange?: Exchange): void {
    const response = this.#responder.explain(error, record, exchange)
    if (exchange) return this.#send(exchange, response, true)
    this.#responder.answered(record, response, false)
    this.#close(lastHeadersOf(response, record.requestId) + String(response.body))
  }

  #send(exchange: Exchange, response: HttpResponse, isLast: boolean): void {
    send(exchange, response, isLast, this.#responder)
    if (!isLast) return
    this.#socket.once('finish', () => this.#finished(exchange, this.#socket.destroyed))
    this.#socket.once('close', () => this.#finished(exchange, true))
    this.#endAfterThis(exchange)
  }

  #close(text = ''): void {
    if (this.#state === 'ended') return
    this.#endAfterThis(this.#current)
    this.#socket.end(text, 'latin1')
  }

  /**
   * From now on what comes is read and dropped: of a body without a bound, or up to its own. The
   * connection closes a second after our end of it: a close with unread bytes is a reset, which can
   * destroy the last response (RFC 9112 §9.6).
   */
  #endAfterThis(exchange: Exchange | undefined): void {
    this.#state = 'ended'
    for (const each of [exchange, ...this.#waiting.splice(0)]) each?.body.drop(Infinity)
    this.#socket.resume().once('finish', () => {
      const timer = setTimeout(() => this.#socket.destroy(), LINGER_MS)
      this.#socket.once('close', () => clearTimeout(timer))
    })
  }

  /** All of the response has left the process, or its client has left. */
  #finished(exchange: Exchange, isLost?: boolean): void {
    if (exchange.isDone) return
    exchange.finish(isLost)
    // Reads the end of the request, which an idle connection would keep.
    exchange.body.drop()
    // An idle connection keeps nothing of its last request, unless its body is late.
    if (exchange.req.complete && this.#current === exchange) this.#current = undefined
    // In the next tick: what waits would multiply the work of a tick, as Node reads all connections
    // in one.
    if (this.#waiting.length > 0) setImmediate(() => this.#advance())
    else this.#advance()
  }

  /** The client sends more than it may, and is not read any more. */
  readonly #stopReading = (): void => {
    this.#isStopped = true
    this.#socket.pause()
    this.#takeNoMore()
  }

  #takeNoMore(): void {
    if (this.#state === 'open') this.#state = 'closing'
    this.#advance()
  }

  /** Goes on to what follows, once the response before it has left the process. */
  #advance(): void {
    if (this.#isBusy || !this.#socket.writable || this.#state === 'ended') return
    const exchange = this.#waiting.shift()
    if (exchange) this.#serve(exchange)
    else if (this.#state === 'failing') this.#sendFailure()
    else if (this.#state === 'closing') this.#close()
    if (this.#waiting.length === 0 && this.#socket.isPaused()) this.#socket.resume()
  }
}
