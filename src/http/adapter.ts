import { EventEmitter } from 'node:events'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { HttpError } from '../errors.ts'
import type { Hold } from '../ops/budget.ts'
import { Clock, type HttpTimeouts, Ticks } from './clock.ts'
import { Exchange } from './exchange.ts'
import { cutOff } from './linger.ts'
import { NO_RESPONSE, record, type Responder } from './responder.ts'
import { abandon, type HttpResponse, lengthOf } from './response.ts'
import { send } from './send.ts'

const DRAIN_CHECK_MS = 25
/** After a body that is late or too long, whether or not all of it has come. */
const CLOSING: readonly number[] = [408, 413]

/**
 * Serves requests of another application's server through Node's documented API. That server has
 * its own limits for headers and idle connections, and serves pipelined requests side by side. Here
 * a request is answered even if its body or the service takes too long, and a connection ends if
 * its client takes nothing of a response. The application may respond itself at any time. Nothing
 * is thrown into it.
 */
export class Adapter {
  /** For a `node:http` server's `request` event, and for `checkContinue`. */
  readonly handler: RequestListener
  readonly #responder: Responder
  readonly #timeouts: HttpTimeouts
  /** The requests that are being answered. */
  readonly #replies = new Set<Reply>()
  readonly #ticks: Ticks

  constructor(responder: Responder, timeouts: HttpTimeouts) {
    this.#responder = responder
    this.#timeouts = { ...timeouts, headersMs: Infinity, keepAliveMs: Infinity }
    this.#ticks = new Ticks(this.#timeouts, (passedMs) => {
      for (const reply of this.#replies) {
        // Node closes no response that still waits for those before it on the connection.
        if (reply.socket.destroyed) this.#end(reply)
        else reply.check(passedMs)
      }
      return this.#replies.size > 0
    })
    const enter = (exchange: Exchange): void => this.#enter(exchange)
    // An emitter calls its listeners with itself as `this`.
    this.handler = function handler(this: unknown, req: IncomingMessage, res: ServerResponse) {
      const exchange = new Exchange(req, res)
      // Node has sent "100 Continue" unless it calls a listener for `checkContinue`.
      exchange.awaitsContinue =
        exchange.expectsContinue &&
        this instanceof EventEmitter &&
        this.listeners('checkContinue').includes(handler)
      enter(exchange)
    }
  }

  /** How many requests are being answered. */
  get active(): number {
    return this.#replies.size
  }

  /** Waits for the responses under way, and cuts off the rest; returns their connections. */
  async drain(timeoutMs: number): Promise<number> {
    const deadlineMs = performance.now() + timeoutMs
    while (this.#replies.size > 0 && performance.now() < deadlineMs) await sleep(DRAIN_CHECK_MS)
    const stuck = new Set<Socket>([...this.#replies].map(({ socket }) => socket))
    for (const socket of stuck) cutOff(socket)
    return stuck.size
  }

  #enter(exchange: Exchange): void {
    // Its close event is over, so nothing would end the reply.
    if (exchange.req.socket.destroyed) return
    const reply = new Reply(exchange, this.#responder, this.#timeouts)
    this.#replies.add(reply)
    exchange.res.once('close', () => this.#end(reply))
    this.#ticks.start()
    reply.start()
  }

  #end(reply: Reply): void {
    this.#replies.delete(reply)
    reply.gone()
  }
}

/** One request, and how it is answered. */
class Reply {
  readonly socket: Socket
  readonly #exchange: Exchange
  readonly #responder: Responder
  readonly #clock: Clock
  /** The response that is being sent, and its memory. */
  #response: HttpResponse | undefined
  #hold: Hold | undefined

  constructor(exchange: Exchange, responder: Responder, timeouts: HttpTimeouts) {
    this.socket = exchange.req.socket
    this.#exchange = exchange
    this.#responder = responder
    this.#clock = new Clock(this.socket, timeouts)
  }

  start(): void {
    const exchange = this.#exchange
    // Another listener would make the body flow before it is read.
    if (exchange.hasUnreadBody) exchange.req.pause()
    exchange.phase = 'serving'
    try {
      const response = this.#responder.serve(exchange)
      if (!(response instanceof Promise)) return this.#send(response)
      response.then(
        (value) => this.#send(value),
        (error: unknown) => this.#explain(error),
      )
    } catch (error) {
      this.#explain(error)
    }
  }

  /** To be called every second or so. */
  check(passedMs: number): void {
    const { res } = this.#exchange
    // It waits for the application's response to an earlier request, not for the client.
    if (res.socket === null && this.socket.writableLength === 0) return
    const end = this.#clock.check(this.#exchange, false, passedMs)
    if (end === 'requestTimeout') this.#explain(new HttpError(end))
    else if (end === 'late') this.#explain(this.#responder.lateFor(this.#exchange))
    else if (end !== undefined) cutOff(this.socket)
  }

  /** Node is done with the response, whoever has made it. */
  gone(): void {
    this.#hold?.set(0)
    if (this.#response) this.#record(this.#response, !this.#exchange.res.writableFinished)
  }

  #explain(error: unknown): void {
    const response = this.#responder.explain(error, this.#exchange)
    if (response) return this.#send(response)
    this.#exchange.phase = 'cancelled'
    this.#record(NO_RESPONSE, true)
  }

  #send(response: HttpResponse): void {
    const exchange = this.#exchange
    const { req, owner } = exchange
    // It was late: the client has its response.
    if (this.#response) return abandon(response)
    if (exchange.cancelIfGone()) {
      abandon(response)
      return this.#record(response, true)
    }
    // The application may count what the service has not read.
    req.resume()
    exchange.phase = 'sending'
    this.#response = response
    if (owner !== undefined)
      this.#hold = this.#responder.holdResponse(owner, lengthOf(response.body) ?? 0)
    const closes = exchange.isLast || CLOSING.includes(response.status)
    try {
      send(exchange, response, closes, (failure) => {
        exchange.phase = 'sent'
        if (failure !== undefined) this.#responder.brokeOff(failure, exchange)
      })
    } catch (error) {
      abandon(response)
      this.#responder.brokeOff(error, exchange)
      // After the responses before it.
      exchange.res.destroy()
    }
  }

  #record(response: HttpResponse, aborted: boolean): void {
    record(this.#responder, this.#exchange, response, aborted)
  }
}
