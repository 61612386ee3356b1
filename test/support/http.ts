import { once } from 'node:events'
import { type Agent, type IncomingMessage, request } from 'node:http'
import { text } from 'node:stream/consumers'
import { token } from './tokens.ts'

export interface Reply {
  readonly status: number
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>
  readonly text: string
  /** The body as JSON. @throws if it is not JSON. */
  json(): unknown
}

export interface CallOptions {
  readonly method?: string
  readonly path?: string
  /** Undefined for no token at all. */
  readonly token?: string | undefined
  readonly headers?: Readonly<Record<string, string | readonly string[]>>
  readonly body?: string | Uint8Array
  /** Keeps connections open; by default each request has its own. */
  readonly agent?: Agent
}

/** One request, to a port or a unix socket; with a token of alice's by default. */
export async function call(target: number | string, options: CallOptions = {}): Promise<Reply> {
  const { method = 'GET', path = '/plants', headers: own = {}, body, agent = false } = options
  const bearer = 'token' in options ? options.token : token('alice')
  const place = typeof target === 'string' ? { socketPath: target } : { port: target }
  const headers = { ...(bearer !== undefined && { authorization: `Bearer ${bearer}` }), ...own }
  const req = request({ host: '127.0.0.1', ...place, method, path, agent, headers })
  // What comes after the response is an error of that.
  req.on('error', () => {}).end(body)
  // The event has this parameter.
  const [res] = (await once(req, 'response')) as [IncomingMessage]
  const received = await text(res)
  const json = (): unknown => JSON.parse(received)
  return { status: res.statusCode ?? 0, headers: res.headers, text: received, json }
}

/** Creates a plant from an object, or from JSON text as it is. */
export function post(
  target: number | string,
  plant: unknown,
  options: CallOptions = {},
): Promise<Reply> {
  const body =
    typeof plant === 'string' || plant instanceof Uint8Array ? plant : JSON.stringify(plant)
  return call(target, {
    method: 'POST',
    body,
    ...options,
    headers: { 'content-type': 'application/json', ...options.headers },
  })
}
