import {
  createServer,
  type IncomingMessage,
  type Server,
  ServerResponse,
} from 'node:http'
import { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { setImmediate as yieldTick, setTimeout as sleep } from 'node:timers/promises'
import { HttpError } from '../errors.ts'
import { StrangersAccount } from '../ops/strangers.ts'
import { DRAIN_CHECK_MS, type HttpTimeouts, Watch } from './clock.ts'
import { Connection } from './connection.ts'
import { DirectRequest } from './direct-request.ts'
import { Exchange, hasTooManyHeaders, HEADERS_MAX_COUNT } from './exchange.ts'
import { isKnownVersion, recordOf } from './exchange.ts'
import { cutOff } from './linger.ts'
import type { Responder } from './responder.ts'
import { TickEnd } from './tick.ts'
import { canSendWhole, WholeResponse } from './whole-response.ts'

/** Request line and headers together. Node counts their bytes without the separators. */
const HEADERS_MAX_BYTES = 16 * 1024
/** So that a stop ends even if clients make new connections all the time. */
const ACCEPT_TICKS_MAX = 10_000

/** For all requests whose token is not verified yet, besides one for each connection. */
const STRANGERS_MAX_BYTES = 64 * 1024 * 1024

const TIMEOUTS: HttpTimeouts = {
  headersMs: 10_000,
  // Longer than a load balancer keeps an idle connection (usually 60 s), so that it closes first.
  keepAliveMs: 65_000,
  requestMs: 30_000,
  servingMs: 60_000,
  stalledMs: 30_000,
}

/** The connections of one server. */
export class Connections {
  readonly responder: Responder
  readonly timeouts: HttpTimeouts
  readonly tickEnd = new TickEnd()
  readonly strangers: StrangersAccount
  /** As Node writes them. */
  readonly keepAlive: string
  readonly watch: Watch
  /** Connections that were refused because there were too many. */
  refused = 0
  /** Connections that were accepted so far. */
  accepted = 0
  /** Closes what Node calls idle connections of the service's own server. */
  closeUnbegun: () => void = () => {}
  readonly #bySocket = new Map<Socket, Connection>()

  constructor(
    responder: Responder,
    timeouts: HttpTimeouts = TIMEOUTS,
    strangersMaxBytes = STRANGERS_MAX_BYTES,
  ) {
    this.responder = responder
    this.strangers = new StrangersAccount(strangersMaxBytes)
    this.timeouts = timeouts
    const keepAliveSeconds = Math.floor(timeouts.keepAliveMs / 1000)
    this.keepAlive = `Connection: keep-alive\r\nKeep-Alive: timeout=${keepAliveSeconds}\r\n`
    this.watch = new Watch(timeouts, (passedMs) => {
      for (const connection of this.#bySocket.values()) connection.check(passedMs)
      return this.#bySocket.size > 0
    })
  }

  get size(): number {
    return this.#bySocket.size
  }

  /** Requests that are being answered or wait. */
  get active(): number {
    return [...this.#bySocket.values()].reduce((sum, connection) => sum + connection.active, 0)
  }

  get(socket: Socket): Connection | undefined {
    return this.#bySocket.get(socket)
  }

  accept(socket: Socket): void {
    this.accepted++
    this.responder.accepted()
    const connection = new Connection(socket, this)
    this.#bySocket.set(socket, connection)
    socket.once('close', () => {
      this.#bySocket.delete(socket)
      connection.gone()
    })
    this.watch.start()
  }

  /** Closes the connection that has been quiet for longest; false if all are being answered. */
  closeQuietest(): boolean {
    let quietest: Socket | undefined
    let longestMs = -Infinity
    for (const [socket, connection] of this.#bySocket) {
      const quietMs = connection.quietMs() ?? -Infinity
      if (quietMs <= longestMs) continue
      quietest = socket
      longestMs = quietMs
    }
    if (!quietest) return false
    // Its close event would come too late for the next connection of this tick.
    this.#bySocket.delete(quietest)
    quietest.destroy()
    return true
  }

  /**
   * Waits until all connections that clients have made are accepted (one a tick). Closing the
   * listener would reset them.
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
      const unbegun = this.#unbegun()
      for (const connection of this.#bySocket.values()) connection.closeIdle(unbegun)
      await sleep(DRAIN_CHECK_MS)
      // After a long tick, timers run before the data is read that has come in meanwhile.
      await yieldTick()
    }
    for (const socket of this.#bySocket.keys()) cutOff(socket)
    return this.#bySocket.size
  }

  /**
   * The sockets on which no request has begun since the last one. Node has no list of them, but
   * `closeIdleConnections` calls their `destroy`. During that call `destroy` only notes the socket:
   * closing it could cut off a response that still leaves.
   */
  #unbegun(): ReadonlySet<Socket> {
    const found = new Set<Socket>()
    for (const socket of this.#bySocket.keys()) {
      socket.destroy = () => {
        found.add(socket)
        return socket
      }
    }
    this.closeUnbegun()
    for (const socket of this.#bySocket.keys()) Reflect.deleteProperty(socket, 'destroy')
    return found
  }
}

/**
 * A server with bounded connections. Each failure of Node's parser is answered with an Error. When
 * full it refuses a new connection, or closes the quietest one.
 */
export function createHttpServer(
  connections: Connections,
  maxConnections: number,
  whenFull: 'refuse' | 'closeQuietest' = 'refuse',
): Server {
  const { timeouts } = connections
  const server = createServer({
    IncomingMessage: DirectRequest,
    ServerResponse: canSendWhole() ? WholeResponse : ServerResponse,
    maxHeaderSize: HEADERS_MAX_BYTES,
    // Not left to NODE_OPTIONS: a lenient parser lets requests be smuggled.
    insecureHTTPParser: false,
    keepAliveTimeout: timeouts.keepAliveMs,
    headersTimeout: timeouts.headersMs,
    // Checked by Clock, which knows what the client waits for.
    requestTimeout: 0,
    connectionsCheckingInterval: connections.watch.everyMs,
    // Checked by the router, which answers in the Error shape.
    requireHostHeader: false,
  })
  // A list of tiny headers takes thirty times their bytes, whole or not.
  server.maxHeadersCount = HEADERS_MAX_COUNT
  // A client that has sent its requests and ended its side still gets the responses. Node's types
  // do not have the property.
  Object.assign(server, { httpAllowHalfOpen: true })
  if (whenFull === 'refuse') server.maxConnections = maxConnections
  server.on('connection', (socket: Socket) => {
    const hasRoom = whenFull === 'refuse' || connections.size < maxConnections
    if (hasRoom || connections.closeQuietest()) connections.accept(socket)
    else socket.destroy()
  })
  server.on('drop', () => connections.refused++)
  connections.closeUnbegun = () => server.closeIdleConnections()
  for (const event of ['request', 'checkContinue', 'checkExpectation']) {
    server.on(event, (req: IncomingMessage, res: ServerResponse) => {
      connections.get(req.socket)?.enter(new Exchange(req, res))
    })
  }
  server.on('connect', (req: IncomingMessage) => {
    const condition = isKnownVersion(req) ? 'methodUnknown' : 'malformedRequest'
    const error = new HttpError(hasTooManyHeaders(req) ? 'headersTooLarge' : condition)
    connections.get(req.socket)?.refuseConnect(error, recordOf(req.method, req.rawHeaders))
  })
  server.on('clientError', (error: NodeJS.ErrnoException, stream: Duplex) => {
    handleClientError(connections, error, stream)
  })
  return server
}

function handleClientError(
  connections: Connections,
  error: NodeJS.ErrnoException,
  stream: Duplex,
): void {
  // Node types a plain socket as Duplex here.
  const isUsed = stream instanceof Socket && stream.bytesRead > 0
  const connection = isUsed ? connections.get(stream) : undefined
  if (connection && error.code === 'ERR_HTTP_REQUEST_TIMEOUT') connection.headersLate()
  else if (connection && error.code === 'HPE_HEADER_OVERFLOW') {
    connection.fail(new HttpError('headersTooLarge'))
  } else if (connection && error.code?.startsWith('HPE_')) {
    connection.fail(new HttpError('malformedRequest'))
  } else {
    // The connection itself has failed, or its client has never sent anything.
    stream.destroy()
  }
}
