/** Sends one request to one member of etcd, and reads its answer, over the HTTP/JSON gateway. */
import { Agent, request } from 'node:http'
import { type AgentOptions, Agent as TlsAgent, request as tlsRequest } from 'node:https'
import { FairQueue, STRANGERS } from '../../limits/fair-queue.ts'
import type { EtcdRequest, EtcdResponse } from './wire.ts'

/** Of an error message of etcd. */
const MESSAGE_MAX_CHARS = 200
/** Status 429 also means a full database or a message that is too large; these do not pass. */
const OVERLOADED = /too many requests/
/** A stopping member cancels the calls of its gateway: 408 up to etcd 3.5, 499 from 3.6. */
const CANCELED: readonly number[] = [408, 499]
/** The only refusal that is not JSON. */
const COMMON_NAME = /^CommonName of client/
export const DENIED = /permission denied/

/** etcd refused a call, and would refuse it again. It has not carried it out, and will not. */
export class EtcdRefusal extends Error {}

export function isRefusal(error: unknown, message: RegExp): error is EtcdRefusal {
  return error instanceof EtcdRefusal && message.test(error.message)
}

/** What this endpoint answers is no answer to any call: it is not, or no longer, a member's. */
export class NotAMember extends Error {}

/** The answer is longer than the caller accepts. */
export class ResponseTooLong extends Error {}

/** A request to one member. */
interface Attempt extends EtcdRequest {
  readonly agent: Agent
  /** Of the member, without a path. */
  readonly origin: string
  /** Empty if the cluster asks for none. */
  readonly token: string
  readonly timeoutMs: number
}

/** Reading 1 MiB of small plants takes 8 ms, and many answers may come in one tick. */
const readings = new FairQueue()

export function createAgent(isSecure: boolean, tls: AgentOptions): Agent {
  return isSecure ? new TlsAgent({ keepAlive: true, ...tls }) : new Agent({ keepAlive: true })
}

/**
 * Resolves with the body of the answer.
 * @throws EtcdRefusal, ResponseTooLong, NotAMember, or Error if another attempt may succeed.
 */
export async function ask(attempt: Attempt): Promise<EtcdResponse> {
  const { agent, message, token, timeoutMs, maxBytes } = attempt
  const url = attempt.origin + attempt.path
  const send = url.startsWith('https:') ? tlsRequest : request
  const headers = {
    // Without it, a member with --client-cert-auth treats a call without a token as one of the
    // user that the member's own certificate names (AuthInfoFromTLS in etcd's auth/store.go).
    Accept: 'application/json',
    'Content-Type': 'application/json',
    // etcd expects no "Bearer" here.
    ...(token === '' ? {} : { Authorization: token }),
  }
  let text = ''
  const status = await new Promise<number>((resolve, reject) => {
    const req = send(url, { method: 'POST', agent, headers }, (res) => {
      // One character for each byte. All that etcd sends is ASCII: keys and values are base64.
      res.setEncoding('latin1')
      res.on('data', (chunk: string) => {
        text += chunk
        if (text.length > maxBytes) fail(new ResponseTooLong(`${url} answered too much`))
      })
      res.on('error', reject)
      res.on('end', () => resolve(res.statusCode ?? 0))
    })
    const fail = (error: Error): void => {
      reject(error)
      req.destroy()
    }
    const timer = setTimeout(() => fail(new Error(`${url} timed out`)), timeoutMs)
    req.on('error', reject)
    req.on('close', () => clearTimeout(timer))
    req.end(JSON.stringify(message))
  })
  // Without a place: the calls that run are bounded.
  return readings.run(STRANGERS, () => readResponse(status, text), 0)
}

/** Does not quote a body that is not JSON: a proxy may have written anything into it. */
function readResponse(status: number, text: string): EtcdResponse {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch {
    if (status === 400 && COMMON_NAME.test(text))
      throw new EtcdRefusal('etcd refuses the client certificate, because it has a CommonName')
    if (status === 404) throw new NotAMember("etcd's gateway is off: see enable-grpc-gateway")
    throw new Error(`etcd answered ${status} without JSON`)
  }
  // etcd's rpc.proto defines it. The client looks at the header, which every answer has.
  if (status === 200) return (body ?? {}) as EtcdResponse
  // etcd 3.3 has no "message", 3.6 no "error". `Object` makes an object of any JSON.
  const said = Object(body) as Readonly<Record<'message' | 'error', unknown>>
  const message = String(said.message || said.error || `etcd answered ${status}`)
  const isRefused = status >= 400 && status < 500 && !CANCELED.includes(status)
  const error = isRefused && !OVERLOADED.test(message) ? EtcdRefusal : Error
  throw new error(message.slice(0, MESSAGE_MAX_CHARS))
}
