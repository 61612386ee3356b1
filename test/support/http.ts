import { type Agent, request } from 'node:http'
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
export function call(target: number | string, options: CallOptions = {}): Promise<Reply> {
  const { method = 'GET', path = '/plants', headers = {}, body, agent = false } = options
  const bearer = 'token' in options ? options.token : token('alice')
  return new Promise((resolve, reject) => {
    const req = request(
      {
        ...(typeof target === 'string'
          ? { socketPath: target }
          : { host: '127.0.0.1', port: target }),
        method,
        path,
        agent,
        headers: {
          ...(bearer === undefined ? {} : { authorization: `Bearer ${bearer}` }),
          ...headers,
        },
      },
      (res) => {
        let text = ''
        res.setEncoding('utf8')
        res.on('data', (chunk: string) => (text += chunk))
        res.on('error', reject)
        res.on('end', () =>
          resolve({
            status: res.statusCode ?? 0,
            headers: res.headers,
            text,
            json: () => JSON.parse(text) as unknown,
          }),
        )
      },
    )
    req.on('error', reject)
    req.end(body)
  })
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
