import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import { Problem } from '../errors.ts'
import { type Answer, jsonAnswer, problemAnswer, rawAnswer, sendPlain } from './respond.ts'
import { parserProblem } from './server.ts'

/** Each thing that the service needs, with what is wrong with it at the moment; undefined where nothing is. */
export type Checks = Readonly<Record<string, string | undefined>>

/** What is answered to GET, by path. */
export type AdminPaths = ReadonlyMap<string, () => Answer>

/** A server for those who operate the service, apart from the one for plants: no tokens, no plants. */
export function createAdminServer(paths: AdminPaths, onError: (error: unknown) => void): Server {
  const answer = (req: IncomingMessage, res: ServerResponse): void => {
    try {
      sendPlain(res, answerOf(paths, req.method ?? '', (req.url ?? '').replace(/\?.*$/s, '')))
    } catch (error) {
      onError(error)
      sendPlain(res, problemAnswer(new Problem('internal')))
    }
  }
  // A probe that sends no Host is answered all the same.
  const server = createServer({ maxHeaderSize: 16 * 1024, requireHostHeader: false }, answer)
  server.on('checkExpectation', answer)
  server.on('connect', (_req: IncomingMessage, stream: Duplex) => refuse(stream, new Problem('methodUnknown')))
  server.on('clientError', (error: NodeJS.ErrnoException, stream: Duplex) => {
    const problem = error.code === 'ERR_HTTP_REQUEST_TIMEOUT' ? new Problem('requestTimeout') : parserProblem(error)
    if (problem && stream.writable) refuse(stream, problem)
    else stream.destroy()
  })
  return server
}

function refuse(stream: Duplex, problem: Problem): void {
  stream.on('error', () => {})
  stream.end(rawAnswer(problemAnswer(problem)), () => stream.destroy())
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
