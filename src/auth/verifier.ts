/** Finds the caller of a request by its token: in the cache, or by verifying the token. */
import { isUtf8 } from 'node:buffer'
import type { webcrypto } from 'node:crypto'
import { setImmediate as nextTick } from 'node:timers/promises'
import type { CompactJWSHeaderParameters, CryptoKey, JWTVerifyGetKey } from 'jose'
import { decodeProtectedHeader } from 'jose/decode/protected_header'
import * as errors from 'jose/errors'
import { jwtVerify } from 'jose/jwt/verify'
import { ClientGone, isError } from '../errors.ts'
import { Budget, Overloaded } from '../limits/budget.ts'
import { type FairQueue, STRANGERS } from '../limits/fair-queue.ts'
import { Limiter } from '../limits/limiter.ts'
import { TokenRefused } from './bearer.ts'
import { type Caller, readCaller, type TokenRules } from './caller.ts'
import type { KeySource } from './key-source.ts'

/** Bytes of a token, dots included. A token with 200 groups has about 10,400. */
const MAX_TOKEN_BYTES = 12_288
/** Base64url characters of a token's header; usual ones have 100. */
const MAX_HEADER_LENGTH = 4096
/**
 * The header is parsed before the signature is verified, and again with it: hundreds of new names
 * take 0.8 ms. Each text has two quotes.
 */
const MAX_HEADER_TEXTS = 32
/**
 * How many signatures are verified at once: a token tries its keys one after another, in its place.
 * They share libuv's four threads with the writes of the journal, and delay a write by a few
 * milliseconds.
 */
const VERIFYING_MAX = 16
/**
 * Tokens that wait or are verified. The slowest usual signature, ES512, takes 3 ms of a core: the
 * last one waits for 1.5 s, or 6 s if all try four keys.
 */
const PLACES = 512
/** How many wait for keys, apart from those: a slow issuer does not keep out known keys. */
const WAITING_FOR_KEYS_MAX = 256
const TOO_MANY = 'too many tokens wait'
// RFC 8725 §3.11: other kinds of JWT, such as logout tokens, must not pass for access tokens. The
// last two are from RFC 9068 §2.1, JOSE is from SPIFFE's JWT-SVID §2.3. Media types are compared
// without case (RFC 7515 §4.1.9).
const ACCEPTED_TYP = /^(?:jwt|jose|at\+jwt|application\/at\+jwt)$/i

const MIN_RSA_BITS = 2048
const QUOTE = 0x22

const UNUSABLE = 'its key cannot be used'

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

/** What a verifier needs of its keys. */
export type TokenKeys = Pick<KeySource, 'keys' | 'unavailable' | 'fetchFor'>

export class Verifier {
  readonly #source: TokenKeys
  readonly #rules: TokenRules
  readonly #now: () => number
  readonly #queue: FairQueue
  // Strangers count as one owner, who has half of the places.
  readonly #places = new Budget(2 * PLACES)
  readonly #placesForKeys = new Budget(2 * WAITING_FOR_KEYS_MAX)
  readonly #verifying = new Limiter('tokens', VERIFYING_MAX, 2 * PLACES)
  /** Tokens that were verified, by result, and tokens that were found in the cache. */
  readonly counts = { accepted: 0, refused: 0, cached: 0 }

  /** `now` returns milliseconds since 1970. */
  constructor(source: TokenKeys, rules: TokenRules, queue: FairQueue, now = Date.now) {
    this.#source = source
    this.#rules = rules
    this.#queue = queue
    this.#now = now
  }

  /**
   * Returns the caller at once if the token is in the cache. All errors are rejections.
   * @throws TokenRefused; KeysUnavailable; Overloaded if too many tokens wait.
   * @throws ClientGone if the client left while its token waited.
   */
  verify(token: string, request: TokenRequest): Caller | Promise<Caller> {
    return this.#findCached(token) ?? this.#verifyInTurn(token, request)
  }

