import { randomBytes } from 'node:crypto'
import { chmodSync, linkSync, lstatSync, renameSync, unlinkSync } from 'node:fs'
import type { Server } from 'node:http'
import { connect, Server as NetServer } from 'node:net'
import { errorCodeOf } from '../errors.ts'

/** Where a server listens. The path is absolute, and has at most SOCKET_PATH_MAX_BYTES. */
export type Address = { readonly host: string; readonly port: number } | { readonly path: string }

/** The address cannot be listened on; the message says which, and what to do. */
export class ListenFailed extends Error {}

export interface Listener {
  /** The address as a URL or `unix:` path. */
  readonly url: string
  /**
   * Accepts no more, and removes the socket file where it is still this listener's. What was
   * accepted goes on.
   */
  stop(): void
}

/** What follows a socket's path while it is not in place: a dot and 8 hex digits. */
const ASIDE_BYTES = 9
/** `sockaddr_un` holds 108, the last of which is 0. Node 20 silently cuts off what is longer. */
export const SOCKET_PATH_MAX_BYTES = 107 - ASIDE_BYTES

/**
 * Listens. A socket file that nobody listens on any more is replaced, one that somebody does is
 * not.
 * @throws ListenFailed
 */
export async function listen(server: Server, address: Address): Promise<Listener> {
  try {
    if ('path' in address) return await listenOnPath(server, address.path)
    await listenOnce(server, address)
  } catch (error) {
    throw explain(error, address)
  }
  const bound = server.address()
  // It listens on TCP.
  if (typeof bound === 'string' || bound === null) throw new ListenFailed(String(bound))
  return {
    url: `http://${bound.family === 'IPv6' ? `[${bound.address}]` : bound.address}:${bound.port}`,
    stop: () => stopAccepting(server),
  }
}

/**
 * Bound under a name of its own, and linked to the path only then: its mode is right from the first
 * moment, and Node, which removes whatever stands under the name that it bound, never removes the
 * file of somebody who came after.
 */
async function listenOnPath(server: Server, path: string): Promise<Listener> {
  const aside = `${path}.${randomBytes(4).toString('hex')}`
  await listenOnce(server, { path: aside })
  try {
    const { ino } = lstatSync(aside)
    // For the owner and the group: whoever may connect still needs a token.
    chmodSync(aside, 0o660)
    await putInPlace(aside, path)
    return { url: `unix:${path}`, stop: () => stopOnPath(server, path, ino) }
  } catch (error) {
    stopAccepting(server)
    throw error
  }
}

/** @throws Error when the file cannot be removed; no more is accepted all the same. */
function stopOnPath(server: Server, path: string, ino: number): void {
  try {
    // While it is listened on, no other file gets its number.
    const isOwn = server.listening && lstatSync(path, { throwIfNoEntry: false })?.ino === ino
    if (isOwn) unlinkSync(path)
  } finally {
    stopAccepting(server)
  }
}

async function putInPlace(aside: string, path: string): Promise<void> {
  try {
    linkSync(aside, path)
    unlinkSync(aside)
  } catch (error) {
    if (errorCodeOf(error) !== 'EEXIST' || !(await isStale(path))) throw error
    renameSync(aside, path)
  }
}

function listenOnce(server: Server, address: Address): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(address, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

/** Node's own `close` would also destroy connections whose last answer is still on its way. */
function stopAccepting(server: Server): void {
  NetServer.prototype.close.call(server)
}

/**
 * Only a refused connection says that nobody listens; Linux refuses one to an ordinary file as
 * well.
 */
function isStale(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(false)
    })
    socket.once('error', (error) =>
      resolve(
        errorCodeOf(error) === 'ECONNREFUSED' &&
          lstatSync(path, { throwIfNoEntry: false })?.isSocket() === true,
      ),
    )
  })
}

function explain(error: unknown, address: Address): ListenFailed {
  const where = 'path' in address ? `unix:${address.path}` : `${address.host}:${address.port}`
  const code = errorCodeOf(error)
  const taken = code === 'EADDRINUSE' || code === 'EEXIST'
  const what = taken
    ? `another process listens there${'path' in address ? ', or it is no socket' : ''}; stop it or choose another address`
    : error instanceof Error
      ? error.message
      : String(error)
  return new ListenFailed(`cannot listen on ${where}: ${what}`, { cause: error })
}
