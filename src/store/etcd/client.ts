import { Agent, type IncomingMessage, request } from 'node:http'
import { Agent as TlsAgent, request as tlsRequest } from 'node:https'
import { setTimeout as sleep } from 'node:timers/promises'
import { StoreUnavailable } from '../../plants/store.ts'

export interface EtcdUser {
  readonly name: string
  readonly password: string
}

/** PEM, as etcd's own clients have it. */
export interface EtcdTls {
  readonly ca: Buffer | undefined
  readonly cert: Buffer | undefined
  readonly key: Buffer | undefined
}

export interface ClientOptions {
  /** Origins of the members' client URLs, all http or all https. */
  readonly endpoints: readonly string[]
  readonly user: EtcdUser | undefined
  readonly tls: EtcdTls
  readonly timing?: ClientTiming
}

/** In milliseconds. */
export interface ClientTiming {
  /** From a request to the last byte of its answer. */
  readonly attempt: number
  /** For all attempts together. */
  readonly call: number
  /** The same for the read that readiness rests on. */
  readonly probe: number
}

export interface CallOptions {
  readonly timeoutMs?: number
  /** An answer that is longer, or still comes when the attempt's time is over, is given up. */
  readonly maxBytes?: number
}

export interface EtcdAnswer {
  readonly body: unknown
  readonly bytes: number
}

/** One attempt waits out neither an election (1 s to 2 s by default) nor a member that hangs; a call outlasts both, and so does a probe, whose failure says that something is wrong. */
const TIMING: ClientTiming = { attempt: 2000, call: 6000, probe: 3000 }
/** Requests under way at a time: enough for etcd to write many with one sync, few enough to bound what their answers hold. */
const REQUESTS_MAX = 64
/** Between two rounds of all endpoints, doubled from one to the next. */
const FIRST_PAUSE_MS = 25
const LAST_PAUSE_MS = 400
/** Of the cluster's auth token: unknown (a member has started anew), from before a change of rights, or missing since auth was off before. */
const STALE_TOKEN = /invalid auth token|revision of auth store is old|user name is empty/
/** The gateway has one status for a full database, a message that is too large, and a member that is overloaded, which alone passes. */
const PASSING = /too many requests/
/** Canceled: a member that is being stopped ends what its gateway asks of it. 408 up to 3.5, 499 from 3.6 on. */
const CANCELED: readonly number[] = [408, 499]

/** etcd has refused a call, and would again. */
export class EtcdRefusal extends Error {
  /** Whether no earlier attempt of the same call may have done, or may still do, what it asked for. */
  readonly first: boolean

  constructor(message: string, first: boolean) {
    super(message)
    this.first = first
  }
}

/** The answer is longer than whoever asked can take, or than comes through in time. */
export class AnswerTooLong extends Error {}

/**
 * Calls of etcd's HTTP/JSON gateway, each repeated on the next endpoint until it is answered or its time is over: only for
 * what may be done twice. Goes on with the endpoint that answered last.
 */
export class EtcdClient {
  readonly #options: ClientOptions
  readonly timing: ClientTiming
  readonly #agent: Agent
  readonly #request: typeof request
  #endpoint = 0
  /** Of all members; empty where the cluster wants none. */
  #token: Promise<string> | undefined
  #free = REQUESTS_MAX
  readonly #queue: (() => void)[] = []

  constructor(options: ClientOptions) {
    this.#options = options
    this.timing = options.timing ?? TIMING
    const tls = options.endpoints[0]?.startsWith('https:') === true
    this.#agent = tls ? new TlsAgent({ keepAlive: true, ...options.tls }) : new Agent({ keepAlive: true })
    this.#request = tls ? tlsRequest : request
  }

  /**
   * The answer to a call.
   * @throws EtcdRefusal; AnswerTooLong; StoreUnavailable when there was none in time: then it may be done, or be done yet.
   */
  async call(path: string, message: unknown, { timeoutMs = this.timing.call, maxBytes = Infinity }: CallOptions = {}): Promise<EtcdAnswer> {
    // Its time runs while it waits for its turn, so that nobody waits behind many who get no answer.
    const deadline = performance.now() + timeoutMs
    await this.#enter()
    try {
      return await this.#insist(path, JSON.stringify(message), deadline, maxBytes)
    } finally {
      this.#leave()
    }
  }

  close(): void {
    this.#agent.destroy()
  }

