/** Sends calls to members of etcd, and reads their answers: gRPC over HTTP/2. */
import type { OutgoingHttpHeaders } from 'node:http'
import { type ClientHttp2Session, connect, constants } from 'node:http2'
import { setImmediate as nextTick } from 'node:timers/promises'
import type { EtcdTls } from './tls.ts'

interface Attempt {
  readonly path: string
  readonly message: Buffer
  /** Empty if the cluster asks for none. */
  readonly token: string
  readonly timeoutMs: number
  /** A longer answer, or one that is still arriving after `timeoutMs`, is AnswerTooLong. */
  readonly maxBytes: number
}

/** The headers and trailers of an answer, as far as they are read. */
interface Said {
  readonly ':status'?: number
  readonly 'grpc-status'?: string
  readonly 'grpc-message'?: string
}

/** Reading 512 KiB of small plants takes 7 ms: only one answer above this is read in a tick. */
const SHORT_BYTES = 64 * 1024
/** Of an error message of etcd. */
const MESSAGE_MAX_CHARS = 200
/** Before each message: whether it is compressed (1 byte), and its length (4 bytes). */
const PREFIX_BYTES = 5
const MIB = 2 ** 20
const SESSION = {
  // What etcd may send before it waits for a round trip: of one answer, and of all. A plant has 16
  // MiB at most. Node's default is 64 KiB for all together.
  settings: { initialWindowSize: 16 * MIB, enablePush: false },
  // Node 22 and later refuse calls while more than this is to be sent, 10 MB by default. All 64
  // slots may send a plant.
  maxSessionMemory: 1024,
}
const ALL_ANSWERS_WINDOW_BYTES = 64 * MIB

const OK = '0'
/**
 * The codes by which etcd says that it would refuse the call again (google.golang.org/grpc/codes).
 * All others may pass: canceled (1, a member is stopping), unavailable (14), and the rest.
 */
const REFUSALS: ReadonlySet<number> = new Set([3, 5, 6, 7, 8, 9, 10, 11, 16])
/** Code 8 also means a full database or a message that is too large; these do not pass. */
const OVERLOADED = /too many requests/

export const DENIED = /permission denied/

/** etcd refused a call, and would refuse it again. */
export class EtcdRefusal extends Error {
  /** If false, an earlier attempt of this call failed, and etcd may still carry it out. */
  readonly isFirstAttempt: boolean

  constructor(message: string, isFirstAttempt = true) {
    super(message)
    this.isFirstAttempt = isFirstAttempt
  }
}
EtcdRefusal.prototype.name = 'EtcdRefusal'

export function isRefusal(error: unknown, message: RegExp): error is EtcdRefusal {
  return error instanceof EtcdRefusal && message.test(error.message)
}

/** The answer is longer than the caller accepts, or than the network transfers in time. */
export class AnswerTooLong extends Error {}
AnswerTooLong.prototype.name = 'AnswerTooLong'

/** The connections to members: one to each that was called. */
export class Channels {
  readonly #tls: EtcdTls
  readonly #channels = new Set<Channel>()
  #lastRead: Promise<void> = Promise.resolve()

  constructor(tls: EtcdTls) {
    this.#tls = tls
  }

