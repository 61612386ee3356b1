import { connect, type Socket } from 'node:net'

/** Every read of every socket goes here, and is used before the next one. */
const INCOMING = Buffer.alloc(256 * 1024)

/**
 * One connection, with as much of HTTP as the two servers use. Anything but a 200 is thrown from an
 * event, and so ends the process.
 */
export class Connection {
  readonly #socket: Socket
  #answered: () => void = () => {}
  /** An answer that is not whole yet. */
  #text = ''

  constructor(port: number) {
    const onread = { buffer: INCOMING, callback: (count: number) => this.#take(count) }
    this.#socket = connect({ host: '127.0.0.1', port, noDelay: true, onread })
    this.#socket.on('close', () => {
      throw new Error('the server closed a connection')
    })
  }

  send(request: string, answered: () => void): void {
    this.#answered = answered
    this.#socket.write(request, 'latin1')
  }

  close(): void {
    this.#socket.removeAllListeners('close').destroy()
  }

  #take(count: number): boolean {
    this.#text += INCOMING.toString('latin1', 0, count)
    const headEnd = this.#text.indexOf('\r\n\r\n')
    if (headEnd < 0) return true
    const length = /\r\ncontent-length: (\d+)/i.exec(this.#text)?.[1]
    const missing = headEnd + 4 + Number(length) - this.#text.length
    if (missing > 0) return true
    if (missing !== 0 || !this.#text.startsWith('HTTP/1.1 200 '))
      throw new Error(`an answer under load: ${this.#text.slice(0, 500)}`)
    this.#text = ''
    this.#answered()
    return true
  }
}
