/* Where a server listens: TCP addresses, and files of unix sockets. */

import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { chmodSync, linkSync, lstatSync, renameSync, unlinkSync } from 'node:fs'
import type { Server } from 'node:http'
import { type AddressInfo, connect, Server as NetServer } from 'node:net'
import { errorCodeOf, reasonOf } from '../errors.ts'

/** Where a server listens. The path is absolute, and SOCKET_PATH_MAX_BYTES long at most. */
export type Address = { readonly host: string; readonly port: number } | { readonly path: string }

/** The server cannot listen; the message names the option and the address, and says what to do. */
export class ListenFailed extends Error {}
ListenFailed.prototype.name = 'ListenFailed'

export interface Listener {
  /** The address as a URL or `unix:` path. */
  readonly url: string
  /** Accepts no more, and removes the socket file if it is still this listener's own. */
  stop(): void
}

/**
 * `sockaddr_un` holds 107 bytes and a final 0. Node 20 cuts off a longer path without an error. A
 * temporary path has a dot and 8 hex digits more.
 */
export const SOCKET_PATH_MAX_BYTES = 107 - 9

/**
 * Makes a server listen. A stale socket file is replaced; one that a process listens on is not.
 * `option` is the name that the caller has for the address: an option or a variable. `mode` is that
 * of a socket file, in octal.
 * @throws ListenFailed
 */
export async function listen(server: Server, address: Address, option: string, mode: string) {
  try {
    if ('path' in address) return await listenOnPath(server, address.path, mode)
    await listenOnTcp(server, address)
  } catch (error) {
    stopAccepting(server)
    throw listenFailed(error, address, option)
  }
  // It listens on TCP.
  const { address: host, port } = server.address() as AddressInfo
  return { url: `http://${addressText({ host, port })}`, stop: () => stopAccepting(server) }
}

/** `::` is every address: on a kernel without IPv6, those of IPv4. */
async function listenOnTcp(server: Server, address: { host: string; port: number }): Promise<void> {
  try {
    await once(server.listen(address), 'listening')
  } catch (error) {
    if (errorCodeOf(error) !== 'EAFNOSUPPORT' || address.host !== '::') throw error
    await once(server.listen({ ...address, host: '0.0.0.0' }), 'listening')
  }
}

/**
 * Binds a temporary path, then links it to `path`. So the mode is right from the first moment; and
 * at a close Node removes the path that it bound, never a later process's socket at `path`.
 */
async function listenOnPath(server: Server, path: string, mode: string): Promise<Listener> {
  const temporary = `${path}.${randomBytes(4).toString('hex')}`
  await once(server.listen(temporary), 'listening')
  const { ino } = lstatSync(temporary)
  chmodSync(temporary, mode)
  await putInPlace(temporary, path)
  return { url: `unix:${path}`, stop: () => stopOnPath(server, path, ino) }
}

/** Accepts no more in any case. @throws Error if the socket file cannot be removed. */
function stopOnPath(server: Server, path: string, ino: number): void {
  try {
    // No other file gets this inode number while the server listens on it.
    const isOwn = server.listening && lstatSync(path, { throwIfNoEntry: false })?.ino === ino
    if (isOwn) unlinkSync(path)
  } finally {
    stopAccepting(server)
  }
}

async function putInPlace(temporary: string, path: string): Promise<void> {
  try {
    linkSync(temporary, path)
    unlinkSync(temporary)
  } catch (error) {
    if (errorCodeOf(error) !== 'EEXIST' || !(await isStale(path))) throw error
    renameSync(temporary, path)
  }
}

/** `http.Server.close` would also destroy connections whose last response is still under way. */
function stopAccepting(server: Server): void {
  NetServer.prototype.close.call(server)
}

/** True if no process listens on the socket. Linux refuses a connection to an ordinary file too. */
async function isStale(path: string): Promise<boolean> {
  const socket = connect(path)
  const failure = await once(socket, 'connect').catch(errorCodeOf)
  socket.destroy()
  if (failure !== 'ECONNREFUSED') return false
  return lstatSync(path, { throwIfNoEntry: false })?.isSocket() === true
}

/** An address as a setting has it. */
export function addressText(address: Address): string {
  if ('path' in address) return `unix:${address.path}`
  const { host, port } = address
  return `${host.includes(':') ? `[${host}]` : host}:${port}`
}

function listenFailed(error: unknown, address: Address, option: string): ListenFailed {
  const what = `${option}: cannot listen on ${addressText(address)}`
  const code = errorCodeOf(error)
  const isPath = 'path' in address
  const other = isPath ? ', or it is no socket' : ''
  const taken = `something listens there already${other}; stop it or choose another address`
  if (code === 'EADDRINUSE' || code === 'EEXIST') return new ListenFailed(`${what}: ${taken}`)
  const host = code === 'EACCES' ? 'a port above 1023' : 'an address of this machine'
  // Node reports a missing folder as EACCES too.
  const place = isPath ? 'a folder that exists, where this user may write' : host
  return new ListenFailed(`${what}: ${reasonOf(error)}; choose ${place}`, { cause: error })
}
