import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import { Socket } from 'node:net'
import { Problem } from '../errors.ts'
import { Connection, type ConnectionHost } from './connection.ts'
import { Exchange, isKnownVersion, recordOf } from './exchange.ts'
import { TurnEnd } from './turn.ts'

/** Request line and headers together; Node counts their bytes without the separators. */
const HEADERS_MAX_BYTES = 16 * 1024
/** Longer than a load balancer keeps an idle connection (60 s is usual), so that it is never the server that closes first. */
const KEEP_ALIVE_MS = 65_000
const HEADERS_TIMEOUT_MS = 10_000
const REQUEST_TIMEOUT_MS = 30_000
/** A reader that stalls. */
const STALLED_MS = 30_000
/** Node looks for requests that take too long only every 30 s otherwise. */
const TIMEOUT_CHECK_MS = 1000
/** How often a stop looks which connections it can let go of. */
const DRAIN_CHECK_MS = 25

export interface HttpTimeouts {
  readonly headersMs: number
  readonly requestMs: number
  readonly stalledMs: number
}

const TIMEOUTS: HttpTimeouts = { headersMs: HEADERS_TIMEOUT_MS, requestMs: REQUEST_TIMEOUT_MS, stalledMs: STALLED_MS }

/** The connections of one service, whichever server they come through. */
export class Connections {
  readonly #host: ConnectionHost
  readonly #turnEnd = new TurnEnd()
  readonly #bySocket = new Map<Socket, Connection>()
  /** Connections that were turned away because there were too many. */
  refused = 0

  constructor(host: ConnectionHost) {
    this.#host = host
  }

  /** To be mounted in a `node:http` server. */
  readonly handler: RequestListener = (req: IncomingMessage, res: ServerResponse) => {
    this.of(req.socket).enter(new Exchange(req, res))
  }

  /** A socket that is first heard of through a request is of somebody else's server, which bounds how long a reader may stand still. */
  of(socket: Socket, stalledMs?: number): Connection {
    const known = this.#bySocket.get(socket)
    if (known) return known
    const connection = new Connection(socket, this.#host, this.#turnEnd, stalledMs)
    this.#bySocket.set(socket, connection)
    socket.once('close', () => this.#bySocket.delete(socket))
    return connection
  }

  get size(): number {
    return this.#bySocket.size
  }

  /** Requests that are being answered, or wait for it. */
  get active(): number {
    return [...this.#bySocket.values()].reduce((sum, connection) => sum + connection.active, 0)
  }

  /** Lets go of every connection, each once its requests are answered, and of what is left behind the deadline: gives their number. */
  async drain(timeoutMs: number): Promise<number> {
    const deadline = performance.now() + timeoutMs
    while (this.#bySocket.size > 0 && performance.now() < deadline) {
      for (const [socket, connection] of this.#bySocket) if (connection.closeIdle()) this.#bySocket.delete(socket)
      await sleep(DRAIN_CHECK_MS)
      // Behind a busy stretch timers run first: what came in meanwhile is read only then.
      await nextTurn()
    }
    for (const socket of this.#bySocket.keys()) socket.destroy()
    return this.#bySocket.size
  }
}

/** A server of the project's own: bounded, and every failure of Node's parser answered in the Error shape. */
export function createHttpServer(connections: Connections, maxConnections: number, timeouts: HttpTimeouts = TIMEOUTS): Server {
  const server = createServer({
    maxHeaderSize: HEADERS_MAX_BYTES,
    keepAliveTimeout: KEEP_ALIVE_MS,
    headersTimeout: timeouts.headersMs,
    requestTimeout: timeouts.requestMs,
    connectionsCheckingInterval: Math.min(TIMEOUT_CHECK_MS, timeouts.headersMs),
    // Checked by the router, which answers in the Error shape.
    requireHostHeader: false,
  })
  // Bounded by their size alone: Node drops what is beyond a number silently, a second Authorization included.
  server.maxHeadersCount = 0
  server.maxConnections = maxConnections
  // A client that has sent its requests and closes its side still gets the answers. Node's types do not know the property.
  Object.assign(server, { httpAllowHalfOpen: true })
  server.on('connection', (socket: Socket) => connections.of(socket, timeouts.stalledMs))
  server.on('drop', () => connections.refused++)
  server.on('request', connections.handler)
  server.on('checkContinue', connections.handler)
  server.on('checkExpectation', connections.handler)
  server.on('connect', (req: IncomingMessage, stream: Duplex) => {
    // Node types a plain socket as Duplex here.
    if (!(stream instanceof Socket)) return
    const connection = connections.of(stream)
    connection.adopt()
    connection.fail(new Problem(isKnownVersion(req) ? 'methodUnknown' : 'malformedRequest'), recordOf(req.method, req.rawHeaders))
  })
  server.on('clientError', (error: NodeJS.ErrnoException, stream: Duplex) => {
    const problem = parserProblem(error)
    if (!(stream instanceof Socket) || stream.bytesRead === 0) stream.destroy()
    else if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT') connections.of(stream).expire()
    else if (problem) connections.of(stream).fail(problem)
    else stream.destroy()
  })
  return server
}

/** What a failure of Node's parser means to the client; undefined where the connection itself failed. */
export function parserProblem(error: NodeJS.ErrnoException): Problem | undefined {
  if (error.code === 'HPE_HEADER_OVERFLOW') return new Problem('headersTooLarge')
  return error.code?.startsWith('HPE_') ? new Problem('malformedRequest') : undefined
}