  /**
   * Takes a place, also if it could run at once: tokens of one tick come all together. It then
   * waits for a piece of the queue, for keys, and for a place among those that are verified, and
   * for none of them while it has the last.
   */
  async #verifyInTurn(token: string, request: TokenRequest): Promise<Caller> {
    const places = request.isChunked ? CHUNKED_PLACES : 1
    const hold = this.#places.reserve(STRANGERS, places, TOO_MANY)
    try {
      const kid = await this.#queue.run(STRANGERS, () => readKid(token, request), 0)
      const fetched = this.#source.fetchFor(kid)
      if (fetched) {
        const waiting = this.#placesForKeys.reserve(STRANGERS, places, TOO_MANY)
        hold.set(0)
        await fetched.finally(() => waiting.set(0))
        if (!hold.set(places)) throw new Overloaded(TOO_MANY)
      }
      // While this request waited, another one may have verified the same token.
      const verify = () => this.#findCached(token) ?? this.#verifyOnce(token, request)
      return await this.#verifying.run(STRANGERS, verify)
    } catch (error) {
      // Such a token may be good.
      if (error instanceof Overloaded || error instanceof ClientGone) throw error
      this.counts.refused++
      throw refusalOf(error)
    } finally {
      hold.set(0)
    }
  }

  #findCached(token: string): Caller | undefined {
    const caller = this.#source.keys?.verified.get(token, Math.floor(this.#now() / 1000))
    if (caller !== undefined) this.counts.cached++
    return caller
  }

  /** Verifies the signature, by the keys that fit one after another, and all claims. */
  async #verifyOnce(token: string, request: TokenRequest): Promise<Caller> {
    if (request.isOver) throw new ClientGone()
    const { keys, unavailable } = this.#source
    if (keys === undefined) throw unavailable
    const { issuer, audience, audienceClaim, clockTolerance } = this.#rules
    // RFC 8725 §3.1: the service and its keys choose the algorithm, the token does not.
    const options = { algorithms: keys.algorithms, issuer, requiredClaims: ['exp'], clockTolerance }
    const more = audienceClaim === 'aud' ? { audience: [...audience] } : {}
    const left: CryptoKey[] = []
    const keyOf: JWTVerifyGetKey = async (header) => {
      if (left.length === 0) left.push(...(await keys.find(header)))
      return checkKey(token, left.shift())
    }
    while (true) {
      // Now, after the wait for keys and its turn.
      const currentDate = new Date(this.#now())
      try {
        const verified = await jwtVerify(token, keyOf, { ...options, ...more, currentDate })
        checkHeader(verified.protectedHeader)
        const caller = readCaller(verified.payload, this.#rules)
        keys.verified.add(token, caller)
        this.counts.accepted++
        return caller
      } catch (error) {
        // What this key has not signed, the next one may have. Any other error is final: else a
        // token that has expired would become one with a wrong signature.
        if (left.length === 0 || !(error instanceof errors.JWSSignatureVerificationFailed))
          throw error
      }
      // As between two tokens: the journal's writes come first to the threads.
      await nextTick()
    }
  }
}

/** @throws TokenRefused tokenInvalid if this is not so. */
function demand(isSo: boolean, reason: string): void {
  if (!isSo) throw new TokenRefused('tokenInvalid', reason)
}

/**
 * RSA verifies with 2048 bits or more (RFC 7518 §3.3), of which jose makes a TypeError. A signature
 * has as many bytes as the modulus (RFC 8017 §8.1.2, §8.2.2): OpenSSL takes a PS signature without
 * its leading zeros too, so that one token would have several spellings.
 * @throws errors.JWSSignatureVerificationFailed as jose does.
 */
