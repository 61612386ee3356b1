import type { Server } from 'node:http'
import { HttpError } from '../errors.ts'
import type { HttpTimeouts } from './clock.ts'
import type { ConnectionHost } from './connection.ts'
import { type HttpResponse, jsonResponse, errorResponse } from './response.ts'
import { Connections, createHttpServer } from './server.ts'

/**
 * Each thing that the service needs, with what is wrong with it at the moment; undefined where
 * nothing is.
 */
export type Checks = Readonly<Record<string, string | undefined>>

/** What is answered to GET, by path. */
export type AdminPaths = ReadonlyMap<string, () => HttpResponse>

/** A probe takes milliseconds. Another one must find room soon. */
const TIMEOUTS: HttpTimeouts = {
  headersMs: 5000,
  keepAliveMs: 5000,
  requestMs: 5000,
  servingMs: 5000,
  stalledMs: 5000,
}

/** A server for operators, apart from the one for plants: no tokens, no plants. */
export function createAdminServer(
  paths: AdminPaths,
  maxConnections: number,
  onError: (error: unknown) => void,
): Server {
  const host: ConnectionHost = {
    serve: ({ method, req }) => answerOf(paths, method, (req.url ?? '').replace(/\?.*$/s, '')),
    explain(error) {
      if (error instanceof HttpError) return errorResponse(error)
      onError(error)
      return errorResponse(new HttpError('internal'))
    },
    answered: () => {},
    accepted: () => {},
    holdResponse: () => () => {},
    draining: false,
  }
  return createHttpServer(new Connections(host, TIMEOUTS), maxConnections, 'closeQuietest')
}

function answerOf(paths: AdminPaths, method: string, path: string): HttpResponse {
  const make = paths.get(path)
  if (!make) return errorResponse(new HttpError('pathUnknown'))
  if (method !== 'GET' && method !== 'HEAD')
    return errorResponse(new HttpError('methodNotAllowed', ['Allow', 'GET, HEAD']))
  return make()
}

/** The process answers. */
export function livez(): HttpResponse {
  return jsonResponse(200, { status: 'ok' })
}

/** Every check by name, with what is wrong; 503 while anything is. */
export function readyz(checks: Checks): HttpResponse {
  const found = Object.entries(checks)
  const ready = found.every(([, unavailableReason]) => unavailableReason === undefined)
  return jsonResponse(ready ? 200 : 503, {
    status: ready ? 'ok' : 'unavailable',
    checks: Object.fromEntries(
      found.map(([name, unavailableReason]) => [name, unavailableReason ?? 'ok']),
    ),
  })
}

export function textResponse(text: string, type: string): HttpResponse {
  return { status: 200, headers: [], body: Buffer.from(text), type }
}
