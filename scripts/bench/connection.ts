import { connect, type Socket } from 'node:net'
import { reasonOf } from '../../dist/errors.js'

const HEAD_END = Buffer.from('\r\n\r\n')
/** Every read of every socket goes here, and is used before the next one. */
const INCOMING = Buffer.alloc(256 * 1024)

/** One connection, with as much of HTTP as the two servers use. Anything but a 200 is a failure. */
export class Connection {
  readonly #socket: Socket
  #answered: () => void = () => {}
  /** The start of headers that are not whole yet. */
  #begun: Buffer | undefined
  /** Bytes of the body that are missing; undefined while headers are read. */
  #left: number | undefined
  #done = false

  constructor(port: number, ready: () => void, failed: (error: Error) => void) {
    this.#socket = connect({
      host: '127.0.0.1',
      port,
      noDelay: true,
      onread: { buffer: INCOMING, callback: (count) => this.#read(count, failed) },
    })
    this.#socket.once('connect', ready)
    this.#socket.on('error', failed)
    this.#socket.on('close', () => {
      if (!this.#done) failed(new Error('the server closed a connection'))
    })
  }

  send(request: string | Buffer, answered: () => void): void {
    this.#answered = answered
    if (typeof request === 'string') this.#socket.write(request, 'latin1')
    else this.#socket.write(request)
  }

  close(): void {
    this.#done = true
    this.#socket.destroy()
  }

  #read(count: number, failed: (error: Error) => void): boolean {
    try {
      this.#take(INCOMING.subarray(0, count))
    } catch (error) {
      failed(new Error(reasonOf(error)))
    }
    return true
  }

  #take(bytes: Buffer): void {
    let body = bytes
    if (this.#left === undefined) {
      const whole = this.#begun ? Buffer.concat([this.#begun, bytes]) : bytes
      const end = whole.indexOf(HEAD_END)
      if (end < 0) {
        this.#begun = Buffer.from(whole)
        return
      }
      this.#begun = undefined
      const head = whole.toString('latin1', 0, end)
      body = whole.subarray(end + HEAD_END.length)
      if (!head.startsWith('HTTP/1.1 200 '))
        throw new Error(
          `an answer under load: ${head.slice(0, 60)} ${body.toString('utf8').slice(0, 200)}`,
        )
      this.#left = Number(/content-length: (\d+)/i.exec(head)?.[1])
    }
    this.#left -= body.length
    if (!(this.#left >= 0)) throw new Error('no length, or more came than was asked for')
    if (this.#left > 0) return
    this.#left = undefined
    this.#answered()
  }
}
