import type { RequestListener } from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { HttpError } from '../errors.ts'
import type { Hold } from '../ops/budget.ts'
import { Clock, DRAIN_CHECK_MS, Watch } from './clock.ts'
import { Exchange } from './exchange.ts'
import { keepPaused, PAUSE_AT_WAITING, WAITING_MAX } from './intake.ts'
import { cutOff, Linger } from './linger.ts'
import { NO_RESPONSE, record, type Responder, type Shared } from './responder.ts'
import { abandon, type HttpResponse, lengthOf } from './response.ts'
import { send } from './send.ts'
import { settleBody } from './unread-body.ts'

/** What it shares with the service's own connections. */
type AdapterShared = Pick<Shared, 'responder' | 'strangers' | 'timeouts'>

/**
 * Serves requests of another application's server, and sends responses through Node's documented
 * API. That server has its own limits for headers and idle connections. The application may respond
 * itself at any time. Nothing is thrown into it.
 */
export class Adapter {
  /** For a `node:http` server's `request` event, and for `checkContinue`. */
  readonly handler: RequestListener
  readonly #shared: AdapterShared
  readonly #lines = new Map<Socket, Line>()
  readonly #watch: Watch

  constructor({ responder, strangers, timeouts: own }: AdapterShared) {
    const timeouts = { ...own, headersMs: Infinity, keepAliveMs: Infinity }
    this.#shared = { responder, strangers, timeouts }
    this.#watch = new Watch(timeouts, (passedMs) => {
      for (const line of this.#lines.values()) line.check(passedMs)
      return this.#lines.size > 0
    })
    this.handler = (req, res) => this.#enter(new Exchange(req, res))
  }

  /** How many requests are being answered or wait. */
  get active(): number {
    return [...this.#lines.values()].reduce((sum, { active }) => sum + active, 0)
  }

  /** Waits for the responses under way, and cuts off the rest; returns their connections. */
  async drain(timeoutMs: number): Promise<number> {
    const deadlineMs = performance.now() + timeoutMs
    let answering = this.#answering()
    while (answering.length > 0 && performance.now() < deadlineMs) {
      await sleep(DRAIN_CHECK_MS)
      answering = this.#answering()
    }
    for (const socket of answering) cutOff(socket)
    return answering.length
  }

  /** Not those whose requests wait for the application alone. */
  #answering(): readonly Socket[] {
    return [...this.#lines].filter(([, line]) => line.isAnswering).map(([socket]) => socket)
  }

  #enter(exchange: Exchange): void {
    const { req, res } = exchange
    const { socket } = req
    // Its events are over, so nothing would end the request.
    if (socket.destroyed || res.writableEnded || res.destroyed) return
    let line = this.#lines.get(socket)
    if (!line) {
      line = new Line(socket, this.#shared)
      this.#lines.set(socket, line)
      socket.once('close', () => {
        this.#lines.delete(socket)
        line?.gone()
      })
      this.#watch.start()
    }
    line.enter(exchange)
  }
}

/**
 * The requests of one connection. Node gives a response its socket when those before it have been
 * sent: only then is its request served. So each sees what the one before it did, one that waits
 * takes no work, and none is served after a response that closes the connection.
 */
class Line {
  readonly #socket: Socket
  readonly #shared: AdapterShared
  readonly #waiting = new Set<Exchange>()
  #current: Reply | undefined
  /** How long requests have waited for a response of the application. */
  #blockedMs = 0
  /** True if nothing is served after the last response. */
  #hasEnded = false

