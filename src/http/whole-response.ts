import { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'

/**
 * The response object of the service's own server. `sendWhole` sends headers and body with one
 * write. Node's `writeHead` and `end` check and copy each header, and then make a list of writes,
 * the last one empty: a GET takes a fifth longer.
 */
export class WholeResponse<R extends IncomingMessage> extends ServerResponse<R> {
  // Node's types lack them. As Node sets them itself, `end` has nothing to send, but does the rest.
  declare _header: string
  declare _headerSent: boolean

  /**
   * Sends `start`, which is the status line and the headers, and a body. False if that cannot be
   * done now: nothing is sent then.
   */
  sendWhole(status: number, start: string, body: string | Buffer): boolean {
    const { socket } = this
    // Node assigns the socket of a pipelined request after the 'finish' of the response before it.
    if (!socket?.writable || !this.shouldKeepAlive) return false
    // An application that observes Node's servers may set headers. They are not in `start`.
    if (this.getHeaderNames().length > 0) return false
    this.statusCode = status
    this._header = start
    this._headerSent = true
    if (typeof body === 'string') {
      socket.write(start + body, 'latin1')
    } else {
      socket.cork()
      socket.write(start, 'latin1')
      socket.write(body)
      socket.uncork()
    }
    this.end()
    return true
  }
}

let isUsable: boolean | undefined

/**
 * True if this Node sends what `sendWhole` sets as `_header`, and nothing else. A Node that ignored
 * it would send headers of its own too, and clients would take them for the next response.
 */
export function canSendWhole(): boolean {
  return (isUsable ??= ['ab', Buffer.from('ab')].every(isSentOnce))
}

const START = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n'

/** Sends a response on a socket in memory. */
function isSentOnce(body: string | Buffer): boolean {
  let sent = ''
  const write = (chunk: Buffer, _encoding: string, done: () => void): void => {
    sent += chunk.toString('latin1')
    done()
  }
  try {
    // Node uses only what every stream has.
    const socket = new Duplex({ read() {}, write }) as Socket
    const request = new IncomingMessage(socket)
    const response = new WholeResponse(
      Object.assign(request, { httpVersionMajor: 1, httpVersionMinor: 1 }),
    )
    response.assignSocket(socket)
    const isTaken = response.sendWhole(200, START, body)
    while (socket.writableCorked > 0) socket.uncork()
    return isTaken && response.writableEnded && sent === START + body.toString()
  } catch {
    return false
  }
}
