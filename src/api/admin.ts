/* The listener for operators: no tokens, no plants. */

import type { Server } from 'node:http'
import { escaped, HttpError } from '../errors.ts'
import type { Responder } from '../http/exchange.ts'
import { errorResponse, type HttpResponse, jsonResponse } from '../http/response.ts'
import { HttpServer } from '../http/server.ts'
import type { Log } from '../telemetry/log.ts'
import { Metrics, METRICS_TYPE } from '../telemetry/metrics.ts'
import { watchProcess } from '../telemetry/process.ts'
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
const MAX_CONNECTIONS = 32

/** A probe takes milliseconds, and the next one must find room soon. */
const TIMEOUTS = { headersTimeout: 5000, requestTimeout: 5000, keepAliveTimeout: 5000 }
const INACTIVE_MS = 10_000

/**
 * The server for operators, which does not listen yet. `metrics` returns all but those of the
 * process, in Prometheus' text format. These are measured until it is closed.
 */
export function adminServer(checks: () => Checks, metrics: () => string, log: Log): Server {
  const processMetrics = new Metrics()
  const paths = new Map([
    ['/livez', () => jsonResponse(200, { status: 'ok' })],
    ['/readyz', () => readyResponse(healthOf(checks()))],
    ['/metrics', () => metricsResponse(metrics() + processMetrics.render())],
    ['/openapi.json', () => ({ status: 200, headers: [], body: Buffer.from(description()) })],
  ])
  const http = new HttpServer(responderOf(paths, log), INACTIVE_MS, TIMEOUTS)
  // With one connection too many, closes the oldest: a probe always gets in.
  http.server.on('connection', () => {
    // The 'close' of one comes too late for the next connection of this tick.
    const open = http.sockets.filter(({ destroyed }) => !destroyed)
    if (open.length > MAX_CONNECTIONS) open[0]?.destroy()
  })
  return http.server.once('close', watchProcess(processMetrics))
}

function responderOf(paths: ReadonlyMap<string, () => HttpResponse>, log: Log): Responder {
  const { status, error } = new HttpError('pathUnknown')
  // The catalogue's message names /plants.
  const message = `Nothing is at this path: see ${[...paths.keys()].join(', ')}.`
  const unknownPath = jsonResponse(status, { error, message })
  return {
    serve({ req: { method, url = '' } }) {
      const respond = paths.get(url.replace(/\?.*$/s, ''))
      if (!respond) return unknownPath
      if (method === 'GET' || method === 'HEAD') return respond()
      throw new HttpError('methodNotAllowed', ['Allow', 'GET, HEAD'])
    },
    timeoutError: () => new HttpError('overloaded', ['Retry-After', '1']),
    responseFailed: () => {},
    explain(error, { requestId }) {
      if (error instanceof HttpError) return errorResponse(error)
      log.error('an admin request failed', { requestId, error })
      return errorResponse(new HttpError('internal'))
    },
    answered: () => {},
    isDraining: () => false,
  }
}

/** 503 if a check fails; the body names every check. */
function readyResponse(health: Health): HttpResponse {
  return jsonResponse(health.status === 'ok' ? 200 : 503, health)
}

function metricsResponse(text: string): HttpResponse {
  return { status: 200, headers: [], body: Buffer.from(text), type: METRICS_TYPE }
}
