import type { Server } from 'node:http'
import { Problem } from '../errors.ts'
import type { HttpTimeouts } from './clock.ts'
import type { ConnectionHost } from './connection.ts'
import { type Answer, jsonAnswer, problemAnswer } from './respond.ts'
import { Connections, createHttpServer } from './server.ts'

/** Each thing that the service needs, with what is wrong with it at the moment; undefined where nothing is. */
export type Checks = Readonly<Record<string, string | undefined>>

/** What is answered to GET, by path. */
export type AdminPaths = ReadonlyMap<string, () => Answer>

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
      if (error instanceof Problem) return problemAnswer(error)
      onError(error)
      return problemAnswer(new Problem('internal'))
    },
    answered: () => {},
    accepted: () => {},
    holdAnswer: () => () => {},
    draining: false,
  }
  return createHttpServer(new Connections(host, TIMEOUTS), maxConnections, 'closeQuietest')
}

function answerOf(paths: AdminPaths, method: string, path: string): Answer {
  const make = paths.get(path)
  if (!make) return problemAnswer(new Problem('pathUnknown'))
  if (method !== 'GET' && method !== 'HEAD') return problemAnswer(new Problem('methodNotAllowed', ['Allow', 'GET, HEAD']))
  return make()
}

/** The process answers. */
export function livez(): Answer {
  return jsonAnswer(200, { status: 'ok' })
}

/** Every check by name, with what is wrong; 503 while anything is. */
export function readyz(checks: Checks): Answer {
  const found = Object.entries(checks)
  const ready = found.every(([, trouble]) => trouble === undefined)
  return jsonAnswer(ready ? 200 : 503, {
    status: ready ? 'ok' : 'unavailable',
    checks: Object.fromEntries(found.map(([name, trouble]) => [name, trouble ?? 'ok'])),
  })
}

export function textAnswer(text: string, type: string): Answer {
  return { status: 200, headers: [], body: Buffer.from(text), type }
}
