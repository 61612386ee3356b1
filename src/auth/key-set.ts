/** Reads a set of public keys, and keeps those that may verify tokens. */
import type { CryptoKey, JWK } from 'jose'
import { JWKSMultipleMatchingKeys } from 'jose/errors'
import { createLocalJWKSet } from 'jose/jwks/local'
import { isJsonObject, type JsonObject } from './json-object.ts'
import type { Keys } from './key-source.ts'
import { TokenCache } from './token-cache.ts'

// RFC 7518 §3.1, RFC 8037 §3.1, RFC 9864 §2.2.
const RSA = ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512']
const ALGORITHMS = [...RSA, 'ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519']
const KTYS: readonly unknown[] = ['RSA', 'EC', 'OKP']
// RFC 7517 §4.2; SPIFFE's Trust Domain and Bundle §4.2.2, whose `x509-svid` is for certificates.
const USES: readonly unknown[] = ['sig', 'jwt-svid']
// RFC 7518 §6.2.2, §6.3.2, RFC 8037 §2; `k` is symmetric; `priv` is of the post-quantum kty AKP.
const SECRET_MEMBERS = ['k', 'd', 'p', 'q', 'dp', 'dq', 'qi', 'oth', 'priv']

const KEY_SET = 'a JSON Web Key Set, {"keys": [...]}'
/** This many first bytes tell what a file is, even after some blank lines. */
const MAX_START = 256
/** A token that names no key is tried with this many at most: each takes a whole verification. */
const MAX_TRIED_KEYS = 4

/**
 * Reads a JSON Web Key Set (RFC 7517 §5). Keys for other purposes are ignored. The others are
 * trusted, as their issuer is; which of them fits a token, jose decides.
 * @throws Error if the bytes are no key set, or have no usable key: such a set must not replace an
 * earlier one. Also if they have a key that is symmetric or private, and such keys are `refused`.
 */
export function readKeySet(bytes: Uint8Array, secretKeys: 'ignored' | 'refused' = 'ignored'): Keys {
  const { keys: members } = readJsonObject(bytes, KEY_SET)
  if (!Array.isArray(members)) throw new Error(`must be ${KEY_SET}, and has no list of keys`)
  const objects = members.filter(isJsonObject)
  const secret = objects.find(isSecret)
  const name = JSON.stringify(secret?.['kid'] ?? members.indexOf(secret))
  if (secret && secretKeys === 'refused') throw new Error(`key ${name} is symmetric or private`)
  // Node imports no key whose list of operations has others than `verify`, and jose drops a `use`
  // that it does not know.
  const usable = objects.filter(isUsable).map(({ key_ops: _, ext: __, use: ___, ...jwk }) => jwk)
  // A repeated key counts once, or a kid would fit two keys.
  const byText = new Map(usable.map((key) => [JSON.stringify(key), key]))
  const keys = [...byText.values()]
  if (keys.length === 0) throw new Error('the key set holds no key that can verify a token')
  const findOne = createLocalJWKSet({ keys })
  return {
    text: [...byText.keys()].sort().join('\n'),
    size: keys.length,
    kids: new Set(keys.map((key) => key.kid)),
    algorithms: ALGORITHMS,
    verified: new TokenCache(),
    async find(header) {
      try {
        return [await findOne(header)]
      } catch (error) {
        // A kid names one key. An issuer that writes none has two keys while it changes its key.
        if (!(error instanceof JWKSMultipleMatchingKeys) || header.kid !== undefined) throw error
        const found: CryptoKey[] = []
        // jose leaves out those that Node cannot import.
        for await (const key of error)
          if (found.push(key) > MAX_TRIED_KEYS)
            throw new JWKSMultipleMatchingKeys(`no kid, and more than ${MAX_TRIED_KEYS} keys fit`)
        return found
      }
    },
  }
}

function isSecret(jwk: JsonObject): boolean {
  return jwk['kty'] === 'oct' || SECRET_MEMBERS.some((name) => name in jwk)
}

/** True for a public key that is not for another purpose (RFC 7517 §4.2, §4.3). */
function isUsable(jwk: JsonObject): jwk is JWK & { readonly kty: string } {
  const { kty, use = 'sig', key_ops: operations = ['verify'] } = jwk
  const isToVerify = Array.isArray(operations) && operations.includes('verify')
  return KTYS.includes(kty) && USES.includes(use) && isToVerify && !isSecret(jwk)
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
  const format = formatOf(bytes) ?? 'no JSON object in UTF-8'
  // It begins like one.
  throw new Error(`must be ${wanted}, and is ${format === 'a key set' ? 'broken JSON' : format}`)
}

/** Names what people configure by mistake: a key, a key set, or what a proxy answers. */
export function formatOf(bytes: Uint8Array): 'PEM' | 'a key set' | 'HTML or XML' | undefined {
  const start = new TextDecoder().decode(bytes.subarray(0, MAX_START)).trimStart()
  if (start.startsWith('-----BEGIN')) return 'PEM'
  if (/^\{\s*"(?:keys|kty)"/.test(start)) return 'a key set'
  return start.startsWith('<') ? 'HTML or XML' : undefined
}
