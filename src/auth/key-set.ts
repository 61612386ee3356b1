/** Reads a set of public keys, and keeps those that may verify tokens. */
import { createPublicKey, type JsonWebKey } from 'node:crypto'
import type { JWK } from 'jose'
import { createLocalJWKSet } from 'jose/jwks/local'
import { reasonOf } from '../errors.ts'
import type { Keys } from './key-source.ts'
import { TokenCache } from './token-cache.ts'

/** What a public key may verify, by kty and crv: RFC 7518 §3.1, RFC 8037 §3.1, RFC 9864 §2.2. */
const ALGORITHMS: ReadonlyMap<string, readonly string[]> = new Map([
  ['RSA', ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512']],
  ['EC P-256', ['ES256']],
  ['EC P-384', ['ES384']],
  ['EC P-521', ['ES512']],
  ['OKP Ed25519', ['EdDSA', 'Ed25519']],
])

// RFC 7518 §6.2.2, §6.3.2, RFC 8037 §2; `priv` is that of the post-quantum kty AKP.
const PRIVATE_MEMBERS = ['d', 'p', 'q', 'dp', 'dq', 'qi', 'oth', 'priv']

/** RFC 7518 §3.3. */
const MIN_RSA_BITS = 2048

/**
 * Base64url characters: of RSA keys of 16,384 bits with exponents of 64, as in OpenSSL, and of
 * P-521. Node takes minutes to import an exponent of 500 KB.
 */
const MAX_MEMBER_LENGTHS = { n: 2731, e: 11, x: 88, y: 88 }

/** A usual key takes 0.1 ms to import, one on P-521 1 ms. */
export const MAX_KEYS = 100
/** Characters of a kid in a message. */
const MAX_KID_SHOWN = 64

const KEY_SET = 'a JSON Web Key Set, {"keys": [...]}'

/** Bytes that say what a file is, with lines of blanks before them. */
const MAX_START = 256

type JsonObject = Readonly<Record<string, unknown>>

export interface KeySet extends Keys {
  /** The usable keys, sorted and in one spelling: equal texts mean equal keys. */
  readonly text: string
  /** How many keys are usable. */
  readonly size: number
  /** Their `kid`s. */
  readonly kids: ReadonlySet<unknown>
  /** Keys that must not be in a set of public keys, one line each, named by kid or index. */
  readonly rejectedKeys: readonly string[]
}

/**
 * Reads a JSON Web Key Set (RFC 7517 §5). Keys for other purposes are ignored. Symmetric, private,
 * weak, oversized and invalid keys are rejected, and so are all keys after the first 100.
 * @throws Error if the bytes are no key set.
 */
export function readKeySet(bytes: Uint8Array): KeySet {
  const { keys: members } = readJsonObject(bytes, KEY_SET)
  if (!Array.isArray(members)) throw new Error(`must be ${KEY_SET}, and has no list of keys`)
  const candidates = [...members.entries()].filter(([, jwk]) => !isForAnotherPurpose(jwk))
  const imported = candidates.slice(0, MAX_KEYS).map(([index, jwk]) => importKey(index, jwk))
  const excess = candidates.length - MAX_KEYS
  if (excess > 0) imported.push(`keys after the first ${MAX_KEYS}: ${excess}`)
  // A repeated key counts once, or a token without a kid would fit two keys.
  const usable = imported.filter((each) => typeof each === 'object')
  const byText = new Map(usable.map((key) => [JSON.stringify(key), key]))
  const keys = [...byText.values()]
  return {
    text: [...byText.keys()].sort().join('\n'),
    size: keys.length,
    kids: new Set(keys.map(({ kid }) => kid)),
    rejectedKeys: imported.filter((each) => typeof each === 'string'),
    algorithms: [...ALGORITHMS.values()].flat(),
    verified: new TokenCache(),
    find: createLocalJWKSet({ keys }),
  }
}

/**
 * @throws Error if the bytes are no JSON object in UTF-8. Its message says what is `wanted`, and
 * quotes nothing of the bytes.
 */
export function readJsonObject(bytes: Uint8Array, wanted: string): JsonObject {
  let value: unknown
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch {
    // JSON.parse would quote the bytes, which may be a secret in the wrong place.
  }
  if (isJsonObject(value)) return value
  throw new Error(`must be ${wanted}, and is ${formatOf(bytes) ?? 'no JSON object in UTF-8'}`)
}

/** Names what people take for something else: a key, a key set, or what a proxy answers. */
export function formatOf(bytes: Uint8Array): 'PEM' | 'a key set' | 'HTML or XML' | undefined {
  const start = new TextDecoder().decode(bytes.subarray(0, MAX_START)).trimStart()
  if (start.startsWith('-----BEGIN')) return 'PEM'
  if (/^\{\s*"(?:keys|kty)"/.test(start)) return 'a key set'
  return start.startsWith('<') ? 'HTML or XML' : undefined
}

function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** A public key that verifies no token here; RFC 7517 §4.2 and §4.3 say what a key is for. */
function isForAnotherPurpose(jwk: unknown): boolean {
  if (!isJsonObject(jwk) || secrecyOf(jwk) !== undefined) return false
  const { kty, crv, use, key_ops: operations = ['verify'], alg } = jwk
  if (use !== undefined && use !== 'sig') return true
  if (!Array.isArray(operations) || !operations.includes('verify')) return true
  // Strings only: a deeply nested list cannot be made a string.
  const curve = typeof kty === 'string' && typeof crv === 'string' ? `${kty} ${crv}` : ''
  const algorithms = ALGORITHMS.get(kty === 'RSA' ? kty : curve)
  return algorithms === undefined || (alg !== undefined && !algorithms.some((one) => one === alg))
}

/** Why a key is not public; undefined if it is. */
function secrecyOf(jwk: JsonObject): string | undefined {
  if (jwk['kty'] === 'oct') return 'symmetric'
  const secret = PRIVATE_MEMBERS.find((name) => Object.hasOwn(jwk, name))
  return secret === undefined ? undefined : `it holds a private part, "${secret}"`
}

/** A usable key, or the line that names a rejected one. */
function importKey(index: number, jwk: unknown): JWK | string {
  try {
    return readKey(jwk)
  } catch (error) {
    const kid = isJsonObject(jwk) ? jwk['kid'] : undefined
    const name = typeof kid === 'string' ? JSON.stringify(kid.slice(0, MAX_KID_SHOWN)) : index
    return `key ${name} is rejected: ${reasonOf(error)}`
  }
}

/**
 * A key as jose receives it: its public members in one spelling, kid and alg, nothing else.
 * @throws Error that says why the key is rejected.
 */
function readKey(jwk: unknown): JWK {
  if (!isJsonObject(jwk)) throw new Error('not a JSON object')
  const { alg, kid } = jwk
  const secrecy = secrecyOf(jwk)
  if (secrecy !== undefined) throw new Error(secrecy)
  if (kid !== undefined && typeof kid !== 'string')
    throw new Error('its kid is not a string')
  checkLengths(jwk)
  // Node checks that members are strings, and that an EC or OKP key is a point of its curve.
  const key = createPublicKey({ format: 'jwk', key: jwk as JsonWebKey })
  const { modulusLength: bits, publicExponent: exponent } = key.asymmetricKeyDetails ?? {}
  if (bits !== undefined && bits < MIN_RSA_BITS)
    throw new Error(`weak: ${bits} bits, fewer than ${MIN_RSA_BITS}`)
  // With an exponent of 1 every signature is its own message. RSA has no even exponents.
  if (exponent !== undefined && (exponent < 3n || exponent % 2n === 0n))
    throw new Error(`weak: its public exponent is ${exponent}`)
  return {
    ...key.export({ format: 'jwk' }),
    ...(kid === undefined ? {} : { kid }),
    ...(alg === undefined ? {} : { alg }),
  } as JWK // Node's type lets every member be absent; an exported key has all that its kty needs.
}

function checkLengths(jwk: JsonObject): void {
  for (const [name, max] of Object.entries(MAX_MEMBER_LENGTHS)) {
    const value = jwk[name]
    if (typeof value !== 'string' || value.length <= max) continue
    throw new Error(`oversized: "${name}" has ${value.length} characters, more than ${max}`)
  }
}
