/** Sends one call to one member of etcd, and reads its answer: gRPC over HTTP/2. */
import { type ClientHttp2Session, connect, constants } from 'node:http2'
import { setImmediate as nextTick } from 'node:timers/promises'
import type { EtcdTls } from './tls.ts'

interface Attempt {
  /** The origin of a member. */
  readonly endpoint: string
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

/** Reading 1 MiB of small plants takes 8 ms, so only one answer above this is read in a tick. */
const SHORT_BYTES = 64 * 1024
/** Of an error message of etcd. */
const MESSAGE_MAX_CHARS = 200
/** Before each message: whether it is compressed (1 byte), and its length (4 bytes). */
const PREFIX_BYTES = 5
/**
 * Node 22 and later refuse calls while a connection has more than this to send, 10 MB by default.
 * All 64 slots may send a plant of 16 MiB.
 */
const SESSION_MAX_MEGABYTES = 1024

const OK = 0
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
  readonly #sessions = new Map<string, ClientHttp2Session>()
  #lastRead: Promise<void> = Promise.resolve()

  constructor(tls: EtcdTls) {
    this.#tls = tls
  }

  /**
   * Returns the message of the answer.
   * @throws EtcdRefusal, AnswerTooLong, or Error if another attempt may succeed.
   */
  async ask(attempt: Attempt): Promise<Buffer> {
    const message = await this.#exchange(attempt)
    // Long answers queue up, one a tick.
    if (message.length > SHORT_BYTES) await (this.#lastRead = this.#lastRead.then(() => nextTick()))
    return message
  }

  close(): void {
    for (const session of this.#sessions.values()) session.destroy()
  }

  #exchange({ endpoint, path, message, token, timeoutMs, maxBytes }: Attempt): Promise<Buffer> {
    const headers = {
      ':method': 'POST',
      ':path': path,
      'content-type': 'application/grpc',
      te: 'trailers',
      ...(token === '' ? {} : { token }),
    }
    return new Promise((resolve, reject) => {
      const session = this.#sessionOf(endpoint)
      const stream = session.request(headers)
      const chunks: Buffer[] = []
      let length = 0
      let said: Said = {}
      const fail = (error: Error): void => {
        reject(error)
        stream.close(constants.NGHTTP2_CANCEL)
      }
      const timer = setTimeout(() => {
        // Its connection may be dead: the next call makes another one.
        session.close()
        const isArriving = length > 0 && maxBytes < Infinity
        fail(isArriving ? new AnswerTooLong() : new Error(`${endpoint}${path} timed out`))
      }, timeoutMs)
      // A refusal has no trailers: what they would say is among the headers.
      for (const event of ['response', 'trailers'])
        stream.on(event, (received: Said) => (said = { ...said, ...received }))
      stream.on('data', (chunk: Buffer) => {
        chunks.push(chunk)
        length += chunk.length
        if (length > maxBytes) fail(new AnswerTooLong())
      })
      stream.on('error', reject)
      stream.on('close', () => {
        clearTimeout(timer)
        try {
          checkStatus(said)
          resolve(messageOf(Buffer.concat(chunks)))
        } catch (error) {
          reject(error)
        }
      })
      stream.end(framed(message))
    })
  }

  #sessionOf(endpoint: string): ClientHttp2Session {
    const open = this.#sessions.get(endpoint)
    if (open && !open.closed && !open.destroyed) return open
    const session = connect(endpoint, { ...this.#tls, maxSessionMemory: SESSION_MAX_MEGABYTES })
    // An idle connection keeps no process alive. A call does, by its timer.
    session.unref()
    // Its calls report it.
    session.on('error', () => {})
    this.#sessions.set(endpoint, session)
    return session
  }
}

/** @throws EtcdRefusal, or Error if another attempt may succeed. */
function checkStatus(said: Said): void {
  const { ':status': http, 'grpc-status': status, 'grpc-message': text } = said
  // A body that is not of gRPC is not quoted: a proxy may have written anything into it.
  if (typeof status !== 'string')
    throw new Error(`etcd answered ${http ?? 'nothing, or only in part'}, without a gRPC status`)
  const code = Number(status)
  if (code === OK) return
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
