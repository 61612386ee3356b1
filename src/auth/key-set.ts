import { reasonOf } from '../errors.ts'
import { createPublicKey } from 'node:crypto'
import type { JsonWebKey, KeyObject } from 'node:crypto'
import { setImmediate as nextTick } from 'node:timers/promises'
import type { JWK } from 'jose'
import { createLocalJWKSet, type LocalJWKSet } from 'jose/jwks/local'
import { isJsonObject, type JsonObject, readJsonObject } from './json-object.ts'

/**
 * RFC 7518 §3.1, RFC 8037 §3.1, RFC 9864 §2.2: what a public key may verify, by its kty and crv.
 */
const FITTING: ReadonlyMap<string, readonly string[]> = new Map([
  ['RSA', ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512']],
  ['EC P-256', ['ES256']],
  ['EC P-384', ['ES384']],
  ['EC P-521', ['ES512']],
  ['OKP Ed25519', ['EdDSA', 'Ed25519']],
])

export const PUBLIC_ALGORITHMS: readonly string[] = [...FITTING.values()].flat()

// RFC 7518 §6.2.2, §6.3.2, RFC 8037 §2; `priv` is that of the post-quantum kty AKP.
const PRIVATE_MEMBERS = ['d', 'p', 'q', 'dp', 'dq', 'qi', 'oth', 'priv']

/** RFC 7518 §3.3. */
const MIN_RSA_BITS = 2048

/**
 * Characters of base64url: RSA keys of 16,384 bits and exponents of 64, as in OpenSSL, and P-521.
 * Node takes minutes to import an exponent of 500 KB.
 */
const MAX_MEMBER_LENGTHS = [
  ['n', 2731],
  ['e', 11],
  ['x', 88],
  ['y', 88],
] as const

/** Each takes up to 2 ms to import. */
export const MAX_KEYS = 100
/** So many rejected keys are named, each by so many characters of its kid. */
const MAX_FLAWS = 10
const MAX_KID_SHOWN = 64

/** These take up to 0.6 ms of a core to verify; P-384, P-521 and longer RSA keys 1 to 7 ms. */
export const AT_ONCE_IF_FAST = 16
const MAX_FAST_RSA_LENGTH = 683

export interface KeySet {
  /** The usable keys in one spelling and order: the same text is the same keys. */
  readonly text: string
  /** How many keys are usable. */
  readonly size: number
  /**
   * Keys that have no business in a set of public keys, one line each, named by kid or else by
   * index.
   */
  readonly flaws: readonly string[]
  /** How many signatures may be verified at once. */
  readonly atOnce: number
  readonly find: LocalJWKSet
}

/**
 * Reads a JSON Web Key Set (RFC 7517 §5) and keeps its usable keys. Keys for other purposes are
 * passed over in silence; symmetric, private, weak, oversized and invalid ones are left out, and
 * are `flaws`; so are those after the first 100.
 * @throws Error when the bytes are no key set at all.
 */
export function readKeySet(bytes: Uint8Array): KeySet {
  const steps = readingKeySet(bytes)
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}

/** The same, one key per tick. */
export async function readKeySetInSteps(bytes: Uint8Array): Promise<KeySet> {
  const steps = readingKeySet(bytes)
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
    await nextTick()
  }
}

/** Pauses after each key. */
function* readingKeySet(bytes: Uint8Array): Generator<undefined, KeySet, undefined> {
  const { keys } = readJsonObject(bytes)
  if (!Array.isArray(keys)) throw new Error('not a JSON Web Key Set')
  const usable = new Map<string, JWK>()
  const flaws: string[] = []
  let count = 0
  for (const [index, jwk] of keys.entries()) {
    if (isForOthers(jwk) || ++count > MAX_KEYS) continue
    try {
      const key = readKey(jwk)
      // A key that stands twice counts once, else a token without a kid would fit two.
      usable.set(JSON.stringify(key), key)
    } catch (error) {
      flaws.push(`key ${nameOf(jwk, index)} ${reasonOf(error)}`)
    }
    yield
  }
  const unnamed = flaws.splice(MAX_FLAWS).length
  if (unnamed > 0) flaws.push(`more rejected keys: ${unnamed}`)
  if (count > MAX_KEYS) flaws.push(`keys after the first ${MAX_KEYS}: ${count - MAX_KEYS}`)
  const jwks = [...usable.values()]
  return {
    text: [...usable.keys()].sort().join('\n'),
    size: usable.size,
    flaws,
    atOnce: jwks.every(isFast) ? AT_ONCE_IF_FAST : 1,
    find: createLocalJWKSet({ keys: jwks }),
  }
}

