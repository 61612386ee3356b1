import { EventEmitter } from 'node:events'
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http'
import type { Duplex } from 'node:stream'
import { setImmediate as yieldTick, setTimeout as sleep } from 'node:timers/promises'
import { Socket } from 'node:net'
import { HttpError } from '../errors.ts'
import type { HttpTimeouts } from './clock.ts'
import { Connection, type ConnectionHost } from './connection.ts'
import { Exchange, isKnownVersion, recordOf } from './exchange.ts'
import { cutOff } from './linger.ts'
import { TickEnd } from './tick.ts'

/** Request line and headers together; Node counts their bytes without the separators. */
const HEADERS_MAX_BYTES = 16 * 1024
/** The clock looks this often. Node looks for late heads only every 30 s otherwise. */
const CHECK_MS = 1000
/** A stop takes so many connections that were made before it, even if more come all the time. */
const ACCEPT_TICKS_MAX = 10_000
/** How often a stop looks which connections it can close. */
const DRAIN_CHECK_MS = 25

const TIMEOUTS: HttpTimeouts = {
  headersMs: 10_000,
  // Longer than a load balancer keeps one (60 s is usual): the server must not be first to close.
  keepAliveMs: 65_000,
  requestMs: 30_000,
  servingMs: 60_000,
  stalledMs: 30_000,
}

/** The connections of one service, whichever server they come through. */
export class Connections {
  /** To be mounted in a `node:http` server. */
  readonly handler: RequestListener
  readonly timeouts: HttpTimeouts
  /** How often timeouts are looked for. */
  readonly checkMs: number
  readonly #host: ConnectionHost
  readonly #tickEnd = new TickEnd()
  readonly #bySocket = new Map<Socket, Connection>()
  #clock: NodeJS.Timeout | undefined
  #checkedAtMs = 0
  /** Connections that were turned away because there were too many. */
  refused = 0
  /** Connections that were accepted so far. */
  accepted = 0

  constructor(host: ConnectionHost, timeouts: HttpTimeouts = TIMEOUTS) {
    this.#host = host
    this.timeouts = timeouts
    this.checkMs = Math.min(CHECK_MS, ...Object.values(timeouts))
    this.handler = handlerOf((socket) => this.get(socket) ?? this.add(socket, true))
  }

  get(socket: Socket): Connection | undefined {
    return this.#bySocket.get(socket)
  }

