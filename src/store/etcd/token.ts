import { EtcdRefusal } from './gateway.ts'

/** Checking a password takes a member 0.1 s of CPU: a refused one is tried once in this time. */
const REFUSED_FOR_MS = 1000
/** A member was started anew or the token has expired; rights were changed; or none was sent. */
const STALE = /invalid auth token|revision of auth store is old|user name is empty/
const DENIED = /permission denied/

export type LogIn = (endpoint: number, deadline: number) => Promise<string>

/** The token of the cluster's user, one for all calls. It is empty where the cluster wants none. */
export class AuthToken {
  readonly #logIn: LogIn
  #token: Promise<string> | undefined
  /** When a refused login may be repeated. */
  #refusedUntil = Infinity

  constructor(logIn: LogIn) {
    this.#logIn = logIn
  }

  /** @throws EtcdRefusal, also for a login of the last second; Error when a login had no answer. */
  get(endpoint: number, deadline: number): Promise<string> {
    if (performance.now() >= this.#refusedUntil) this.drop(this.#token)
    return (this.#token ??= this.#ask(endpoint, deadline))
  }

  /** The next call logs in again, unless another call has replaced this token already. */
  drop(token: Promise<string> | undefined): void {
    if (this.#token !== token) return
    this.#token = undefined
    this.#refusedUntil = Infinity
  }

  #ask(endpoint: number, deadline: number): Promise<string> {
    const token = this.#logIn(endpoint, deadline)
    token.catch((error: unknown) => {
      if (!(error instanceof EtcdRefusal)) this.drop(token)
      else if (this.#token === token) this.#refusedUntil = performance.now() + REFUSED_FOR_MS
    })
    return token
  }
}

/** Whether a call that was refused with this token may succeed with a new one. */
export function isStale(token: string, refusal: EtcdRefusal): boolean {
  // Who sends a token and is denied lacks the right: another login would change nothing.
  return STALE.test(refusal.message) || (token === '' && DENIED.test(refusal.message))
}
