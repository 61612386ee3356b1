import { createPublicKey } from 'node:crypto'
import type { JsonWebKey, KeyObject } from 'node:crypto'
import type { JWK } from 'jose'
import { createLocalJWKSet, type LocalJWKSet } from 'jose/jwks/local'
import { isJsonObject, type JsonObject, readJsonObject, reasonOf } from './json.ts'

/** RFC 7518 §3.1, RFC 8037 §3.1, RFC 9864 §2.2: what a public key may verify, by its kty and crv. */
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

export interface KeySet {
  /** The usable keys in one spelling and order: the same text is the same keys. */
  readonly text: string
  /** How many keys are usable. */
  readonly size: number
  /** Keys that have no business in a set of public keys, one line each, named by kid or else by index. */
  readonly flaws: readonly string[]
  readonly find: LocalJWKSet
}

/**
 * Reads a JSON Web Key Set (RFC 7517 §5) and keeps its usable keys. Keys for other purposes are passed over in silence;
 * symmetric, private, weak and invalid ones are left out, and are `flaws`.
 * @throws Error when the bytes are no key set at all.
 */
export function readKeySet(bytes: Uint8Array): KeySet {
  const { keys } = readJsonObject(bytes)
  if (!Array.isArray(keys)) throw new Error('not a JSON Web Key Set')
  const usable = new Map<string, JWK>()
  const flaws: string[] = []
  for (const [index, jwk] of keys.entries()) {
    try {
      const key = readKey(jwk)
      // A key that stands twice counts once, else a token without a kid would fit two.
      if (key !== undefined) usable.set(JSON.stringify(key), key)
    } catch (error) {
      const name = isJsonObject(jwk) && typeof jwk['kid'] === 'string' ? JSON.stringify(jwk['kid']) : String(index)
      flaws.push(`key ${name} ${reasonOf(error)}`)
    }
  }
  const find = createLocalJWKSet({ keys: [...usable.values()] })
  return { text: [...usable.keys()].sort().join('\n'), size: usable.size, flaws, find }
}

/**
 * A key as jose gets it: its public members written anew, kid and alg, nothing else. undefined: it is for another purpose.
 * @throws Error that says why the key must not be here.
 */
function readKey(jwk: unknown): JWK | undefined {
  if (!isJsonObject(jwk)) throw new Error('is not a JSON object')
  const { kty, crv, use, key_ops: operations, alg, kid } = jwk
  if (kty === 'oct') throw new Error('is symmetric')
  const secret = PRIVATE_MEMBERS.find((name) => Object.hasOwn(jwk, name))
  if (secret !== undefined) throw new Error(`holds a private part, "${secret}"`)
  if (kid !== undefined && typeof kid !== 'string') throw new Error('has a kid that is not a string')

  // RFC 7517 §4.2, §4.3: what the key is for.
  if (use !== undefined && use !== 'sig') return undefined
  if (operations !== undefined && !(Array.isArray(operations) && operations.includes('verify'))) return undefined
  const algorithms = FITTING.get(kty === 'RSA' ? 'RSA' : [kty, crv].join(' '))
  if (algorithms === undefined || (alg !== undefined && !algorithms.some((name) => name === alg))) return undefined

  // An EC or OKP key that createPublicKey has taken is a point of its curve; its export is the canonical spelling.
  const key = importPublic(jwk)
  checkStrength(key)
  return {
    ...key.export({ format: 'jwk' }),
    ...(kid === undefined ? {} : { kid }),
    ...(alg === undefined ? {} : { alg }),
  } as JWK // node's type lets every member be absent; what a public key exports has those that its kty requires
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
  if (modulusLength < MIN_RSA_BITS) throw new Error(`is weak: ${modulusLength} bits, fewer than ${MIN_RSA_BITS}`)
  // With an exponent of 1 every signature is its own message; an even one is no RSA exponent.
  if (publicExponent < 3n || publicExponent % 2n === 0n) throw new Error(`is weak: its public exponent is ${publicExponent}`)
}
