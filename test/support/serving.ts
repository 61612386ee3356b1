import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type RequestListener, type Server } from 'node:http'
import type { ServerResponse } from 'node:http'
import type { Http2Server } from 'node:http2'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'

/** Makes a server listen until the test ends. Returns its port. */
export async function listening(t: TestContext, server: Server | Http2Server): Promise<number> {
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => {
    if ('closeAllConnections' in server) server.closeAllConnections()
    server.close()
  })
  // It listens on TCP.
  return (server.address() as AddressInfo).port
}

/** Starts a server of a test, such as an issuer. Returns its URL. */
export async function serving(t: TestContext, listener: RequestListener): Promise<string> {
  return `http://127.0.0.1:${await listening(t, createServer(listener))}`
}

/** Calls `begin` with each request and its response when Node announces them. */
export function onRequestStart(
  t: TestContext,
  begin: (req: IncomingMessage, res: ServerResponse) => unknown,
): void {
  const listener = (message: unknown): void => {
    // As Node documents the channel.
    const { request, response } = message as { request: IncomingMessage; response: ServerResponse }
    begin(request, response)
  }
  subscribe('http.server.request.start', listener)
  t.after(() => unsubscribe('http.server.request.start', listener))
}
