/** Sends one request to one member of etcd, and reads its answer, over the HTTP/JSON gateway. */
import { Agent, request } from 'node:http'
import { Agent as TlsAgent, request as tlsRequest } from 'node:https'
import { setImmediate as nextTick } from 'node:timers/promises'
import type { EtcdTls } from './tls.ts'
import { stringOf } from './wire.ts'

/** A body and its length. */
export type EtcdAnswer = { readonly body: unknown; readonly bytes: number }

interface Attempt {
  readonly url: string
  readonly message: unknown
  /** Empty if the cluster asks for none. */
  readonly token: string
  readonly timeoutMs: number
  /** A longer answer, or one that is still arriving after `timeoutMs`, is AnswerTooLong. */
  readonly maxBytes: number
}

/** Reading 1 MiB of small plants takes 8 ms, so only one answer above this is read in a tick. */
const SHORT_BYTES = 64 * 1024
/** Of an error message of etcd. */
const MESSAGE_MAX_CHARS = 200
/** Status 429 also means a full database or a message that is too large; these do not pass. */
const OVERLOADED = /too many requests/
/** A stopping member cancels the calls of its gateway: 408 up to etcd 3.5, 499 from 3.6. */
const CANCELED: readonly number[] = [408, 499]
/** The only refusal that is not JSON. */
const COMMON_NAME = /^CommonName of client/

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

export class Gateway {
  readonly #agent: Agent
  readonly #request: typeof request
  #lastRead: Promise<void> = Promise.resolve()

  constructor(isSecure: boolean, tls: EtcdTls) {
    const keepAlive = true
    this.#agent = isSecure ? new TlsAgent({ keepAlive, ...tls }) : new Agent({ keepAlive })
    this.#request = isSecure ? tlsRequest : request
  }

  /** @throws EtcdRefusal, AnswerTooLong, or Error if another attempt may succeed. */
  async ask(attempt: Attempt): Promise<EtcdAnswer> {
    const { status, bytes } = await this.#exchange(attempt)
    // Long answers queue up, one a tick.
    if (bytes.length > SHORT_BYTES) await (this.#lastRead = this.#lastRead.then(() => nextTick()))
    return { body: readBody(status, bytes.toString()), bytes: bytes.length }
  }

  close(): void {
    this.#agent.destroy()
  }

  #exchange({ url, message, token, timeoutMs, maxBytes }: Attempt) {
    const headers = {
      // Without it, a member with --client-cert-auth treats a call without a token as one of the
      // user that the member's own certificate names (AuthInfoFromTLS in etcd's auth/store.go).
      Accept: 'application/json',
      'Content-Type': 'application/json',
      // etcd expects no "Bearer" here.
      ...(token === '' ? {} : { Authorization: token }),
    }
    return new Promise<{ status: number; bytes: Buffer }>((resolve, reject) => {
      const chunks: Buffer[] = []
      let length = 0
      const req = this.#request(url, { method: 'POST', agent: this.#agent, headers }, (res) => {
        res.on('data', (chunk: Buffer) => {
          chunks.push(chunk)
          length += chunk.length
          if (length > maxBytes) fail(new AnswerTooLong())
        })
        res.on('error', reject)
        res.on('end', () => resolve({ status: res.statusCode ?? 0, bytes: Buffer.concat(chunks) }))
      })
      const fail = (error: Error): void => {
        reject(error)
        req.destroy()
      }
      const timer = setTimeout(() => {
        const isArriving = length > 0 && maxBytes < Infinity
        fail(isArriving ? new AnswerTooLong() : new Error(`${url} timed out`))
      }, timeoutMs)
      req.on('error', reject)
      req.on('close', () => clearTimeout(timer))
      req.end(JSON.stringify(message))
    })
  }
}

/** Does not quote a body that is not JSON: a proxy may have written anything into it. */
function readBody(status: number, text: string): unknown {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch {
    if (status === 400 && COMMON_NAME.test(text))
      throw new EtcdRefusal('etcd refuses the client certificate, because it has a CommonName')
    throw new Error(`etcd answered ${status} without JSON`)
  }
  if (status === 200) return body
  // etcd 3.3 has no "message", 3.6 no "error".
  const said = stringOf(body, 'message') || stringOf(body, 'error') || `etcd answered ${status}`
  const message = said.slice(0, MESSAGE_MAX_CHARS)
  const isRefused = status >= 400 && status < 500 && !CANCELED.includes(status)
  throw isRefused && !OVERLOADED.test(message) ? new EtcdRefusal(message) : new Error(message)
}
