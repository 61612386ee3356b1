import { reasonOf } from '../../errors.ts'
import { setTimeout as sleep } from 'node:timers/promises'
import { StoreUnavailable } from '../../plants/store.ts'
import { AnswerTooLong, type EtcdAnswer, EtcdRefusal, Gateway, stringOf } from './gateway.ts'
import { Places } from './places.ts'
import type { EtcdTls } from './tls.ts'
import { AuthToken, isStale } from './token.ts'

export interface EtcdUser {
  readonly name: string
  readonly password: string
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
  /** The same for the call that readiness rests on. */
  readonly probe: number
}

export interface Call {
  readonly path: string
  /** Made once the call has a place: as base64 a plant takes a third more. */
  readonly message: () => unknown
  /** Calls of owners share a number of places. Readiness has no owner and waits for nobody. */
  readonly owner: string | undefined
  /** A longer answer, or one that still comes when an attempt's time is over, is given up. */
  readonly maxBytes?: number
}

/**
 * One attempt waits out neither an election (1 s to 2 s by default) nor a member that hangs. A call
 * outlasts both, and so does a probe, whose failure says that something is wrong.
 */
const TIMING: ClientTiming = { attempt: 2000, call: 6000, probe: 3000 }
/** Between two rounds of all endpoints, doubled from one to the next. */
const FIRST_PAUSE_MS = 25
const LAST_PAUSE_MS = 400
const AUTHENTICATE_PATH = '/v3/auth/authenticate'
const AUTH_IS_OFF = /authentication is not enabled/

/**
 * Calls of etcd's HTTP/JSON gateway, each repeated on the next endpoint until it is answered or its
 * time is over: only for what may be done twice. Goes on with the endpoint that answered last.
 */
export class EtcdClient {
  readonly #options: ClientOptions
  readonly #timing: ClientTiming
  readonly #gateway: Gateway
  readonly #places = new Places()
  readonly #token: AuthToken | undefined
  #endpoint = 0
  #closed = false

  constructor(options: ClientOptions) {
    const { endpoints, user, tls } = options
    this.#options = options
    this.#timing = options.timing ?? TIMING
    this.#gateway = new Gateway(endpoints[0]?.startsWith('https:') === true, tls)
    if (user) this.#token = new AuthToken((...attempt) => this.#logIn(user, ...attempt))
  }

  /**
   * The answer to a call.
   * @throws EtcdRefusal; AnswerTooLong; StoreUnavailable when there was none in time: then it may
   * be done, or be done yet.
   */
  async call(call: Call): Promise<EtcdAnswer> {
    const { owner } = call
    const timeoutMs = owner === undefined ? this.#timing.probe : this.#timing.call
    // Its time runs while it waits for a place.
    const deadline = performance.now() + timeoutMs
    if (owner === undefined) return this.#insist(call, deadline)
    await this.#places.enter(owner, timeoutMs)
    try {
      return await this.#insist(call, deadline)
    } finally {
      this.#places.leave()
    }
  }

  /** Ends what is under way. */
  close(): void {
    this.#closed = true
    this.#gateway.close()
  }

  async #insist({ path, message, maxBytes }: Call, deadline: number): Promise<EtcdAnswer> {
    const { length } = this.#options.endpoints
    const text = JSON.stringify(message())
    let pauseMs = FIRST_PAUSE_MS
    let renewed = false
    let cause: unknown = new Error('too many calls wait for it')
    for (let failures = 0; ; ) {
      if (this.#closed) throw new StoreUnavailable('the store is closed')
      // In less time than that no attempt would tell anything.
      if (deadline - performance.now() < FIRST_PAUSE_MS) {
        const reason = `etcd did not answer in time: ${reasonOf(cause)}`
        throw new StoreUnavailable(reason, { cause })
      }
      const endpoint = this.#endpoint
      const asked = this.#token?.get(endpoint, deadline)
      let token: string | undefined
      try {
        token = (await asked) ?? ''
        return await this.#attempt(endpoint, path, text, token, deadline, maxBytes)
      } catch (error) {
        if (error instanceof AnswerTooLong) throw error
        if (error instanceof EtcdRefusal) {
          // Without a token it is the login that was refused.
          const mayPass = asked !== undefined && token !== undefined && isStale(token, error)
          if (renewed || !mayPass) throw new EtcdRefusal(error.message, failures === 0)
          renewed = true
          this.#token?.drop(asked)
          continue
        }
        cause = error
        failures += 1
        // Unless another call has gone on already.
        if (this.#endpoint === endpoint) this.#endpoint = (endpoint + 1) % length
        if (failures % length !== 0) continue
        await sleep(Math.max(1, Math.min(pauseMs, deadline - performance.now())))
        pauseMs = Math.min(pauseMs * 2, LAST_PAUSE_MS)
      }
    }
  }

  async #logIn({ name, password }: EtcdUser, endpoint: number, deadline: number): Promise<string> {
    const text = JSON.stringify({ name, password })
    try {
      const { body } = await this.#attempt(endpoint, AUTHENTICATE_PATH, text, '', deadline)
      return stringOf(body, 'token')
    } catch (error) {
      // As etcd's own clients do: users can be configured before the cluster asks for them.
      if (error instanceof EtcdRefusal && AUTH_IS_OFF.test(error.message)) return ''
      throw error
    }
  }

  #attempt(
    endpoint: number,
    path: string,
    text: string,
    token: string,
    deadline: number,
    maxBytes = Infinity,
  ): Promise<EtcdAnswer> {
    const url = `${this.#options.endpoints[endpoint]}${path}`
    const timeoutMs = Math.max(1, Math.min(this.#timing.attempt, deadline - performance.now()))
    return this.#gateway.ask({ url, text, token, timeoutMs, maxBytes })
  }
}
