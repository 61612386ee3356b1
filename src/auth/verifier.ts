/** Finds the caller of a request by its token: in the cache, or by verifying the token. */
import { isUtf8 } from 'node:buffer'
import type { CompactJWSHeaderParameters, CryptoKey, JWTPayload } from 'jose'
import type { FlattenedJWSInput } from 'jose'
import { decodeProtectedHeader } from 'jose/decode/protected_header'
import { jwtVerify } from 'jose/jwt/verify'
import { ClientGone, errorCodeOf, isError } from '../errors.ts'
import { Budget } from '../limits/budget.ts'
import { Limiter } from '../limits/limiter.ts'
import { invalidToken } from './bearer.ts'
import { type Caller, readCaller, requiredClaimOf, type TokenRules } from './caller.ts'
import type { Keys, KeySource } from './key-source.ts'

/** Bytes of a token, dots included. A token with 200 groups has about 10,400. */
const MAX_TOKEN_BYTES = 12_288
/**
 * Base64url characters of a token's header; usual ones have 100. The header is parsed before the
 * signature is verified, and 900 members take 2 ms.
 */
const MAX_HEADER_LENGTH = 4096
/**
 * How many signatures are verified at once. They share libuv's four threads with the writes of the
 * journal, and delay a write by a few milliseconds.
 */
const VERIFYING_MAX = 16
/**
 * The slowest usual signature, ES512, takes 3 ms of a core: the last one waits for 1.5 s. Their
 * owners are not known yet, so they count as one owner, who has half of the places.
 */
const WAITING_MAX = 512
/** In place of the owner, who is not known yet. */
const STRANGERS = ''
/** How many wait for keys, apart from those: a slow issuer does not keep out known keys. */
const WAITING_FOR_KEYS_MAX = 256
// RFC 8725 §3.11: other kinds of JWT, such as logout tokens, must not pass for access tokens. The
// last two are from RFC 9068 §2.1. Media types are compared without case (RFC 7515 §4.1.9).
const ACCEPTED_TYP: ReadonlySet<string> = new Set(['jwt', 'at+jwt', 'application/at+jwt'])

const MIN_RSA_BITS = 2048

/** The codes of jose's errors. No error of Node has one that begins so. */
const JOSE_CODES = /^ERR_(?:JOSE|JW[A-Z]+)_/

/**
 * Places of a request with a chunked body. In another application's server Node may hold 2.7 MiB
 * for it, which one read of one-byte chunks takes: 64 of them are 173 MiB.
 */
const CHUNKED_PLACES = 8

/** The request that brought a token. */
export interface TokenRequest {
  readonly isChunked: boolean
  /** True once the client has left. */
  readonly isOver: boolean
}

export class Verifier {
  readonly #source: KeySource
  readonly #rules: TokenRules
  readonly #now: () => number
  readonly #verifying = new Limiter('tokens', VERIFYING_MAX, 2 * WAITING_MAX)
  readonly #waitingForKeys = new Budget(2 * WAITING_FOR_KEYS_MAX)
  /** Tokens that were verified, by result, and tokens that were found in the cache. */
  readonly counts = { accepted: 0, refused: 0, cached: 0 }

  /** `now` returns milliseconds since 1970. */
  constructor(source: KeySource, rules: TokenRules, now = Date.now) {
    this.#source = source
    this.#rules = rules
    this.#now = now
  }

  /**
   * Returns the caller at once if the token is in the cache. All errors are rejections.
   * @throws HttpError tokenInvalid, tokenExpired, tokenUnacceptable or keysUnavailable; `cause`
   * says why.
   * @throws HttpError overloaded if too many tokens wait.
   * @throws ClientGone if the client left while its token waited.
   */
  verify(token: string, request: TokenRequest): Caller | Promise<Caller> {
    const cached = this.#findCached(token)
    if (cached !== undefined) return cached
    return this.#verifyInTurn(token, request)
  }

