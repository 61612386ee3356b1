import { connect, type Socket } from 'node:net'
import { reasonOf } from '../../dist/errors.js'

const HEAD_END = Buffer.from('\r\n\r\n')
/** JSON has no raw line end, so this can only be the end of a chunked body. */
const CHUNKED_END = '\r\n0\r\n\r\n'
const OPENING_BRACE = 0x7b
/** Every read of every socket goes here, and is used before the next one. */
const INCOMING = Buffer.alloc(256 * 1024)

/** One connection, with as much of HTTP as the two servers use. Anything but a 200 is a failure. */
export class Connection {
  readonly #socket: Socket
  #answered: (plants: number) => void = () => {}
  /** The start of headers that are not whole yet. */
  #begun: Buffer | undefined
  /**
   * Bytes of the body that are missing; undefined while headers are read, Infinity for a chunked
   * body.
   */
  #left: number | undefined
  #tail = ''
  #objects = 0
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

  /** `answered` is told how many objects a chunked body had. */
  send(request: string | Buffer, answered: (objects: number) => void): void {
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
      const length = /content-length: (\d+)/i.exec(head)?.[1]
      this.#left = length === undefined ? Infinity : Number(length)
      this.#tail = ''
      this.#objects = 0
    }
    if (this.#left === Infinity) {
      for (const byte of body) if (byte === OPENING_BRACE) this.#objects += 1
      this.#tail = (
        this.#tail + body.toString('latin1', Math.max(0, body.length - CHUNKED_END.length))
      ).slice(-CHUNKED_END.length)
      if (this.#tail === CHUNKED_END) this.#end()
      return
    }
    this.#left -= body.length
    if (this.#left < 0) throw new Error('more came than was asked for')
    if (this.#left === 0) this.#end()
  }

  #end(): void {
    this.#left = undefined
    this.#answered(this.#objects)
  }
}
