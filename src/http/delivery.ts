import type { Socket } from 'node:net'
import type { Hold } from '../ops/budget.ts'
import { Exchange, type RequestRecord } from './exchange.ts'
import { cutOff, type Linger } from './linger.ts'
import { NO_RESPONSE, record, type Shared } from './responder.ts'
import { abandon, type HttpResponse, isShort, lengthOf } from './response.ts'
import { rawResponse } from './response.ts'
import { send, sendWhole } from './send.ts'
import { dropBody } from './unread-body.ts'

/** What decides which response follows another. */
export interface ResponseOrder {
  /** True if nothing follows the current response. */
  readonly isLastResponse: boolean
  /** Nothing may follow it. */
  close(): void
  /** Called once it is handed to the socket, and again once it has left the process. */
  sent(): void
}

/** Sends the responses of one connection, one after the other, and records each exactly once. */
export class Delivery {
  readonly #socket: Socket
  readonly #shared: Shared
  readonly #linger: Linger
  readonly #order: ResponseOrder
  /** The memory of the current response. */
  #hold: Hold | undefined
  /** Whether the last response was for an owner. */
  #isOwner = false

  constructor(socket: Socket, shared: Shared, linger: Linger, order: ResponseOrder) {
    this.#socket = socket
    this.#shared = shared
    this.#linger = linger
    this.#order = order
  }

  /**
   * Sends a response. `goesOn`: the connection can be kept after the request's body. Never throws:
   * it would stop other responses.
   */
  deliver(exchange: Exchange, response: HttpResponse, goesOn: boolean): void {
    if (exchange.cancelIfGone()) {
      abandon(response)
      return this.#record(exchange, response, true)
    }
    try {
      this.#send(exchange, response, goesOn)
    } catch (error) {
      abandon(response)
      this.#shared.responder.responseFailed(error, exchange)
      this.#record(exchange, response, true)
      cutOff(this.#socket)
    }
  }

  #send(exchange: Exchange, response: HttpResponse, goesOn: boolean): void {
    if (!goesOn && isShort(response)) return this.closeWith(response, exchange)
    // A long response may take its reader longer than the connection lingers. The rest of its
    // request's body is read meanwhile.
    if (!goesOn) dropBody(exchange)
    const closes = this.#order.isLastResponse || !goesOn
    if (closes) this.#order.close()
    exchange.phase = 'sending'
    this.#isOwner = exchange.owner !== undefined
    const { keepAlive } = this.#shared
    if (!closes && sendWhole(exchange, response, keepAlive)) this.#sent(exchange, response)
    else send(exchange, response, closes, (failure) => this.#sent(exchange, response, failure))
    if (!exchange.hasLeft) this.#awaitFinish(exchange, response)
  }

  #sent(exchange: Exchange, response: HttpResponse, failure?: unknown): void {
    const { req, res } = exchange
    // A list says so twice: at its 'finish', and when its last piece is handed over.
    if (exchange.phase !== 'sending') return
    exchange.phase = 'sent'
    if (failure !== undefined) this.#shared.responder.responseFailed(failure, exchange)
    // Node closes the connection after a response to a client that still waits for "100 Continue",
    // and after a list to HTTP/1.0.
    const hasLength = req.httpVersion !== '1.0' || lengthOf(response.body) !== undefined
    if (!res.shouldKeepAlive || !hasLength) this.#order.close()
    if (exchange.hasLeft) this.#record(exchange, response, false)
    this.#order.sent()
  }

  /** The response before has left the process, though its "finish" may still come. */
  #holdBytes(owner: string, bytes: number): Hold {
    this.#hold?.set(0)
    return (this.#hold = this.#shared.responder.holdResponse(owner, bytes))
  }

  /** Most responses leave the process at once, and do not come here. */
  #awaitFinish(exchange: Exchange, response: HttpResponse): void {
    const { owner, method, res } = exchange
    const bytes = method === 'HEAD' ? undefined : lengthOf(response.body)
    const hold = owner === undefined ? undefined : this.#holdBytes(owner, bytes ?? 0)
    const lost = (): void => this.#record(exchange, response, true)
    this.#socket.once('close', lost)
    // Before Node's own listener, which closes the socket if the client has half-closed it.
    res.prependOnceListener('finish', () => {
      hold?.set(0)
      this.#socket.off('close', lost)
      this.#sent(exchange, response)
      this.#record(exchange, response, false)
      this.#order.sent()
    })
  }

  /** Sends the last response without Node, which would reset a client that is still sending. */
  closeWith(response: HttpResponse, request: RequestRecord): void {
    this.#record(request, response, !this.#socket.writable)
    const { owner } = request
    this.#isOwner = owner !== undefined
    if (owner !== undefined) this.#holdBytes(owner, lengthOf(response.body) ?? 0)
    this.end(rawResponse(response, request.requestId, request.method !== 'HEAD'))
    if (!(request instanceof Exchange)) return
    request.phase = 'cancelled'
    dropBody(request, () => this.#linger.pauseIfFull())
  }

  /** Ends the connection after this text. */
  end(text: string): void {
    if (!this.#socket.writable) return
    this.#order.close()
    this.#linger.end(text, this.#isOwner)
  }

  /** The client left before there was a response. */
  giveUp(exchange: Exchange): void {
    exchange.phase = 'cancelled'
    this.#record(exchange, NO_RESPONSE, true)
  }

  /** The socket is closed: the response needs no more memory. */
  release(): void {
    this.#hold?.set(0)
  }

  #record(request: RequestRecord, response: HttpResponse, aborted: boolean): void {
    record(this.#shared.responder, request, response, aborted)
  }
}
