import { type IncomingMessage, ServerResponse } from 'node:http'

/**
 * The response object of the service's own server. `sendWhole` does the work of `writeHead` and
 * `end` with one write. Node's own way checks and copies each header, and then makes a list of
 * writes, the last one empty: a GET takes a fifth longer. After 'finish' Node's server goes on as
 * after any response.
 */
export class WholeResponse<R extends IncomingMessage> extends ServerResponse<R> {
  #isSent = false

  /** True once `sendWhole` has sent all, and nothing of it waits in the process. */
  get hasLeft(): boolean {
    return this.#isSent && (this.socket?.writableLength ?? 0) === 0
  }

  /** Sends a head and a body at once. False if that cannot be done now: nothing is sent then. */
  sendWhole(status: number, head: string, body: string | Buffer): boolean {
    const { socket } = this
    // Node assigns the socket of a pipelined request after the 'finish' of the response before it.
    if (!socket?.writable || !this.shouldKeepAlive) return false
    const finish = (error?: Error | null): void => void (error ?? this.emit('finish'))
    this.#isSent = true
    this.statusCode = status
    // As `end` does: Node's server and `writableEnded` look at it.
    this.finished = true
    if (typeof body === 'string') {
      socket.write(head + body, 'latin1', finish)
    } else {
      socket.cork()
      socket.write(head, 'latin1')
      socket.write(body, finish)
      socket.uncork()
    }
    return true
  }
}