  async #verifyInTurn(token: string, request: TokenRequest): Promise<Caller> {
    const places = request.isChunked ? CHUNKED_PLACES : 1
    const fetched = this.#fetchKeys(token)
    if (fetched) {
      const hold = this.#waitingForKeys.reserve(STRANGERS, places, 'too many tokens wait')
      await fetched
      hold.set(0)
    }
    const verify = (): Promise<Caller> => {
      if (request.isOver) throw new ClientGone()
      return this.#verifyOnce(token)
    }
    return this.#verifying.run(STRANGERS, verify, places)
  }

  /** The fetch that may bring its key, if that must be fetched. */
  #fetchKeys(token: string): Promise<void> | undefined {
    try {
      const [header = ''] = token.slice(0, MAX_HEADER_LENGTH + 1).split('.', 1)
      return this.#source.fetchFor?.(decodeProtectedHeader({ protected: header }).kid)
    } catch {
      // A malformed token needs no key. It is refused in its turn.
      return undefined
    }
  }

  #findCached(token: string): Caller | undefined {
    const caller = this.#source.keys?.verified.get(token, Math.floor(this.#now() / 1000))
    if (caller !== undefined) this.counts.cached++
    return caller
  }

  async #verifyOnce(token: string): Promise<Caller> {
    // While this request waited, another one may have verified the same token.
    const cached = this.#findCached(token)
    if (cached !== undefined) return cached
    const { keys, unavailable } = this.#source
    try {
      checkForm(token)
      if (keys === undefined) throw unavailable
      const claims = await this.#verifyClaims(token, keys)
      const caller = readCaller(claims, this.#rules)
      keys.verified.add(token, Number(claims.exp), caller)
      this.counts.accepted++
      return caller
    } catch (error) {
      this.counts.refused++
      throw refusalOf(error)
    }
  }

  /** Verifies the signature and all claims, except those that say who the caller is. */
  async #verifyClaims(token: string, keys: Keys): Promise<JWTPayload> {
    const { issuer, audience, audienceClaim, clockTolerance } = this.#rules
    const keyOf = async (header: CompactJWSHeaderParameters, jws: FlattenedJWSInput) => {
      checkHeader(header)
      const key = await keys.find(header, jws)
      checkRsa(token, key)
      return key
    }
    const { payload: claims } = await jwtVerify(token, keyOf, {
      // RFC 8725 §3.1: the service and its keys choose the algorithm, the token does not.
      algorithms: [...keys.algorithms],
      issuer,
      requiredClaims: ['exp'],
      clockTolerance,
      // Now, after the wait for keys and its turn.
      currentDate: new Date(this.#now()),
      ...(audienceClaim === 'aud' ? { audience } : {}),
    })
    const audiences = [requiredClaimOf(claims, audienceClaim)].flat()
    if (audienceClaim !== 'aud' && !audiences.includes(audience))
      throw invalidToken('tokenUnacceptable', 'the audience claim does not hold the audience')
    // JSON's 1e400 is Infinity, which jose takes for a number: the token would never expire.
    if (!Number.isFinite(claims.exp)) throw invalidToken('tokenUnacceptable', 'exp is not finite')
    return claims
  }
}

/**
 * RSA verifies with 2048 bits or more (RFC 7518 §3.3), of which jose makes a TypeError. A signature
 * has as many bytes as the modulus (RFC 8017 §8.1.2, §8.2.2): OpenSSL takes a PS signature without
 * its leading zeros too, so that one token would have several spellings.
 */
function checkRsa(token: string, { algorithm }: CryptoKey): void {
  if (!('modulusLength' in algorithm)) return
  if (Number(algorithm.modulusLength) < MIN_RSA_BITS)
    throw invalidToken('tokenInvalid', 'its RSA key is weak')
  const bytes = Math.floor(((token.length - token.lastIndexOf('.') - 1) * 3) / 4)
  if (bytes !== Math.ceil(Number(algorithm.modulusLength) / 8))
    throw invalidToken('tokenInvalid', 'signature verification failed')
}

/**
 * Checks that a token is one compact JWS in its only spelling (RFC 7515 §2, §3.1), so that two
 * different strings are never the same token. Nothing is verified yet.
 * @throws HttpError tokenInvalid.
 */
function checkForm(token: string): void {
  // Characters are bytes here: decodePart refuses all others.
  if (token.length > MAX_TOKEN_BYTES)
    throw invalidToken('tokenInvalid', `longer than ${MAX_TOKEN_BYTES} bytes`)
  if (token.indexOf('.') > MAX_HEADER_LENGTH)
    throw invalidToken('tokenInvalid', `a header longer than ${MAX_HEADER_LENGTH} characters`)
  const parts = token.split('.')
  if (parts.length !== 3) throw invalidToken('tokenInvalid', 'not three parts')
  // jose checks the UTF-8 too, but only once it has a key: this is refused without one.
  if (!parts.map(decodePart).slice(0, 2).every(isUtf8))
    throw invalidToken('tokenInvalid', 'the header or the payload is not UTF-8')
}

/**
 * Encoding the bytes again gives the one canonical spelling: a part with padding, unused bits or
 * another alphabet differs from it, and is refused.
 */
function decodePart(part: string): Buffer {
  const bytes = Buffer.from(part, 'base64url')
  if (part === '' || bytes.toString('base64url') !== part)
    throw invalidToken('tokenInvalid', 'not canonical base64url')
  return bytes
}

/** @throws HttpError tokenInvalid. */
function checkHeader({ typ, b64 }: CompactJWSHeaderParameters): void {
  if (typ !== undefined && !(typeof typ === 'string' && ACCEPTED_TYP.has(typ.toLowerCase())))
    throw invalidToken('tokenInvalid', 'a token of another kind, by its typ')
  // RFC 7797 §7: a JWT never has an unencoded payload. jose reads b64 only if crit lists it.
  if (b64 !== undefined && b64 !== true) throw invalidToken('tokenInvalid', 'unencoded payload')
}

/** The error with its condition. jose's own errors carry the claims, which must not be logged. */
function refusalOf(error: unknown): unknown {
  const code = errorCodeOf(error)
  // Node cannot import the key that the token names. The issuer may have written it wrong.
  if (isError(error) && error.name === 'DataError')
    return invalidToken('tokenInvalid', 'its key cannot be used')
  if (!isError(error) || code === undefined || !JOSE_CODES.test(code)) return error
  // Its message quotes the token.
  if (code === 'ERR_JOSE_NOT_SUPPORTED') return invalidToken('tokenInvalid', 'unknown extension')
  if (code === 'ERR_JWT_EXPIRED') return invalidToken('tokenExpired', error.message)
  const isClaim = code === 'ERR_JWT_CLAIM_VALIDATION_FAILED'
  return invalidToken(isClaim ? 'tokenUnacceptable' : 'tokenInvalid', error.message)
}