  async #insist(path: string, text: string, deadline: number, maxBytes: number): Promise<EtcdAnswer> {
    const { endpoints } = this.#options
    let pauseMs = FIRST_PAUSE_MS
    let renewed = false
    let cause: unknown = new Error('too many calls wait')
    for (let failures = 0; ; ) {
      // In less time than that no attempt would tell anything.
      if (deadline - performance.now() < FIRST_PAUSE_MS) throw new StoreUnavailable(`etcd did not answer in time: ${reasonOf(cause)}`, { cause })
      const endpoint = this.#endpoint
      let token: Promise<string> | undefined
      try {
        token = this.#options.user && (this.#token ??= this.#logIn(endpoint, this.#options.user, deadline))
        return await this.#attempt(endpoint, path, text, await token, deadline, maxBytes)
      } catch (error) {
        if (error instanceof AnswerTooLong) throw error
        if (error instanceof EtcdRefusal) {
          if (!token || renewed || !STALE_TOKEN.test(error.message)) throw new EtcdRefusal(error.message, failures === 0)
          renewed = true
          // Unless somebody else has renewed it meanwhile.
          if (this.#token === token) this.#token = undefined
          continue
        }
        cause = error
        failures += 1
        // Unless somebody else has gone on already.
        if (this.#endpoint === endpoint) this.#endpoint = (endpoint + 1) % endpoints.length
        if (failures % endpoints.length !== 0) continue
        await sleep(Math.max(1, Math.min(pauseMs, deadline - performance.now())))
        pauseMs = Math.min(pauseMs * 2, LAST_PAUSE_MS)
      }
    }
  }

  /** A token for all calls. A failure is not kept: the next attempt asks again. */
  #logIn(endpoint: number, { name, password }: EtcdUser, deadline: number): Promise<string> {
    const asked = this.#attempt(endpoint, '/v3/auth/authenticate', JSON.stringify({ name, password }), undefined, deadline, Infinity).then(
      ({ body }) => stringOf(body, 'token'),
      (error: unknown) => {
        // As etcd's own clients do: so users can be configured before the cluster asks for them.
        if (error instanceof EtcdRefusal && error.message.includes('authentication is not enabled')) return ''
        if (this.#token === asked) this.#token = undefined
        throw error
      },
    )
    return asked
  }

  #attempt(endpoint: number, path: string, text: string, token: string | undefined, deadline: number, maxBytes: number): Promise<EtcdAnswer> {
    const url = `${this.#options.endpoints[endpoint]}${path}`
    const timeoutMs = Math.max(1, Math.min(this.timing.attempt, deadline - performance.now()))
    let bytes = 0
    return new Promise((resolve, reject) => {
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
        res.on('end', () => {
          try {
            resolve({ body: readAnswer(res.statusCode ?? 0, Buffer.concat(chunks).toString('utf8')), bytes })
          } catch (error) {
            reject(error instanceof Error ? error : new Error(String(error)))
          }
        })
      }
      // etcd takes the token as it is, without "Bearer".
      const headers = { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(text), ...(token ? { Authorization: token } : {}) }
      const req = this.#request(url, { method: 'POST', agent: this.#agent, headers }, take)
      const late = (): Error => (bytes > 0 && maxBytes < Infinity ? new AnswerTooLong() : new Error(`${url}: no answer within ${Math.ceil(timeoutMs)} ms`))
      const timer = setTimeout(() => fail(late()), timeoutMs)
      req.on('error', reject)
      req.on('close', () => clearTimeout(timer))
      req.end(text)
    })
  }

  /** Waits for its turn: who is served next goes to the endpoint that is good by then. */
  #enter(): Promise<void> | undefined {
    if (this.#free === 0) return new Promise((resolve) => this.#queue.push(resolve))
    this.#free -= 1
    return undefined
  }

  #leave(): void {
    const next = this.#queue.shift()
    if (next) next()
    else this.#free += 1
  }
}

/** @throws EtcdRefusal for a refusal; Error for what another endpoint, or the same one later, may answer otherwise. */
function readAnswer(status: number, text: string): unknown {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch {
    throw new Error(`etcd answered ${status} without JSON: ${text.slice(0, 100)}`)
  }
  if (status === 200) return body
  // 3.3 has no "message", 3.6 no "error".
  const message = stringOf(body, 'message') || stringOf(body, 'error') || String(status)
  if (status >= 400 && status < 500 && !CANCELED.includes(status) && !PASSING.test(message)) throw new EtcdRefusal(message, true)
  throw new Error(message)
}

/** A member of an object, where it is a string; the gateway leaves empty ones out. */
function stringOf(value: unknown, name: string): string {
  const member: unknown = typeof value === 'object' && value !== null ? Reflect.get(value, name) : undefined
  return typeof member === 'string' ? member : ''
}

export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error)
}