  /**
   * Returns the message of the answer. `endpoint` is the origin of a member.
   * @throws EtcdRefusal, AnswerTooLong, or Error if another attempt may succeed.
   */
  async ask(endpoint: string, attempt: Attempt): Promise<Buffer> {
    const message = await this.#channelTo(endpoint).ask(attempt)
    // Long answers queue up, one a tick.
    if (message.length > SHORT_BYTES) await (this.#lastRead = this.#lastRead.then(() => nextTick()))
    return message
  }

  /** Fails the calls that are running. */
  close(): void {
    for (const channel of this.#channels) channel.end()
  }

  #channelTo(endpoint: string): Channel {
    for (const channel of this.#channels)
      if (channel.endpoint === endpoint && channel.isOpen) return channel
    const channel = new Channel(endpoint, this.#tls, () => this.#channels.delete(channel))
    this.#channels.add(channel)
    return channel
  }
}

/**
 * One connection to a member. After a call that timed out it may be dead without a sign: it takes
 * no more calls, and ends with the last one that it has.
 */
class Channel {
  readonly endpoint: string
  readonly #session: ClientHttp2Session
  /** Ends the socket at once. The session itself would first send what waits, perhaps for ever. */
  readonly #socket = new AbortController()
  #calls = 0

  constructor(endpoint: string, tls: EtcdTls, onClose: () => void) {
    this.endpoint = endpoint
    // Node's types lack the signal, which `net.connect` and `tls.connect` take.
    const options = { ...tls, ...SESSION, signal: this.#socket.signal }
    const session = connect(endpoint, options)
    this.#session = session
    session.on('connect', () => session.setLocalWindowSize(ALL_ANSWERS_WINDOW_BYTES))
    // Its calls report it.
    session.on('error', () => {})
    session.on('close', onClose)
    // An idle connection keeps no process alive. A call does, by its timer.
    session.unref()
  }

  get isOpen(): boolean {
    return !this.#session.closed && !this.#session.destroyed
  }

  end(): void {
    this.#socket.abort()
  }

  /** @throws as `Channels.ask`. */
  async ask(attempt: Attempt): Promise<Buffer> {
    this.#calls += 1
    let timer: NodeJS.Timeout | undefined
    try {
      const stream = this.#session.request(headersOf(attempt))
      return await new Promise((resolve, reject) => {
        const { timeoutMs, maxBytes } = attempt
        const chunks: Buffer[] = []
        let length = 0
        let said: Said = {}
        const fail = (error: Error): void => {
          reject(error)
          stream.close(constants.NGHTTP2_CANCEL)
        }
        timer = setTimeout(() => {
          this.#session.close()
          const isArriving = length > 0 && maxBytes < Infinity
          fail(isArriving ? new AnswerTooLong() : new Error(`${this.endpoint} timed out`))
        }, timeoutMs)
        // A refusal has no trailers: what they would say is among the headers.
        const hear = (heard: Said): void => void (said = { ...said, ...heard })
        stream.on('response', hear).on('trailers', hear)
        stream.on('data', (chunk: Buffer) => {
          chunks.push(chunk)
          length += chunk.length
          if (length > maxBytes) fail(new AnswerTooLong())
        })
        stream.on('error', reject)
        stream.on('close', () => {
          try {
            checkStatus(said)
            resolve(messageOf(Buffer.concat(chunks)))
          } catch (error) {
            reject(error)
          }
        })
        stream.end(framed(attempt.message))
      })
    } finally {
      clearTimeout(timer)
      this.#calls -= 1
      if (this.#calls === 0 && !this.isOpen) this.end()
    }
  }
}

function headersOf({ path, token }: Attempt): OutgoingHttpHeaders {
  const headers = { ':method': 'POST', ':path': path, 'content-type': 'application/grpc' }
  return { ...headers, te: 'trailers', ...(token === '' ? {} : { token }) }
}

/** @throws EtcdRefusal, or Error if another attempt may succeed. */
function checkStatus(said: Said): void {
  const { ':status': http, 'grpc-status': status, 'grpc-message': text } = said
  // A body that is not of gRPC is not quoted: a proxy may have written anything into it.
  if (http !== 200 || typeof status !== 'string')
    throw new Error(`etcd answered ${http ?? 'nothing, or only in part'}, without a gRPC status`)
  if (status === OK) return
  const code = Number(status)
  // etcd's messages have no characters that gRPC would encode.
  const message = (text || `etcd answered with code ${code}`).slice(0, MESSAGE_MAX_CHARS)
  const isRefused = REFUSALS.has(code) && !OVERLOADED.test(message)
  throw isRefused ? new EtcdRefusal(message) : new Error(message)
}

function framed(message: Buffer): Buffer {
  const prefix = Buffer.alloc(PREFIX_BYTES)
  prefix.writeUInt32BE(message.length, 1)
  return Buffer.concat([prefix, message])
}

/** @throws Error unless the bytes are one message that is not compressed. */
function messageOf(bytes: Buffer): Buffer {
  const message = bytes.subarray(PREFIX_BYTES)
  if (bytes.length >= PREFIX_BYTES && bytes[0] === 0 && bytes.readUInt32BE(1) === message.length)
    return message
  throw new Error("the answer is not etcd's: it is not one message")
}
