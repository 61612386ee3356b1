/* Serves requests of another application's server. */

import type { RequestListener } from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { HttpError } from '../errors.ts'
import { Exchange, type Responder } from './exchange.ts'
import type { HttpResponse } from './response.ts'
import { cutOff, send } from './send.ts'
import { DRAIN_CHECK_MS } from './server.ts'

const HTTP2 = 'HTTP/2 is refused: mount the handler in a server of node:http or node:https'

/**
 * Order, limits of time and the number of connections are the other server's. Its application may
 * respond itself at any time. Nothing is thrown into it.
 */
export class Adapter {
  /** For a `node:http` server's `request` event. */
  readonly handler: RequestListener
  readonly #underWay = new Set<Exchange>()
  /** Of an unclear one it is not known where the next request begins, so none is served. */
  readonly #sockets = new WeakMap<Socket, 'clear' | 'unclear'>()

  /** `logError` is called with what the application should change. */
  constructor(responder: Responder, logError: (message: string) => void) {
    let isHttp2Known = false
    this.handler = (req, res) => {
      const exchange = new Exchange(req, res)
      // Over HTTP/1, a client can write the version 2.0 too.
      const isHttp2 = req.httpVersionMajor === 2 && 'stream' in req
      if (!isHttp2) return void this.#serve(exchange, responder)
      if (!isHttp2Known) logError(HTTP2)
      isHttp2Known = true
      if (exchange.isOver) return
      res.once('close', () => exchange.finish(false))
      const error = new HttpError('versionUnsupported')
      send(exchange, responder.explain(error, exchange.record, exchange), false, responder)
    }
  }

  /** How many requests are being answered. */
  get active(): number {
    return this.#underWay.size
  }

  /** Waits for the responses under way, and cuts off the rest; returns their connections. */
  async drain(timeoutMs: number): Promise<number> {
    const deadlineMs = performance.now() + timeoutMs
    while (this.active > 0 && performance.now() < deadlineMs) await sleep(DRAIN_CHECK_MS)
    const sockets = new Set([...this.#underWay].map(({ req }) => req.socket))
    for (const socket of sockets) cutOff(socket)
    return sockets.size
  }

  async #serve(exchange: Exchange, responder: Responder): Promise<void> {
    const { body, record, req, res } = exchange
    const { socket } = req
    const known = this.#sockets.get(socket)
    // If it is over, its events have passed: nothing would finish the exchange.
    if (exchange.isOver || known === 'unclear') return
    this.#sockets.set(socket, exchange.isUnclear ? 'unclear' : 'clear')
    this.#underWay.add(exchange)
    // It leaves the set only when what it holds is released.
    exchange.whenDone(() => this.#underWay.delete(exchange))
    // Also for light-my-request, which has no connection: it has no `destroyed`, and is written to
    // after 'close'.
    res.once('finish', () => exchange.finish(socket.destroyed === true))
    res.once('close', () => exchange.finish())
    // A response that waits for others of its connection has no 'close' of its own. A closure of
    // this function would keep the first exchange of the connection as long as the connection.
    if (!known) socket.once('close', this.#finishAll.bind(this, socket))
    // The application may write to a response that has ended.
    res.on('error', () => {})
    // Another listener would make the body flow before it is read.
    if (body.state === 'unread') req.pause()
    const served = new Promise<HttpResponse>((resolve) => resolve(responder.serve(exchange)))
    const explain = (error: unknown): HttpResponse => responder.explain(error, record, exchange)
    const response = await served.catch(explain)
    // What is left of the body is dropped.
    req.resume()
    if (exchange.isOver || exchange.isDone) {
      exchange.finish()
      return responder.answered(record, response, true)
    }
    const close = exchange.endsWith(response) ? ['Connection', 'close'] : []
    const closing = { ...response, headers: [...response.headers, ...close] }
    send(exchange, closing, false, responder)
  }

  #finishAll(socket: Socket): void {
    for (const each of this.#underWay) if (each.req.socket === socket) each.finish()
  }
}
