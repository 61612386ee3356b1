import { Agent, type IncomingMessage, request } from 'node:http'
import { Agent as TlsAgent, request as tlsRequest } from 'node:https'
import { setImmediate as nextTick } from 'node:timers/promises'
import type { EtcdTls } from './tls.ts'

export interface EtcdAnswer {
  readonly body: unknown
  readonly bytes: number
}

export interface Question {
  readonly url: string
  /** JSON. */
  readonly text: string
  /** Of the cluster's user; empty where it wants none. */
  readonly token: string
  readonly timeoutMs: number
  /** A longer answer, or one that still comes when the time is over, is given up. */
  readonly maxBytes: number
}

/** Reading 1 MiB of small plants takes 8 ms, so two such answers are not read in one tick. */
const SHORT_BYTES = 64 * 1024
/** Of what etcd says. */
const MESSAGE_MAX_CHARS = 200
/** One status means a full database, a message too large, or an overload, which alone passes. */
const PASSING = /too many requests/
/** Canceled: a stopping member ends what its gateway asks of it. 408 up to 3.5, 499 from 3.6 on. */
const CANCELED: readonly number[] = [408, 499]
/** The only refusal that is not JSON. */
const COMMON_NAME = /^CommonName of client/

/** etcd has refused a call, and would again. */
export class EtcdRefusal extends Error {
  /** Whether no earlier attempt of the call may have done, or may still do, what it asked for. */
  readonly first: boolean

  constructor(message: string, first = true) {
    super(message)
    this.first = first
  }
}

/** The answer is longer than the caller can take, or than comes through in time. */
export class AnswerTooLong extends Error {}

/** One request to one member's HTTP/JSON gateway. */
export class Gateway {
  readonly #agent: Agent
  readonly #request: typeof request
  #lastRead: Promise<void> = Promise.resolve()

  constructor(secure: boolean, tls: EtcdTls) {
    const keepAlive = true
    this.#agent = secure ? new TlsAgent({ keepAlive, ...tls }) : new Agent({ keepAlive })
    this.#request = secure ? tlsRequest : request
  }

  /** @throws EtcdRefusal; AnswerTooLong; Error for what another attempt may have answered. */
  async ask(question: Question): Promise<EtcdAnswer> {
    const { status, bytes } = await this.#exchange(question)
    // Each waits for a tick after the one before it.
    if (bytes.length > SHORT_BYTES) await (this.#lastRead = this.#lastRead.then(() => nextTick()))
    return { body: readAnswer(status, bytes.toString('utf8')), bytes: bytes.length }
  }

  close(): void {
    this.#agent.destroy()
  }

  #exchange(question: Question): Promise<{ readonly status: number; readonly bytes: Buffer }> {
    const { url, text, token, timeoutMs, maxBytes } = question
    return new Promise((resolve, reject) => {
      let bytes = 0
      const fail = (error: Error): void => {
        reject(error)
        req.destroy()
      }
      const take = (res: IncomingMessage): void => {
        const chunks: Buffer[] = []
        res.on('data', (chunk: Buffer) => {
          chunks.push(chunk)
          bytes += chunk.length
          if (bytes > maxBytes) fail(new AnswerTooLong())
        })
        res.on('error', reject)
        const { statusCode: status = 0 } = res
        res.on('end', () => resolve({ status, bytes: Buffer.concat(chunks, bytes) }))
      }
      const headers = {
        // Without it a member with --client-cert-auth takes a call without a token for one of the
        // user that its own certificate names (AuthInfoFromTLS in etcd's auth/store.go).
        Accept: 'application/json',
        'Content-Type': 'application/json',
        'Content-Length': Buffer.byteLength(text),
        // etcd takes the token as it is, without "Bearer".
        ...(token === '' ? {} : { Authorization: token }),
      }
      const req = this.#request(url, { method: 'POST', agent: this.#agent, headers }, take)
      const late = (): Error =>
        bytes > 0 && maxBytes < Infinity ? new AnswerTooLong() : new Error(`${url} timed out`)
      const timer = setTimeout(() => fail(late()), timeoutMs)
      req.on('error', reject)
      req.on('close', () => clearTimeout(timer))
      req.end(text)
    })
  }
}

/** Text that is no JSON is not quoted: a proxy may have put anything into it, a token too. */
function readAnswer(status: number, text: string): unknown {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch {
    if (status === 400 && COMMON_NAME.test(text)) {
      throw new EtcdRefusal('etcd refuses the client certificate, because it has a CommonName')
    }
    throw new Error(`etcd answered ${status} without JSON`)
  }
  if (status === 200) return body
  // 3.3 has no "message", 3.6 no "error".
  const said = stringOf(body, 'message') || stringOf(body, 'error') || `etcd answered ${status}`
  const message = said.slice(0, MESSAGE_MAX_CHARS)
  const passes = status < 400 || status >= 500 || CANCELED.includes(status) || PASSING.test(message)
  throw passes ? new Error(message) : new EtcdRefusal(message)
}

/** A member of an object, where it is a string; the gateway leaves empty ones out. */
export function stringOf(value: unknown, name: string): string {
  if (typeof value !== 'object' || value === null) return ''
  const member: unknown = Reflect.get(value, name)
  return typeof member === 'string' ? member : ''
}
