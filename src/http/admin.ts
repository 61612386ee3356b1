import { createServer, type Server } from 'node:http'
import { Problem } from '../errors.ts'
import { type Answer, jsonAnswer, problemAnswer, sendPlain } from './respond.ts'

/** Each thing that the service needs, with what is wrong with it at the moment; undefined where nothing is. */
export type Checks = () => Readonly<Record<string, string | undefined>>

/** A server for those who operate the service, apart from the one for plants: no tokens, no plants. */
export function createAdminServer(checks: Checks): Server {
  return createServer({ maxHeaderSize: 16 * 1024 }, (req, res) => {
    sendPlain(res, answer(req.method ?? '', (req.url ?? '').replace(/\?.*$/s, ''), checks))
  })
}

function answer(method: string, path: string, checks: Checks): Answer {
  if (path !== '/livez' && path !== '/readyz') return problemAnswer(new Problem('pathUnknown'))
  if (method !== 'GET' && method !== 'HEAD') return problemAnswer(new Problem('methodNotAllowed', ['Allow', 'GET, HEAD']))
  if (path === '/livez') return jsonAnswer(200, { status: 'ok' })
  const found = Object.entries(checks())
  const ready = found.every(([, trouble]) => trouble === undefined)
  return jsonAnswer(ready ? 200 : 503, {
    status: ready ? 'ok' : 'unavailable',
    checks: Object.fromEntries(found.map(([name, trouble]) => [name, trouble ?? 'ok'])),
  })
}