  constructor(socket: Socket, shared: AdapterShared) {
    this.#socket = socket
    this.#shared = shared
    keepPaused(socket, () => this.#waiting.size >= PAUSE_AT_WAITING)
  }

  get isAnswering(): boolean {
    return this.#current?.isUnderWay === true
  }

  get active(): number {
    return this.#waiting.size + (this.isAnswering ? 1 : 0)
  }

  enter(exchange: Exchange): void {
    // Node parses on while the connection lingers.
    if (this.#hasEnded) return
    // Another listener would make the body flow before it is read.
    if (exchange.hasUnreadBody) exchange.req.pause()
    if (exchange.res.socket !== null) return this.#start(exchange)
    this.#waiting.add(exchange)
    this.#count()
    exchange.res.once('socket', () => process.nextTick(() => this.#startWaiting(exchange)))
    if (this.#waiting.size >= PAUSE_AT_WAITING) this.#socket.pause()
    if (this.#waiting.size > WAITING_MAX) cutOff(this.#socket)
  }

  /** To be called every second or so. */
  check(passedMs: number): void {
    this.#current?.check(passedMs)
    const isBlocked = this.#waiting.size > 0 && !this.#current
    this.#blockedMs = isBlocked ? this.#blockedMs + passedMs : 0
    // While they wait, the socket may be paused: it would not tell that its client has left.
    if (this.#blockedMs >= this.#shared.timeouts.servingMs) cutOff(this.#socket)
  }

  /** The socket is closed. */
  gone(): void {
    this.#waiting.clear()
    this.#count()
    this.#current?.end()
  }

  #startWaiting(exchange: Exchange): void {
    if (!this.#waiting.delete(exchange)) return
    this.#count()
    if (this.#waiting.size < PAUSE_AT_WAITING && this.#socket.isPaused()) this.#socket.resume()
    this.#start(exchange)
  }

  #start(exchange: Exchange): void {
    this.#current?.end()
    const reply = new Reply(exchange, this.#shared, (closes) => {
      // An idle connection keeps nothing of its last request.
      if (this.#current === reply) this.#current = undefined
      this.#hasEnded ||= closes
    })
    this.#current = reply
    reply.start()
  }

  #count(): void {
    const bytes = [...this.#waiting].reduce((sum, { headerBytes }) => sum + headerBytes, 0)
    this.#shared.strangers.set(this.#socket, bytes)
  }
}

/** One request, and how it is answered. */
class Reply {
  readonly #exchange: Exchange
  readonly #responder: Responder
  readonly #clock: Clock
  readonly #onEnd: (closes: boolean) => void
  /** The response that is being sent, and its memory. */
  #response: HttpResponse | undefined
  #hold: Hold | undefined
  /** True if nothing on the connection is served after it. */
  #closes = false
  #isOver = false

  constructor(
    exchange: Exchange,
    { responder, timeouts }: AdapterShared,
    onEnd: (closes: boolean) => void,
  ) {
    this.#exchange = exchange
    this.#onEnd = onEnd
    this.#responder = responder
    this.#clock = new Clock(exchange.req.socket, timeouts)
  }

  /** False once Node is done with the response, or the application has responded. */
  get isUnderWay(): boolean {
    return !this.#isOver && (this.#response !== undefined || !this.#exchange.res.headersSent)
  }

  start(): void {
    const exchange = this.#exchange
    if (exchange.cancelIfGone()) return this.end()
    exchange.res.once('close', () => this.end())
    exchange.phase = 'serving'
    try {
      const response = this.#responder.serve(exchange)
      if (!(response instanceof Promise)) return this.#answer(response)
      response.then(
        (value) => this.#answer(value),
        (error: unknown) => this.#explain(error),
      )
    } catch (error) {
      this.#explain(error)
    }
  }

  /** To be called every second or so. */
  check(passedMs: number): void {
    // The application has begun a response of its own.
    if (!this.isUnderWay) return this.end()
    const end = this.#clock.check(this.#exchange, false, passedMs)
    if (end === undefined) return
    if (end === 'close' || end === 'cut off') cutOff(this.#exchange.req.socket)
    // The response is known, and waits for the rest of the body.
    else if (this.#response) this.#stopReading()
    else if (end === 'late') this.#explain(this.#responder.timeoutError(this.#exchange))
    else this.#explain(new HttpError(end))
  }

  /** Node is done with the response, also one of the application; or its socket is closed. */
  end(): void {
    if (this.#isOver) return
    this.#isOver = true
    if (!this.#response) this.#exchange.phase = 'cancelled'
    this.#stopReading()
    this.#hold?.set(0)
    if (this.#response) {
      abandon(this.#response)
      this.#record(this.#response, !this.#exchange.res.writableFinished)
    }
    this.#onEnd(this.#closes)
  }

  #explain(error: unknown): void {
    const response = this.#responder.explain(error, this.#exchange)
    if (response) return this.#answer(response)
    if (!this.#response) this.#record(NO_RESPONSE, true)
    this.#stopReading()
  }

  /** Deals with the rest of the body, then sends the response. */
  #answer(response: HttpResponse): void {
    const exchange = this.#exchange
    if (this.#isOver || this.#response || exchange.cancelIfGone()) {
      // The client has left, or has another response.
      abandon(response)
      if (!this.#response) this.#record(response, true)
      return this.#stopReading()
    }
    this.#response = response
    const goesOn = response.status !== 408 && settleBody(exchange, response.status)
    if (goesOn instanceof Promise) void goesOn.then((on) => this.#send(response, on))
    else this.#send(response, goesOn)
  }

  #send(response: HttpResponse, goesOn: boolean): void {
    const exchange = this.#exchange
    const { req, owner } = exchange
    if (this.#isOver || exchange.cancelIfGone()) return this.end()
    exchange.phase = 'sending'
    this.#stopReading()
    if (owner !== undefined)
      this.#hold = this.#responder.holdResponse(owner, lengthOf(response.body) ?? 0)
    this.#closes = exchange.endsConnection || !goesOn
    if (this.#closes) lingerAfter(exchange)
    try {
      send(exchange, response, this.#closes, (failure) => {
        exchange.phase = 'sent'
        if (failure !== undefined) this.#responder.responseFailed(failure, exchange)
      })
    } catch (error) {
      this.#responder.responseFailed(error, exchange)
      cutOff(req.socket)
    }
  }

  /** Nothing waits for the body any more. The application may still count what comes of it. */
  #stopReading(): void {
    this.#exchange.stopReading?.()
    this.#exchange.req.resume()
  }

  #record(response: HttpResponse, aborted: boolean): void {
    record(this.#responder, this.#exchange, response, aborted)
  }
}

/** Node would close the socket after the response, and reset a client that is still sending. */
function lingerAfter({ req: { socket }, owner }: Exchange): void {
  const linger = new Linger(socket)
  socket.destroySoon = () => linger.end('', owner !== undefined)
}
