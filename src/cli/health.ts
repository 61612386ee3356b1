/* `health`: whether the service that has these settings answers. */

import { once } from 'node:events'
import { type IncomingMessage, request } from 'node:http'
import { connect } from 'node:net'
import { type Address, addressText } from '../http/listen.ts'
import { readWithoutKeys } from '../settings/read.ts'
import { type Option, variableOf } from '../settings/table.ts'

const TIMEOUT_MS = 2000

/** Does not ask whether it is ready: a restart does not bring back an issuer or a disk. */
export async function run(): Promise<string> {
  const { listen, adminListen } = readWithoutKeys(process.env, 'ignored')
  if (adminListen === 'off') await check('listen', listen, connectTo)
  else await check('adminListen', adminListen, askLive)
  return 'ok'
}

async function check(option: Option, address: Address, ask: typeof askLive): Promise<void> {
  try {
    if ('port' in address && address.port === 0)
      throw new Error('a free port is another one each time')
    await ask(address, AbortSignal.timeout(TIMEOUT_MS))
  } catch (cause) {
    throw new Error(`${variableOf(option)}: ${addressText(address)} does not answer`, { cause })
  }
}

async function askLive(address: Address, signal: AbortSignal): Promise<void> {
  const to = 'path' in address ? { socketPath: address.path } : address
  const req = request({ ...to, path: '/livez', agent: false, signal }).end()
  // A client's 'response' has one argument.
  const [response] = (await once(req, 'response')) as [IncomingMessage]
  req.destroy()
  if (response.statusCode !== 200) throw new Error(`it answered ${response.statusCode}`)
}

async function connectTo(address: Address, signal: AbortSignal): Promise<void> {
  const socket = connect({ ...address, signal })
  await once(socket, 'connect')
  socket.destroy()
}