  /** A socket that is first seen with a request is another application's: `embedded`. */
  add(socket: Socket, embedded: boolean): Connection {
    const { timeouts } = this
    const connection = new Connection(socket, this.#host, this.#tickEnd, timeouts, embedded)
    this.#bySocket.set(socket, connection)
    socket.once('close', () => {
      this.#bySocket.delete(socket)
      connection.gone()
    })
    if (!this.#clock) {
      this.#checkedAtMs = performance.now()
      this.#clock = setInterval(() => this.#check(), this.checkMs).unref()
    }
    return connection
  }

  accept(socket: Socket): void {
    this.accepted++
    this.#host.accepted()
    this.add(socket, false)
  }

  get size(): number {
    return this.#bySocket.size
  }

  /** Requests that are being answered, or wait for it. */
  get active(): number {
    return [...this.#bySocket.values()].reduce((sum, connection) => sum + connection.active, 0)
  }

  /** Closes the connection that has been quiet for longest; false if all are being answered. */
  closeQuietest(): boolean {
    const unseenMs = performance.now() - this.#checkedAtMs
    let quietest: Socket | undefined
    let longestMs = -1
    for (const [socket, connection] of this.#bySocket) {
      const quietMs = connection.quietMs(unseenMs) ?? -1
      if (quietMs <= longestMs) continue
      quietest = socket
      longestMs = quietMs
    }
    if (!quietest) return false
    // Its close event comes too late for the next connection of this tick.
    this.#bySocket.delete(quietest)
    quietest.destroy()
    return true
  }

  #check(): void {
    const nowMs = performance.now()
    // After a pause of the whole process, what clients have sent meanwhile is read only after this.
    const passedMs = Math.min(nowMs - this.#checkedAtMs, 2 * this.checkMs)
    this.#checkedAtMs = nowMs
    for (const connection of this.#bySocket.values()) connection.check(passedMs)
    if (this.#bySocket.size > 0) return
    clearInterval(this.#clock)
    this.#clock = undefined
  }

  /**
   * Waits until all connections that are made are accepted, one a tick: with the listener they
   * would be reset.
   */
  async acceptAll(): Promise<void> {
    for (let before = -1, ticks = 0; before < this.accepted && ticks < ACCEPT_TICKS_MAX; ticks++) {
      before = this.accepted
      await yieldTick()
      await yieldTick()
    }
  }

  /** Closes each connection once it is answered, the rest at the deadline; returns their number. */
  async drain(timeoutMs: number): Promise<number> {
    const deadline = performance.now() + timeoutMs
    while (this.#bySocket.size > 0 && performance.now() < deadline) {
      for (const [socket, connection] of this.#bySocket) {
        if (connection.closeIdle()) this.#bySocket.delete(socket)
      }
      await sleep(DRAIN_CHECK_MS)
      // After a busy stretch timers run first: what came in meanwhile is read only then.
      await yieldTick()
    }
    for (const socket of this.#bySocket.keys()) cutOff(socket)
    return this.#bySocket.size
  }
}

function handlerOf(connectionOf: (socket: Socket) => Connection): RequestListener {
  // An emitter calls its listeners with itself as `this`.
  return function handler(this: unknown, req: IncomingMessage, res: ServerResponse): void {
    // Its close event may be over, and would never remove it.
    if (req.socket.destroyed) return
    const exchange = new Exchange(req, res)
    // Node has sent "100 Continue", except to a listener for `checkContinue`.
    exchange.awaitsContinue = exchange.expectsContinue && listensFor('checkContinue', this, handler)
    connectionOf(req.socket).enter(exchange)
  }
}

function listensFor(event: string, emitter: unknown, listener: RequestListener): boolean {
  return emitter instanceof EventEmitter && emitter.listeners(event).includes(listener)
}

/**
 * A server of the project's own: bounded, and every failure of Node's parser answered in the Error
 * shape. When full it refuses a connection, or closes the one that has been quiet for longest.
 */
export function createHttpServer(
  connections: Connections,
  maxConnections: number,
  whenFull: 'refuse' | 'closeQuietest' = 'refuse',
): Server {
  const server = createServer({
    maxHeaderSize: HEADERS_MAX_BYTES,
    keepAliveTimeout: connections.timeouts.keepAliveMs,
    headersTimeout: connections.timeouts.headersMs,
    // The clock's, which knows what is the client's fault.
    requestTimeout: 0,
    connectionsCheckingInterval: connections.checkMs,
    // Checked by the router, which answers in the Error shape.
    requireHostHeader: false,
  })
  // Bounded by their size alone: Node drops what is beyond a number silently, a second
  // Authorization included.
  server.maxHeadersCount = 0
  if (whenFull === 'refuse') server.maxConnections = maxConnections
  const hasRoom = (): boolean => whenFull === 'refuse' || connections.size < maxConnections
  // A client that has sent its requests and closes its side still gets the answers. Node's types do
  // not know the property.
  Object.assign(server, { httpAllowHalfOpen: true })
  server.on('connection', (socket: Socket) => {
    if (hasRoom() || connections.closeQuietest()) connections.accept(socket)
    else socket.destroy()
  })
  server.on('drop', () => connections.refused++)
  server.on('request', connections.handler)
  server.on('checkContinue', connections.handler)
  server.on('checkExpectation', connections.handler)
  server.on('connect', (req: IncomingMessage) => {
    const connection = connections.get(req.socket)
    connection?.adopt()
    const problem = new HttpError(isKnownVersion(req) ? 'methodUnknown' : 'malformedRequest')
    connection?.fail(problem, recordOf(req.method, req.rawHeaders))
  })
  server.on('clientError', (error: NodeJS.ErrnoException, stream: Duplex) => {
    // Node types a plain socket as Duplex here.
    const isUsed = stream instanceof Socket && stream.bytesRead > 0
    const connection = isUsed ? connections.get(stream) : undefined
    const problem = parserError(error)
    if (connection && error.code === 'ERR_HTTP_REQUEST_TIMEOUT') connection.expire()
    else if (connection && problem) connection.fail(problem)
    else stream.destroy()
  })
  return server
}

/**
 * What a failure of Node's parser means to the client; undefined where the connection itself
 * failed.
 */
function parserError(error: NodeJS.ErrnoException): HttpError | undefined {
  if (error.code === 'HPE_HEADER_OVERFLOW') return new HttpError('headersTooLarge')
  return error.code?.startsWith('HPE_') ? new HttpError('malformedRequest') : undefined
}
