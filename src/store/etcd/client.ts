/** Calls etcd: the members in rotation, with a login, until the deadline of the call. */
import type { Agent } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../errors.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { ResponseTooLong, ask, createAgent, EtcdRefusal, isRefusal, NotAMember } from './gateway.ts'
import * as wire from './wire.ts'

export interface EtcdConfig {
  /** Origins of the members' client URLs, all http or all https. */
  readonly endpoints: readonly string[]
  /** What the keys of all plants begin with; ends in "/". */
  readonly prefix: string
  readonly user: wire.EtcdUser | undefined
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
/** Checking a password takes a member 0.1 s of CPU: a failing login is repeated once a second. */
const LOGIN_AGAIN_MS = 1000
/** The member restarted or the token expired; rights were changed. */
const STALE_TOKEN = /invalid auth token|revision of auth store is old/
/** None was sent. A denied call that sent one lacks the right: a new one would not change that. */
const MISSING_TOKEN = /user name is empty|permission denied/
const AUTH_IS_OFF = /authentication is not enabled/
const TOO_MANY = 'too many calls wait for it'
const RESTORED = '; a cluster restored from a backup needs every instance restarted'

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
  /** From when on a token may be dropped that was not refused. */
  #suspectFrom = 0
  /** The cluster that all answers must be of: that of the first one. */
  #clusterId: string | undefined
  /** The highest one of an answer. */
  #revision = 0
  /** Why an endpoint's last answer was none. Nothing is put there: it would raise the revision. */
  readonly #notMembers: (NotAMember | undefined)[] = []
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
   * @throws EtcdRefusal; ResponseTooLong; StoreUnavailable if there was no answer in time, or an
   * attempt before a refusal had none: etcd may have carried the request out, or may still do so.
   */
  async call(request: wire.EtcdRequest, deadline: number): Promise<wire.EtcdResponse> {
    const { endpoints, prefix, user } = this.#options
    const failures: unknown[] = []
    let endpoint = this.#endpoint
    let mayRenew = user !== undefined
    while (deadline - performance.now() >= PAUSE_MS) {
      if (this.#closed) throw new StoreUnavailable('the store is closed')
      const login = user && (this.#token ??= this.#logIn(user, endpoint, deadline))
      let token = ''
      try {
        token = (await login) ?? ''
        const attempt = this.#attempt(request, endpoint, token, deadline)
        return await attempt.catch(async (error: unknown) => {
          // A refusal does not name its cluster: a read at the same endpoint does.
          const read = wire.keyRequest(wire.base64(prefix))
          if (request.isPut && error instanceof EtcdRefusal)
            await this.#attempt(read, endpoint, token, deadline)
          throw error
        })
      } catch (error) {
        if (error instanceof ResponseTooLong) throw error
        const isRefused = error instanceof EtcdRefusal
        if (!isRefused) failures.push(error)
        const refusal = token === '' ? MISSING_TOKEN : STALE_TOKEN
        const haveAllFailed = !isRefused && failures.length % endpoints.length === 0
        // Some members close the connection, or say something else, in place of the refusal.
        const isSuspect = token !== '' && haveAllFailed && performance.now() >= this.#suspectFrom
        if (mayRenew && (isSuspect || isRefusal(error, refusal))) {
          mayRenew = false
          this.#suspectFrom = performance.now() + LOGIN_AGAIN_MS
          // Unless another call has already replaced this token.
          if (this.#token === login) this.#token = undefined
          continue
        }
        if (isRefused && failures.length === 0) throw error
        if (isRefused) throw new StoreUnavailable(error.message, { cause: error })
      }
      const next = (endpoint + 1) % endpoints.length
      // For calls that begin now; unless another call has already gone on.
      if (this.#endpoint === endpoint) this.#endpoint = next
      endpoint = next
      if (failures.length % endpoints.length !== 0) continue
      const newest = failures.slice(-endpoints.length)
      if (newest.every((each) => each instanceof NotAMember)) break
      await sleep(PAUSE_MS)
    }
    const cause = failures.find((each) => each instanceof NotAMember) ?? failures.at(-1)
    throw new StoreUnavailable(`etcd did not answer in time: ${reasonOf(cause ?? TOO_MANY)}`)
  }

  async #attempt(request: wire.EtcdRequest, endpoint: number, token: string, deadline: number) {
    const { endpoints, timing } = this.#options
    if (request.isPut && this.#notMembers[endpoint]) throw this.#notMembers[endpoint]
    const seen = this.#revision
    const timeoutMs = Math.max(1, Math.min(timing.attemptMs, deadline - performance.now()))
    const origin = endpoints[endpoint] ?? ''
    const answer = await ask({ ...request, agent: this.#agent, origin, token, timeoutMs })
    // What was put has raised the revision.
    const reason = this.#whyNot(answer, request.isPut && answer.succeeded ? seen + 1 : seen)
    const error = reason === undefined ? undefined : new NotAMember(`${origin} ${reason}`)
    this.#notMembers[endpoint] = error
    if (error) throw error
    return answer
  }

  /**
   * Why it does not answer the call. Each call is linearizable: its revision is not below one that
   * was seen before it was sent. Calls that run at once may be answered in any order.
   */
  #whyNot(answer: wire.EtcdResponse, lowest: number): string | undefined {
    const [id, revision] = [answer.header?.cluster_id, Number(answer.header?.revision)]
    if (id === undefined || !(revision > 0)) return "gave an answer that is not etcd's"
    this.#clusterId ??= id
    if (id !== this.#clusterId) return `answered for another cluster than before${RESTORED}`
    this.#revision = Math.max(this.#revision, revision)
    return revision < lowest ? `answered from the past${RESTORED}` : undefined
  }

  /** @throws EtcdRefusal, Error */
  async #logIn(user: wire.EtcdUser, endpoint: number, deadline: number): Promise<string> {
    try {
      // The gateway leaves it out if it is empty.
      return (await this.#attempt(wire.loginRequest(user), endpoint, '', deadline)).token ?? ''
    } catch (error) {
      // As in etcd's own clients: a user may be configured before the cluster asks for one.
      if (isRefusal(error, AUTH_IS_OFF)) return ''
      const logInAgain = (): void => void (this.#token = undefined)
      if (error instanceof EtcdRefusal) setTimeout(logInAgain, LOGIN_AGAIN_MS).unref()
      // At once: the next attempt, on another endpoint, logs in there.
      else logInAgain()
      throw error
    }
  }
}
