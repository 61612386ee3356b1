import type { Server } from 'node:http'
import { escaped, HttpError } from '../errors.ts'
import type { HttpTimeouts } from '../http/clock.ts'
import type { Exchange } from '../http/exchange.ts'
import { type Address, listen, type Listener } from '../http/listen.ts'
import type { Responder } from '../http/responder.ts'
import { errorResponse, type HttpResponse, jsonResponse } from '../http/response.ts'
import { Connections, createHttpServer } from '../http/server.ts'
import { overloaded } from '../ops/budget.ts'
import type { Step } from '../ops/lifecycle.ts'
import type { Log } from '../ops/log.ts'
import { Metrics, METRICS_TYPE } from '../ops/metrics.ts'
import { addProcessMetrics, watchEventLoop } from '../ops/process.ts'
import { description } from './description.ts'

/** For each thing that the service needs: why it is unavailable, or undefined. */
export type Checks = Readonly<Record<'service' | 'keys' | 'storage', string | undefined>>

/** What `/readyz` answers. */
export interface Health {
  /** `ok` if all checks are. */
  readonly status: 'ok' | 'unavailable'
  /** `ok`, or why the service, its keys or its storage is not available. */
  readonly checks: Readonly<Record<keyof Checks, string>>
}

export function healthOf({ service = 'ok', keys = 'ok', storage = 'ok' }: Checks): Health {
  // A reason may quote what an issuer or etcd sent.
  const checks = { service, keys: escaped(keys), storage: escaped(storage) }
  const isReady = Object.values(checks).every((check) => check === 'ok')
  return { status: isReady ? 'ok' : 'unavailable', checks }
}

/** Few, because the store needs file descriptors too. */
export const ADMIN_MAX_CONNECTIONS = 32

/** A probe takes milliseconds, and the next one must find room soon. */
const TIMEOUTS: HttpTimeouts = {
  headersMs: 5000,
  keepAliveMs: 5000,
  requestMs: 5000,
  servingMs: 5000,
  stalledMs: 5000,
}

/** The listener for operators: no tokens, no plants. */
export class Admin {
  readonly #server: Server
  readonly #stopWatching: () => void
  #listener: Listener | undefined

  /** `metrics` returns all but those of the process, in Prometheus' text format. */
  constructor(checks: () => Checks, metrics: () => string, log: Log) {
    const processMetrics = new Metrics()
    addProcessMetrics(processMetrics)
    this.#stopWatching = watchEventLoop(processMetrics)
    const paths = new Map([
      ['/livez', () => jsonResponse(200, { status: 'ok' })],
      ['/readyz', () => readyResponse(checks())],
      ['/metrics', () => metricsResponse(metrics() + processMetrics.render())],
      ['/openapi.json', () => ({ status: 200, headers: [], body: Buffer.from(description()) })],
    ])
    const connections = new Connections(responderOf(paths, log), TIMEOUTS)
    this.#server = createHttpServer(connections, ADMIN_MAX_CONNECTIONS, 'closeQuietest')
  }

  /** Returns the address as a URL or `unix:` path. @throws ListenFailed */
  async listen(address: Address, option: string): Promise<string> {
    this.#listener = await listen(this.#server, address, option)
    return this.#listener.url
  }

  get closeSteps(): readonly Step[] {
    return [
      ['stop watching the event loop', () => this.#stopWatching()],
      ['accept no more on the admin listener', () => this.#listener?.stop()],
      ['close the connections of the admin listener', () => this.#server.closeAllConnections()],
      ['close the admin server', () => this.#server.close()],
    ]
  }
}

function responderOf(paths: ReadonlyMap<string, () => HttpResponse>, log: Log): Responder {
  const { status, error } = new HttpError('pathUnknown')
  // The catalogue's message names /plants.
  const message = `There is nothing at this path: see ${[...paths.keys()].join(', ')}.`
  const unknownPath = jsonResponse(status, { error, message })
  return {
    serve({ method, req }: Exchange) {
      const respond = paths.get((req.url ?? '').replace(/\?.*$/s, ''))
      if (!respond) return unknownPath
      if (method === 'GET' || method === 'HEAD') return respond()
      throw new HttpError('methodNotAllowed', ['Allow', 'GET, HEAD'])
    },
    timeoutError: () => overloaded(),
    responseFailed: () => {},
    explain(error, { requestId }) {
      if (error instanceof HttpError) return errorResponse(error)
      log.error('an admin request failed', { requestId, error })
      return errorResponse(new HttpError('internal'))
    },
    answered: () => {},
    accepted: () => {},
    holdResponse: () => ({ set() {}, grow: () => true }),
    draining: false,
  }
}

/** 503 if a check fails; the body names every check. */
function readyResponse(checks: Checks): HttpResponse {
  const health = healthOf(checks)
  return jsonResponse(health.status === 'ok' ? 200 : 503, health)
}

function metricsResponse(text: string): HttpResponse {
  return { status: 200, headers: [], body: Buffer.from(text), type: METRICS_TYPE }
}
