/* An application's server that speaks HTTP/2, and one request to it. */
import { once } from 'node:events'
import type { RequestListener } from 'node:http'
import { connect, createServer, type OutgoingHttpHeaders } from 'node:http2'
import type { TestContext } from 'node:test'
import { text } from 'node:stream/consumers'
import type { WireAnswer } from './response.ts'
import { listening } from './serving.ts'
import { token } from './tokens.ts'

/** Applications pass it on so: JavaScript does not see the difference. */
export function asHttp2(handler: RequestListener): Http2Listener {
  return handler as unknown as Http2Listener
}

type Http2Listener = NonNullable<Parameters<typeof createServer>[1]>

/** Mounts a handler until the test ends. Returns the port. */
export function http2Server(t: TestContext, handler: RequestListener): Promise<number> {
  return listening(t, createServer({}, asHttp2(handler)))
}

/** The answer to one request over HTTP/2. */
export async function askHttp2(
  port: number,
  method: string,
  headers: OutgoingHttpHeaders = {},
  body = '',
): Promise<WireAnswer> {
  const session = connect(`http://127.0.0.1:${port}`)
  try {
    const bearer = { authorization: `Bearer ${token('alice')}` }
    const stream = session.request(
      { ':method': method, ':path': '/plants', ...bearer, ...headers },
      { endStream: body === '' },
    )
    // The server may end the stream before all of the body is sent.
    stream.on('error', () => {})
    if (body !== '') stream.end(body)
    // The event has these parameters.
    const [received] = (await once(stream, 'response')) as [Readonly<Record<string, string>>]
    const { ':status': status, ...own } = received
    const all = Object.entries(own).map(([name, value]) => [name, [String(value)]] as const)
    const answer = { version: '2.0', headers: new Map(all), framing: 'length', interim: 0 } as const
    return { ...answer, status: Number(status), body: await text(stream) }
  } finally {
    session.destroy()
  }
}
