import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'

/** Starts a server of a test, such as an issuer. Returns its URL. */
export async function serving(t: TestContext, listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  // It listens on TCP.
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}
