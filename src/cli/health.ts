/* `health`: whether the service that has these settings answers. */

import { once } from 'node:events'
import { type IncomingMessage, request } from 'node:http'
import { connect } from 'node:net'
import { addressText } from '../http/listen.ts'
import { readWithoutKeys } from './settings.ts'
import { variableOf } from '../settings/table.ts'

const TIMEOUT_MS = 2000

/** Does not ask whether it is ready: a restart does not bring back an issuer or a disk. */
export async function run(): Promise<string> {
  const { listen, adminListen } = readWithoutKeys(process.env, 'ignored')
  const isOff = adminListen === 'off'
  const address = isOff ? listen : adminListen
  const signal = AbortSignal.timeout(TIMEOUT_MS)
  // The service listens there too, also on a kernel without IPv6.
  const host = 'host' in address && address.host === '::' ? { host: '127.0.0.1' } : {}
  const socket = connect({ ...address, ...host, signal })
  try {
    if ('port' in address && address.port === 0)
      throw new Error('a free port is another one each time')
    await once(socket, 'connect')
    if (isOff) return 'ok'
    const req = request({ path: '/livez', createConnection: () => socket, signal }).end()
    // A client's 'response' has one argument.
    const [response] = (await once(req, 'response')) as [IncomingMessage]
    if (response.statusCode === 200) return 'ok'
    throw new Error(`it answered ${response.statusCode}`)
  } catch (cause) {
    const variable = variableOf(isOff ? 'listen' : 'adminListen')
    throw new Error(`${variable}: ${addressText(address)} does not answer`, { cause })
  } finally {
    socket.destroy()
  }
}
