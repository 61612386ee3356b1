import { JOSEError, JWTClaimValidationFailed, JWTExpired } from 'jose/errors'
import { jwtVerify } from 'jose/jwt/verify'
import { type Condition, HttpError, reasonOf } from '../errors.ts'
import { INVALID_TOKEN } from './bearer.ts'
import type { Caller } from './caller.ts'
import { checkJws } from './jws.ts'
import { type JsonObject } from './json-object.ts'
import { type Client, VerificationQueue, type Wait } from './verification-queue.ts'
import { TokenCache } from './token-cache.ts'
import type { KeySource } from './key-source.ts'

/** What a token must say. */
export interface TokenRules {
  readonly issuer: string
  readonly audience: string
  readonly ownerClaim: string
  readonly audienceClaim: string
  /** undefined: `scope`, or `scp` where there is no `scope`. */
  readonly scopeClaim: string | undefined
  readonly clockToleranceSeconds: number
}

interface Verified {
  readonly payload: JsonObject
  readonly exp: number
}

export class Verifier {
  readonly #keys: KeySource
  readonly #rules: TokenRules
  readonly #now: () => number
  readonly #remembered: TokenCache
  readonly #queue: VerificationQueue
  /** Tokens that were verified in full, by outcome, and those that had been before. */
  readonly counts = { accepted: 0, refused: 0, remembered: 0 }

  /** `now` is in milliseconds since 1970. */
  constructor(
    keys: KeySource,
    rules: TokenRules,
    now: () => number = Date.now,
    remembered = new TokenCache(),
  ) {
    this.#keys = keys
    this.#rules = rules
    this.#now = now
    this.#remembered = remembered
    this.#queue = new VerificationQueue(keys)
  }

  /** How many verified tokens are remembered. */
  get remembered(): number {
    return this.#remembered.size
  }

  /**
   * The caller that a token stands for; without a promise where the token has been verified before,
   * its exp lies ahead and the keys are the same.
   * @throws HttpError (as a rejection) tokenInvalid, tokenExpired, tokenUnacceptable,
   * keysUnavailable; `cause` says why.
   * @throws HttpError (as a rejection) overloaded when too many tokens wait.
   * @throws ClientGone (as a rejection) when the client left while its token waited.
   */
  verify(token: string, client: Client): Caller | Promise<Caller> {
    return (
      this.#recall(token, this.#keys.generation) ??
      this.#queue.run(client, (wait) => this.#verifyInTurn(token, wait))
    )
  }

  #recall(token: string, generation: number): Caller | undefined {
    const known = this.#remembered.get(token, generation, Math.floor(this.#now() / 1000))
    if (known !== undefined) this.counts.remembered++
    return known
  }

  async #verifyInTurn(token: string, wait: Wait): Promise<Caller> {
    // Taken before the key: a token verified while the keys change must not outlive the old ones.
    const { generation } = this.#keys
    // The same token may have been verified while this one waited.
    const known = this.#recall(token, generation)
    if (known !== undefined) return known
    try {
      const caller = await this.#verify(token, generation, wait)
      this.counts.accepted++
      return caller
    } catch (error) {
      this.counts.refused++
      throw error
    }
  }

  async #verify(token: string, generation: number, wait: Wait): Promise<Caller> {
    checkForm(token)
    const { payload, exp } = await this.#verifyWithJose(token, wait)
    const owner = claimOf(payload, this.#rules.ownerClaim)
    if (typeof owner !== 'string' || owner === '' || !owner.isWellFormed()) {
      throw refusal('tokenUnacceptable', 'the owner claim is no usable string')
    }
    const caller: Caller = { owner, scopes: this.#scopes(payload) }
    this.#remembered.add(token, generation, exp, caller)
    return caller
  }

  async #verifyWithJose(token: string, wait: Wait): Promise<Verified> {
    const { issuer, audience, audienceClaim, ownerClaim, clockToleranceSeconds } = this.#rules
    try {
      const { payload } = await jwtVerify(token, (header) => this.#keys.key(header, wait), {
        // RFC 8725 §3.1: what may verify a token is settled here and by the key, never by the
        // token's header.
        algorithms: [...this.#keys.algorithms],
        issuer,
        requiredClaims: ['exp', audienceClaim, ownerClaim],
        clockTolerance: clockToleranceSeconds,
        currentDate: new Date(this.#now()),
        ...(audienceClaim === 'aud' ? { audience } : {}),
      })
      // JSON's 1e400 is Infinity, which is a number to jose, and a token without an end.
      const { exp = Infinity } = payload
      if (!Number.isFinite(exp)) throw refusal('tokenUnacceptable', 'exp is not finite')
      if (audienceClaim !== 'aud' && !holds(claimOf(payload, audienceClaim), audience)) {
        throw refusal('tokenUnacceptable', 'the audience claim does not hold the audience')
      }
      return { payload, exp }
    } catch (error) {
      // Of jose's errors the text alone: the objects carry the token's claims, which have no place
      // in a log.
      if (error instanceof JWTExpired) throw refusal('tokenExpired', error.message)
      if (error instanceof JWTClaimValidationFailed)
        throw refusal('tokenUnacceptable', error.message)
      if (error instanceof JOSEError) throw refusal('tokenInvalid', error.message)
      throw error
    }
  }

  /**
   * RFC 8693 §4.2: one string, names separated by spaces. `scp`, `roles` and `permissions` are
   * mostly arrays.
   */
  #scopes(payload: JsonObject): ReadonlySet<string> {
    const value = claimOf(
      payload,
      this.#rules.scopeClaim ?? (Object.hasOwn(payload, 'scope') ? 'scope' : 'scp'),
    )
    if (typeof value === 'string') return new Set(value.split(' ').filter((name) => name !== ''))
    return new Set(isStrings(value) ? value : [])
  }
}

function checkForm(token: string): void {
  try {
    checkJws(token)
  } catch (error) {
    throw refusal('tokenInvalid', reasonOf(error))
  }
}

function refusal(condition: Condition, reason: string): HttpError {
  return new HttpError(condition, INVALID_TOKEN, reason)
}

/**
 * An own member only: a claim name may be configured as `constructor`, and every object inherits
 * one of those.
 */
function claimOf(payload: JsonObject, name: string): unknown {
  return Object.hasOwn(payload, name) ? payload[name] : undefined
}

function holds(claim: unknown, wanted: string): boolean {
  return Array.isArray(claim) ? claim.includes(wanted) : claim === wanted
}

function isStrings(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((item) => typeof item === 'string')
}
