import { chmodSync, lstatSync, unlinkSync } from 'node:fs'
import type { Server } from 'node:http'
import { connect } from 'node:net'
import type { Address } from '../config.ts'
import { errorCodeOf } from '../errors.ts'

/** The address cannot be listened on; the message says which, and what to do. */
export class ListenFailed extends Error {}

/**
 * Listens, and resolves with the address as a URL or `unix:` path. A socket file that nobody listens on any more is
 * replaced, one that somebody does is not.
 * @throws ListenFailed
 */
export async function listen(server: Server, address: Address): Promise<string> {
  try {
    await listenOnce(server, address)
  } catch (error) {
    if (!('path' in address) || errorCodeOf(error) !== 'EADDRINUSE' || !(await isStale(address.path))) throw explain(error, address)
    unlinkSync(address.path)
    await listenOnce(server, address).catch((again: unknown) => {
      throw explain(again, address)
    })
  }
  // For the owner and the group: whoever may connect still needs a token.
  if ('path' in address) chmodSync(address.path, 0o660)
  const bound = server.address()
  if (typeof bound === 'string' || bound === null) return `unix:${String(bound)}`
  return `http://${bound.family === 'IPv6' ? `[${bound.address}]` : bound.address}:${bound.port}`
}

function listenOnce(server: Server, address: Address): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen('path' in address ? { path: address.path } : { host: address.host, port: address.port }, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

/** Only a refused connection says that nobody listens; Linux refuses one to an ordinary file as well. */
function isStale(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(false)
    })
    socket.once('error', (error) => resolve(errorCodeOf(error) === 'ECONNREFUSED' && lstatSync(path, { throwIfNoEntry: false })?.isSocket() === true))
  })
}

function explain(error: unknown, address: Address): ListenFailed {
  const where = 'path' in address ? `unix:${address.path}` : `${address.host}:${address.port}`
  const code = errorCodeOf(error)
  const what = code === 'EADDRINUSE' ? `another process listens there${'path' in address ? ', or it is no socket' : ''}; stop it or choose another address` : error instanceof Error ? error.message : String(error)
  return new ListenFailed(`cannot listen on ${where}: ${what}`, { cause: error })
}