function nameOf(jwk: unknown, index: number): string {
  const kid = isJsonObject(jwk) ? jwk['kid'] : undefined
  return typeof kid === 'string' ? JSON.stringify(kid.slice(0, MAX_KID_SHOWN)) : String(index)
}

/** A public key that verifies no token here: RFC 7517 §4.2, §4.3 say what a key is for. */
function isForOthers(jwk: unknown): boolean {
  if (!isJsonObject(jwk) || secrecyOf(jwk) !== undefined) return false
  const { kty, crv, use, key_ops: operations = ['verify'], alg } = jwk
  if (use !== undefined && use !== 'sig') return true
  if (!Array.isArray(operations) || !operations.includes('verify')) return true
  // Only strings: a list that is nested deep cannot be made one.
  const curve = typeof kty === 'string' && typeof crv === 'string' ? `${kty} ${crv}` : ''
  const algorithms = FITTING.get(kty === 'RSA' ? kty : curve)
  return algorithms === undefined || (alg !== undefined && !algorithms.some((one) => one === alg))
}

/** Why a key is no public one; undefined if it is. */
function secrecyOf(jwk: JsonObject): string | undefined {
  if (jwk['kty'] === 'oct') return 'is symmetric'
  const secret = PRIVATE_MEMBERS.find((name) => Object.hasOwn(jwk, name))
  return secret === undefined ? undefined : `holds a private part, "${secret}"`
}

/**
 * A key as jose gets it: its public members written anew, kid and alg, nothing else.
 * @throws Error that says why the key must not be here.
 */
function readKey(jwk: unknown): JWK {
  if (!isJsonObject(jwk)) throw new Error('is not a JSON object')
  const { alg, kid } = jwk
  const secrecy = secrecyOf(jwk)
  if (secrecy !== undefined) throw new Error(secrecy)
  if (kid !== undefined && typeof kid !== 'string')
    throw new Error('has a kid that is not a string')
  checkLengths(jwk)
  // An EC or OKP key that createPublicKey has taken is a point of its curve; its export is the
  // canonical spelling.
  const key = importPublic(jwk)
  checkStrength(key)
  return {
    ...key.export({ format: 'jwk' }),
    ...(kid === undefined ? {} : { kid }),
    ...(alg === undefined ? {} : { alg }),
  } as JWK // node's type lets every member be absent; what a public key exports has those that its kty requires
}

function checkLengths(jwk: JsonObject): void {
  for (const [name, max] of MAX_MEMBER_LENGTHS) {
    const value = jwk[name]
    if (typeof value !== 'string' || value.length <= max) continue
    throw new Error(`is oversized: "${name}" has ${value.length} characters, more than ${max}`)
  }
}

function isFast({ crv, n = '' }: JWK): boolean {
  return crv !== 'P-384' && crv !== 'P-521' && n.length <= MAX_FAST_RSA_LENGTH
}

function importPublic(jwk: JsonObject): KeyObject {
  try {
    // The cast tells node that members are strings: it checks so itself, and throws.
    return createPublicKey({ format: 'jwk', key: jwk as JsonWebKey })
  } catch (cause) {
    throw new Error('is not a valid public key', { cause })
  }
}

function checkStrength(key: KeyObject): void {
  if (key.asymmetricKeyType !== 'rsa') return
  const { modulusLength = 0, publicExponent = 0n } = key.asymmetricKeyDetails ?? {}
  if (modulusLength < MIN_RSA_BITS)
    throw new Error(`is weak: ${modulusLength} bits, fewer than ${MIN_RSA_BITS}`)
  // With an exponent of 1 every signature is its own message; an even one is no RSA exponent.
  if (publicExponent < 3n || publicExponent % 2n === 0n)
    throw new Error(`is weak: its public exponent is ${publicExponent}`)
}
