import type { Socket } from 'node:net'
import { HttpError } from '../errors.ts'
import { Clock } from './clock.ts'
import { Delivery, type ResponseOrder } from './delivery.ts'
import { type BodyHolder, DirectRequest } from './direct-request.ts'
import { Exchange, recordOf, REQUEST_BYTES, type RequestRecord } from './exchange.ts'
import { Intake, keepPaused, type Refusal } from './intake.ts'
import { cutOff, Linger } from './linger.ts'
import type { Responder, Shared } from './responder.ts'
import { errorResponse, type HttpResponse } from './response.ts'
import { dropBody, settleBody } from './unread-body.ts'

/** When as many requests have come after the last one, no more is read. */
const IGNORED_MAX = 16

/**
 * One client connection. Its requests are served one at a time, in order (Node would serve them
 * side by side), so that each sees what the one before it did (RFC 9112 §9.3.2).
 *
 * Its state has two parts: the current request, which `stateOf` names, and the intake, which holds
 * what comes next. While a request is under way the next one waits, until `#advance` takes it.
 */
export class Connection implements BodyHolder, ResponseOrder {
  readonly #socket: Socket
  readonly #responder: Responder
  readonly #shared: Shared
  readonly #delivery: Delivery
  readonly #clock: Clock
  readonly #linger: Linger
  #current: Exchange | undefined
  readonly #intake = new Intake()
  /** Requests that came after the last one. */
  #ignored = 0
  /** How much had been received when a stop last looked. */
  #bytesAtLastLook = -1

