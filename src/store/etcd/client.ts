/** Calls etcd: the members in rotation, with a login, until the deadline of the call. */
import type { Agent } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { AnswerTooLong, ask, createAgent, DENIED, EtcdRefusal, isRefusal } from './gateway.ts'
import { type EtcdRequest, type EtcdUser, loginRequest } from './wire.ts'

export interface EtcdConfig {
  /** Origins of the members' client URLs, all http or all https. */
  readonly endpoints: readonly string[]
  /** What the keys of all plants begin with; ends in "/". */
  readonly prefix: string
  readonly user: EtcdUser | undefined
  /** PEM, as etcd's own clients take it. */
  readonly tls: Readonly<Record<'ca' | 'cert' | 'key', Buffer | undefined>>
  readonly timing?: typeof TIMING
}

/**
 * `attemptMs`: from a request to the last byte of its answer. `callMs`: all attempts of a call, and
 * its wait for a place; it outlasts an election (1 s to 2 s by default) and a member that hangs for
 * one attempt.
 */
const TIMING = { attemptMs: 2000, callMs: 6000 }
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
  async call(request: EtcdRequest, deadline: number): Promise<unknown> {
    const { endpoints, user } = this.#options
    const failures: unknown[] = []
    let hasNewToken = user === undefined
    while (deadline - performance.now() >= PAUSE_MS) {
      if (this.#closed) throw new StoreUnavailable('the store is closed')
      const endpoint = this.#endpoint
      const login = user && (this.#token ??= this.#logIn(user, endpoint, deadline))
      let token = ''
      try {
        token = (await login) ?? ''
        return await this.#attempt(request, endpoint, token, deadline)
      } catch (error) {
        // A denied call that sent a token lacks the right: another token would not change that.
        const needsToken = isRefusal(error, STALE_TOKEN) || (!token && isRefusal(error, DENIED))
        if (needsToken && !hasNewToken) {
          hasNewToken = true
          // Unless another call has already replaced this token.
          if (this.#token === login) this.#token = undefined
          continue
        }
        if (error instanceof EtcdRefusal && failures.length > 0)
          throw new StoreUnavailable(error.message, { cause: error })
        if (error instanceof EtcdRefusal || error instanceof AnswerTooLong) throw error
        failures.push(error)
      }
      // Unless another call has already gone to the next endpoint.
      if (this.#endpoint === endpoint) this.#endpoint = (endpoint + 1) % endpoints.length
      if (failures.length % endpoints.length === 0) await sleep(PAUSE_MS)
    }
    const cause = failures.at(-1) ?? 'too many calls wait for it'
    throw new StoreUnavailable(`etcd did not answer in time: ${reasonOf(cause)}`)
  }

  #attempt(request: EtcdRequest, endpoint: number, token: string, deadline: number) {
    const { endpoints, timing } = this.#options
    const timeoutMs = Math.max(1, Math.min(timing.attemptMs, deadline - performance.now()))
    const origin = endpoints[endpoint] ?? ''
    return ask({ ...request, agent: this.#agent, origin, token, timeoutMs })
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
      const logInAgain = (): void => {
        this.#token = undefined
      }
      if (error instanceof EtcdRefusal) setTimeout(logInAgain, LOGIN_REFUSED_MS).unref()
      // At once: the next attempt, on another endpoint, logs in there.
      else logInAgain()
      throw error
    }
  }
}