function checkKey(token: string, key: CryptoKey | undefined): CryptoKey {
  if (!key) throw new errors.JWSSignatureVerificationFailed(UNUSABLE)
  if (!('modulusLength' in key.algorithm)) return key
  // Only RSA has a modulus (Web Cryptography API §20.6).
  const { modulusLength: bits, publicExponent } = key.algorithm as webcrypto.RsaKeyAlgorithm
  // Big-endian. With an exponent of 1 a signature is its own message: anyone can make one.
  const exponent = BigInt(`0x0${Buffer.from(publicExponent).toString('hex')}`)
  if (bits < MIN_RSA_BITS || exponent <= 1n)
    throw new errors.JWSSignatureVerificationFailed('its RSA key is weak')
  const bytes = Buffer.byteLength(token.slice(token.lastIndexOf('.') + 1), 'base64url')
  if (bytes === Math.ceil(bits / 8)) return key
  throw new errors.JWSSignatureVerificationFailed()
}

/**
 * Checks that a token is one compact JWS in its only spelling (RFC 7515 §2, §3.1), so that two
 * different strings are never the same token. Nothing is verified yet. Returns the key it names.
 * @throws TokenRefused tokenInvalid; ClientGone.
 */
function readKid(token: string, request: TokenRequest): unknown {
  if (request.isOver) throw new ClientGone()
  // Characters are bytes here: all others differ once they are encoded again.
  demand(token.length <= MAX_TOKEN_BYTES, `longer than ${MAX_TOKEN_BYTES} bytes`)
  const isShort = token.indexOf('.') <= MAX_HEADER_LENGTH
  demand(isShort, `a header longer than ${MAX_HEADER_LENGTH} characters`)
  const parts = token.split('.')
  demand(parts.length === 3 && !parts.includes(''), 'not three parts')
  // Encoding the bytes again gives the one canonical spelling: a part with padding, unused bits or
  // another alphabet differs from it, and is refused.
  const bytes = parts.map((part) => Buffer.from(part, 'base64url'))
  const spelling = bytes.map((part) => part.toString('base64url')).join('.')
  demand(spelling === token, 'not canonical base64url')
  // jose checks the UTF-8 too, but only once it has a key: this is refused without one.
  demand(bytes.slice(0, 2).every(isUtf8), 'the header or the payload is not UTF-8')
  const quotes = (bytes[0] ?? Buffer.of()).filter((byte) => byte === QUOTE).length
  demand(quotes <= 2 * MAX_HEADER_TEXTS, `a header of more than ${MAX_HEADER_TEXTS} texts`)
  try {
    return decodeProtectedHeader(token).kid
  } catch {
    throw new TokenRefused('tokenInvalid', 'the header is no JSON object')
  }
}

/** @throws TokenRefused tokenInvalid. */
function checkHeader({ typ, b64 }: CompactJWSHeaderParameters): void {
  const isOurs = typ === undefined || (typeof typ === 'string' && ACCEPTED_TYP.test(typ))
  demand(isOurs, 'a token of another kind, by its typ')
  // RFC 7797 §7: a JWT never has an unencoded payload. jose reads b64 only if crit lists it.
  demand(b64 === undefined || b64 === true, 'unencoded payload')
}

/** What jose and Node throw, as a refusal. jose's errors carry the claims, which are not logged. */
function refusalOf(error: unknown): unknown {
  // Node cannot import the key that the token names. The issuer may have written it wrong.
  const isUnusable = isError(error) && error.name === 'DataError'
  if (isUnusable) return new TokenRefused('tokenInvalid', UNUSABLE)
  if (!(error instanceof errors.JOSEError)) return error
  if (error instanceof errors.JWTExpired) return new TokenRefused('tokenExpired', error.message)
  if (error instanceof errors.JWTClaimValidationFailed)
    return new TokenRefused('tokenUnacceptable', error.message)
  // Its message quotes the token.
  const isExtended = error instanceof errors.JOSENotSupported
  return new TokenRefused('tokenInvalid', isExtended ? 'unknown extension' : error.message)
}