  constructor(socket: Socket, shared: Shared) {
    this.#socket = socket
    this.#responder = shared.responder
    this.#shared = shared
    this.#clock = new Clock(socket, shared.timeouts)
    this.#linger = new Linger(socket)
    this.#delivery = new Delivery(socket, shared, this.#linger, this)
    keepPaused(socket, () => this.#mustPause)
    // Node calls it after the last response, and would close at once.
    socket.destroySoon = () => this.#delivery.end('')
    // After an Upgrade header Node's parser does not report broken chunks. Without this listener
    // such a request would end only at its timeout.
    socket.on('end', () => {
      if (this.#incomplete) this.fail(new HttpError('malformedRequest'))
    })
  }

  /** Takes the next request that Node has parsed. */
  enter(exchange: Exchange): void {
    if (!this.#intake.isOpen) return this.#ignore(exchange)
    // During a stop this request counts as the last one: else a client that always has a next one
    // would never get `Connection: close`.
    this.#intake.expectMore(!exchange.endsConnection && !this.#responder.draining)
    if (exchange.hasUnreadBody && exchange.req instanceof DirectRequest) exchange.req.holder = this
    if (this.#isDone) return this.#start(exchange)
    this.#intake.wait(exchange)
    if (this.#intake.isFull) this.#socket.pause()
    if (this.#intake.isOverfull) cutOff(this.#socket)
    this.heldChanged()
  }

  /** Counts what is held for strangers: waiting requests, an unread body, requests to ignore. */
  heldChanged(): void {
    if (this.#socket.destroyed) return
    const ignoredBytes = this.#ignored * REQUEST_BYTES
    const held = this.#intake.heldBytes + (this.#current?.bodyBytes ?? 0) + ignoredBytes
    this.#shared.strangers.set(this.#socket, held)
  }

  get isLastResponse(): boolean {
    return (this.#intake.isExhausted || this.#responder.draining) && this.#intake.size === 0
  }

  close(): void {
    for (const exchange of this.#intake.close()) this.#drop(exchange)
    this.heldChanged()
  }

  sent(): void {
    this.#advance()
  }

  /** Answers what Node could not parse, after all requests before it. */
  fail(error: HttpError, request: RequestRecord = recordOf()): void {
    this.#linger.pauseIfFull()
    if (this.#intake.isDecided) return
    const broken = this.#incomplete
    if (!broken || broken !== this.#current) {
      this.#intake.refuse({ error, request: broken ?? request })
    } else if (broken.res.headersSent) {
      // Its response is under way: nothing may follow it.
      this.close()
    } else {
      this.#refuse({ error, request: broken })
    }
    this.#advance()
  }

  /**
   * Node reports late headers only once. While a response is under way, the headers may have come
   * without being read. So they are late only if they are still missing some time after it.
   */
  headersLate(): void {
    if (this.#isDone) this.fail(new HttpError('requestTimeout'))
    else this.#intake.headersLate()
  }

  /** Answers a CONNECT. Node has removed its own listeners from the socket before. */
  refuseConnect(error: HttpError, request: RequestRecord): void {
    this.#socket.on('error', () => {})
    this.#socket.on('drain', () => this.#current?.res.emit('drain'))
    this.#linger.limit(false)
    this.#socket.on('data', () => this.#linger.pauseIfFull())
    this.fail(error, request)
  }

  /** How many requests are being answered or wait. */
  get active(): number {
    const phase = this.#current?.phase
    return this.#intake.size + (phase === 'serving' || phase === 'sending' ? 1 : 0)
  }

  /**
   * Closes the connection if nothing is under way, nothing has come in since the last call, and no
   * request has begun. `unbegun`: the sockets on which, as Node's parser says, none has.
   */
  closeIdle(unbegun: ReadonlySet<Socket>): void {
    const { bytesRead } = this.#socket
    const isIdle = this.#isDone && this.#intake.size === 0
    // Node does not name a socket before its first request, nor while the body of an answered
    // request still comes.
    const hasBegun = bytesRead > 0 && !unbegun.has(this.#socket) && !this.#incomplete
    const isQuiet = bytesRead === this.#bytesAtLastLook && !hasBegun
    if (isIdle && isQuiet) this.#socket.destroy()
    this.#bytesAtLastLook = bytesRead
  }

  /** The socket is closed: nothing needs memory any more. */
  gone(): void {
    this.#delivery.release()
    this.#shared.strangers.set(this.#socket, 0)
  }

  /** See Clock. */
  quietMs(): number | undefined {
    return this.#clock.quietMs(this.#current)
  }

  /** Ends what has lasted too long. To be called every second or so. */
  check(passedMs: number): void {
    this.#forgetDone()
    this.heldChanged()
    const end = this.#clock.check(this.#current, this.#intake.isLate, passedMs)
    if (end === undefined) return
    if (end === 'close') this.#delivery.end('')
    else if (end === 'cut off') cutOff(this.#socket)
    else if (end === 'requestTimeout') this.#timeOut(new HttpError(end))
    else if (this.#current) this.#timeOut(this.#responder.timeoutError(this.#current))
  }

  #timeOut(error: HttpError): void {
    if (this.#current && !this.#isDone) this.#refuse({ error, request: this.#current })
    else this.fail(error)
  }

  /** True if all of the last response has left the process, so that the next request is due. */
  get #isDone(): boolean {
    const current = this.#current
    return !current || (current.phase === 'sent' && current.hasLeft)
  }

  /** An idle connection keeps nothing of its last request. */
  #forgetDone(): void {
    if (this.#isDone && this.#current?.req.complete === true) this.#current = undefined
  }

  get #mustPause(): boolean {
    if (this.#intake.isFull || this.#linger.isFull || this.#ignored >= IGNORED_MAX) return true
    const req = this.#current?.req
    return req instanceof DirectRequest && req.isHolding
  }

  /** Node keeps a request that comes after the last one until the connection ends. */
  #ignore(exchange: Exchange): void {
    this.#ignored++
    this.#drop(exchange)
    if (this.#mustPause) this.#socket.pause()
    this.heldChanged()
  }

  /** A body that is not wanted must not be held. */
  #drop(exchange: Exchange): void {
    dropBody(exchange, () => this.#linger.pauseIfFull())
  }

  /** The request that is still being received. */
  get #incomplete(): Exchange | undefined {
    const newest = this.#intake.newest ?? this.#current
    return newest?.req.complete === false ? newest : undefined
  }

  /**
   * Goes on to what follows once the current response has left the process. Responses to a client
   * that does not read must not pile up.
   */
  #advance(): void {
    this.#forgetDone()
    if (!this.#isDone || !this.#socket.writable) return
    const next = this.#intake.next()
    if (next === 'end') this.#delivery.end('')
    else if (next instanceof Exchange) this.#startWaiting(next)
    else if (next) this.#refuse(next)
  }

  #startWaiting(exchange: Exchange): void {
    this.#start(exchange)
    this.heldChanged()
    if (!this.#mustPause) this.#socket.resume()
  }

  #start(exchange: Exchange): void {
    this.#current = exchange
    exchange.phase = 'serving'
    try {
      const response = this.#responder.serve(exchange)
      if (response instanceof Promise) {
        response.then(
          (value) => this.#answer(exchange, value),
          (error: unknown) => this.#explain(exchange, error),
        )
      } else if (this.#intake.size > 0) {
        // At once: waiting requests must not take a tick each.
        this.#answer(exchange, response)
      } else {
        this.#shared.tickEnd.add(() => this.#answer(exchange, response))
      }
    } catch (error) {
      this.#explain(exchange, error)
    }
  }

  #explain(exchange: Exchange, error: unknown): void {
    const response = this.#responder.explain(error, exchange)
    if (response) this.#answer(exchange, response)
    else this.#delivery.giveUp(exchange)
  }

  /** Deals with the rest of the body, then sends the response. */
  #answer(exchange: Exchange, response: HttpResponse): void {
    const goesOn = exchange.cancelIfGone() || settleBody(exchange, response.status)
    const deliver = (on: boolean): void => this.#delivery.deliver(exchange, response, on)
    if (goesOn instanceof Promise) void goesOn.then(deliver)
    else deliver(goesOn)
  }

  #refuse({ error, request }: Refusal): void {
    const response = this.#responder.explain(error, request) ?? errorResponse(error)
    this.#delivery.closeWith(response, request)
  }
}
