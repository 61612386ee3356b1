/** Calls etcd: the members in rotation, with a login, until the deadline of the call. */
import type { Agent } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { AnswerTooLong, ask, createAgent, DENIED, EtcdRefusal } from './gateway.ts'
import { type EtcdTls, isRefusal } from './gateway.ts'
import { type EtcdRequest, type EtcdUser, loginRequest } from './wire.ts'

export interface EtcdConfig {
  /** Origins of the members' client URLs, all http or all https. */
  readonly endpoints: readonly string[]
  /** What the keys of all plants begin with; ends in "/". */
  readonly prefix: string
  readonly user: EtcdUser | undefined
  readonly tls: EtcdTls
  readonly timing?: ClientTiming
}

export interface ClientTiming {
  /** From a request to the last byte of its answer. */
  readonly attemptMs: number
  /** All attempts of a call together, and its wait for a place. */
  readonly callMs: number
}

/** A call outlasts an election (1 s to 2 s by default) and a member that hangs for one attempt. */
const TIMING: ClientTiming = { attemptMs: 2000, callMs: 6000 }
/** The pause after every endpoint has failed once. An attempt in less time would fail. */
const PAUSE_MS = 50
/** Checking a password takes a member 0.1 s of CPU: a refused login is repeated once a second. */
const LOGIN_REFUSED_MS = 1000
/** The member restarted or the token expired; rights were changed; no token was sent. */
const STALE_TOKEN = /invalid auth token|revision of auth store is old|user name is empty/
const AUTH_IS_OFF = /authentication is not enabled/

/**
 * Calls etcd. A failed attempt is repeated on the next endpoint until the call's time is over, so
 * every request must be safe to repeat. A call begins at the endpoint that answered last.
 */
export class EtcdClient {
  readonly #options: Required<EtcdConfig>
  readonly #agent: Agent
  #endpoint = 0
  /** The user's token, for all calls; "" if the cluster asks for none. */
  #token: Promise<string> | undefined
  #closed = false

  constructor(options: EtcdConfig) {
    this.#options = { timing: TIMING, ...options }
    this.#agent = createAgent(options.endpoints[0]?.startsWith('https:') === true, options.tls)
  }

  /** The deadline of a call that begins now. */
  deadline(): number {
    return performance.now() + this.#options.timing.callMs
  }

  /** Fails the calls that are running. */
  close(): void {
    this.#closed = true
    this.#agent.destroy()
  }

  /**
   * Resolves with the body of the answer.
   * @throws EtcdRefusal; AnswerTooLong; StoreUnavailable if there was no answer in time, or an
   * attempt before a refusal had none: etcd may have carried the request out, or may still do so.
   */
  async call(request: EtcdRequest, deadline = this.deadline()): Promise<unknown> {
    const { endpoints, user } = this.#options
    let failures = 0
    let hasNewToken = user === undefined
    let cause: unknown = 'too many calls wait for it'
    while (deadline - performance.now() >= PAUSE_MS) {
      if (this.#closed) throw new StoreUnavailable('the store is closed')
      const endpoint = this.#endpoint
      const login = user && (this.#token ??= this.#logIn(user, endpoint, deadline))
      let token = ''
      try {
        token = (await login) ?? ''
        return await this.#attempt(request, endpoint, token, deadline)
      } catch (error) {
        if (error instanceof AnswerTooLong) throw error
        if (error instanceof EtcdRefusal) {
          // A denied call that sent a token lacks the right: another token would not change that.
          const needsToken = isRefusal(error, STALE_TOKEN) || (!token && isRefusal(error, DENIED))
          if (hasNewToken || !needsToken)
            throw failures === 0 ? error : new StoreUnavailable(error.message, { cause: error })
          hasNewToken = true
          this.#dropToken(login)
          continue
        }
        cause = error
        failures += 1
      }
      // Unless another call has already gone to the next endpoint.
      if (this.#endpoint === endpoint) this.#endpoint = (endpoint + 1) % endpoints.length
      if (failures % endpoints.length === 0) await sleep(PAUSE_MS)
    }
    throw new StoreUnavailable(`etcd did not answer in time: ${reasonOf(cause)}`)
  }

  #attempt(request: EtcdRequest, endpoint: number, token: string, deadline: number) {
    const { endpoints, timing } = this.#options
    const timeoutMs = Math.max(1, Math.min(timing.attemptMs, deadline - performance.now()))
    return ask({
      ...request,
      agent: this.#agent,
      origin: endpoints[endpoint] ?? '',
      token,
      timeoutMs,
    })
  }

  /** @throws EtcdRefusal, Error */
  async #logIn(user: EtcdUser, endpoint: number, deadline: number): Promise<string> {
    try {
      const body = await this.#attempt(loginRequest(user), endpoint, '', deadline)
      // etcd's rpc.proto defines this member, and the gateway leaves it out if it is empty.
      return (body as { readonly token?: string }).token ?? ''
    } catch (error) {
      // As in etcd's own clients: a user may be configured before the cluster asks for one.
      if (isRefusal(error, AUTH_IS_OFF)) return ''
      const failed = this.#token
      const drop = (): void => this.#dropToken(failed)
      if (error instanceof EtcdRefusal) setTimeout(drop, LOGIN_REFUSED_MS).unref()
      // At once: the next attempt, on another endpoint, logs in there.
      else drop()
      throw error
    }
  }

  /** The next call logs in, unless another call has already replaced this token. */
  #dropToken(token: Promise<string> | undefined): void {
    if (this.#token === token) this.#token = undefined
  }
}
