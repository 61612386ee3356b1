/** Calls etcd: the members in turn, with a login, within the time of a call. */
import { setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../errors.ts'
import { Backoff } from './backoff.ts'
import { StoreUnavailable } from '../../plants/store.ts'
import { AnswerTooLong, Channels, DENIED, EtcdRefusal, isRefusal } from './grpc.ts'
import type { Slots } from './slots.ts'
import type { EtcdTls } from './tls.ts'
import { type EtcdRequest, type EtcdUser, loginRequest, readToken } from './wire.ts'

export interface ClientOptions {
  /** Origins of the members' client URLs, all http or all https. */
  readonly endpoints: readonly string[]
  readonly user: EtcdUser | undefined
  readonly tls: EtcdTls
  readonly timing?: ClientTiming
}

/** Where a call waits for a slot, and whose it is: owners take turns. */
export interface Place {
  readonly slots: Slots
  readonly owner: string
}

/** In milliseconds. */
export interface ClientTiming {
  /** From a request to the last byte of its answer. */
  readonly attempt: number
  /** All attempts of a call together, and its wait for a slot. */
  readonly call: number
  /** The same for the readiness probe. */
  readonly probe: number
}

/**
 * A call outlasts an election (1 s to 2 s by default) and a member that hangs for one attempt. So
 * does the probe: if it fails, something is wrong.
 */
const TIMING: ClientTiming = { attempt: 2000, call: 6000, probe: 3000 }
/** So that a call that ends by itself in this time can say why. */
const GRACE_MS = 100
/** The pause after every endpoint has failed once. */
const FIRST_PAUSE_MS = 25
const LAST_PAUSE_MS = 400
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
  readonly timing: ClientTiming
  readonly #options: ClientOptions
  readonly #channels: Channels
  #endpoint = 0
  /** The user's token, for all calls; "" if the cluster asks for none. */
  #token: Promise<string> | undefined
  /** When a refused login may be repeated. */
  #loginRefusedUntil = Infinity
  #closed = false

  constructor(options: ClientOptions) {
    this.timing = options.timing ?? TIMING
    this.#options = options
    this.#channels = new Channels(options.tls)
  }

  /**
   * @param place where the call waits for a slot; without it, it runs at once
   * @param request is made when the call has a slot: it has a copy of the plant
   * @param since when the time of the call began
   * @throws EtcdRefusal; AnswerTooLong; StoreUnavailable if there was no answer in time: etcd may
   * have carried the request out, or may still do so.
   */
  async call(place: Place | undefined, request: () => EtcdRequest, since = performance.now()) {
    const deadline = since + this.timing.call
    await place?.slots.enter(place.owner, deadline - performance.now())
    try {
      return await this.#callInTime(deadline, request())
    } finally {
      place?.slots.leave()
    }
  }

  /** A call with the time of an attempt: if it fails, others follow. @throws as `call` */
  callBriefly(request: () => EtcdRequest): Promise<Buffer> {
    return this.#callInTime(performance.now() + this.timing.attempt, request())
  }

  /** A call of the readiness probe, which has a time of its own. @throws as `call` */
  probe(request: EtcdRequest): Promise<Buffer> {
    return this.#callInTime(performance.now() + this.timing.probe, request)
  }

  /** @throws what the promise throws; StoreUnavailable if it takes longer than a call may. */
  inTime<T>(promise: Promise<T>): Promise<T> {
    return settledBy(performance.now() + this.timing.call, promise)
  }

  /** Fails the calls that are running or waiting. */
  close(): void {
    this.#closed = true
    this.#channels.close()
  }

  /** A login that another call began may end after the time of this one. */
  #callInTime(deadline: number, request: EtcdRequest): Promise<Buffer> {
    return settledBy(deadline, this.#callUntil(deadline, request))
  }

  async #callUntil(deadline: number, request: EtcdRequest) {
    const { length } = this.#options.endpoints
    const backoff = new Backoff(FIRST_PAUSE_MS, LAST_PAUSE_MS)
    let failures = 0
    let hasNewToken = false
    let cause: unknown = new Error('too many calls wait for it')
    // An attempt in less time would fail.
    while (deadline - performance.now() >= FIRST_PAUSE_MS) {
      if (this.#closed) throw new StoreUnavailable('the store is closed')
      const endpoint = this.#endpoint
      const login = this.#logIn(endpoint, deadline)
      // Stays undefined if there is no user, or if the login itself fails.
      let token: string | undefined
      try {
        token = await login
        return await this.#attempt(request, endpoint, token ?? '', deadline)
      } catch (error) {
        if (error instanceof AnswerTooLong) throw error
        if (error instanceof EtcdRefusal) {
          if (hasNewToken || token === undefined || !mayPassWithNewToken(error, token))
            throw new EtcdRefusal(error.message, failures === 0)
          hasNewToken = true
          this.#dropToken(login)
          continue
        }
        cause = error
        failures += 1
      }
      // Unless another call has already gone to the next endpoint.
      if (this.#endpoint === endpoint) this.#endpoint = (endpoint + 1) % length
      if (failures % length === 0)
        await sleep(Math.max(1, Math.min(backoff.nextMs(), deadline - performance.now())))
    }
    throw new StoreUnavailable(`etcd did not answer in time: ${reasonOf(cause)}`)
  }

  #attempt(request: EtcdRequest, endpoint: number, token: string, deadline: number) {
    const { path, message, maxBytes = Infinity } = request
    const { endpoints } = this.#options
    const timeoutMs = Math.max(1, Math.min(this.timing.attempt, deadline - performance.now()))
    const attempt = { path, message, token, timeoutMs, maxBytes }
    return this.#channels.ask(endpoints[endpoint] ?? '', attempt)
  }

  /**
   * The token of all calls, or a new one; undefined without a user.
   * @throws EtcdRefusal, also for a login of the last second; Error if it was not answered.
   */
  #logIn(endpoint: number, deadline: number): Promise<string> | undefined {
    const { user } = this.#options
    if (!user) return undefined
    if (performance.now() >= this.#loginRefusedUntil) this.#dropToken(this.#token)
    if (this.#token) return this.#token
    const token = this.#requestToken(loginRequest(user), endpoint, deadline)
    this.#token = token
    token.catch((error: unknown) => {
      if (!(error instanceof EtcdRefusal)) this.#dropToken(token)
      else if (this.#token === token) this.#loginRefusedUntil = performance.now() + LOGIN_REFUSED_MS
    })
    return token
  }

  async #requestToken(login: EtcdRequest, endpoint: number, deadline: number): Promise<string> {
    try {
      return readToken(await this.#attempt(login, endpoint, '', deadline))
    } catch (error) {
      // As in etcd's own clients: a user may be configured before the cluster asks for one.
      if (isRefusal(error, AUTH_IS_OFF)) return ''
      throw error
    }
  }

  /** The next call logs in, unless another call has already replaced this token. */
  #dropToken(token: Promise<string> | undefined): void {
    if (this.#token !== token) return
    this.#token = undefined
    this.#loginRefusedUntil = Infinity
  }
}

/** A denied call that sent a token lacks the right: another token would not change that. */
function mayPassWithNewToken(refusal: EtcdRefusal, token: string): boolean {
  return isRefusal(refusal, STALE_TOKEN) || (token === '' && isRefusal(refusal, DENIED))
}

/** Settles as the promise does. @throws StoreUnavailable if it has not settled by then. */
function settledBy<T>(deadline: number, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = new StoreUnavailable('etcd did not answer in time')
    const timer = setTimeout(reject, deadline + GRACE_MS - performance.now(), late)
    promise.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}
