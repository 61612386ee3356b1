import {
  constants,
  createHmac,
  createPrivateKey,
  createPublicKey,
  type ED25519KeyPairOptions,
  type KeyObject,
  type KeyPairSyncResult,
  sign,
} from 'node:crypto'

/**
 * Options of `generateKeyPairSync`, whose result then goes through `readPair`. Node 20 hangs if the
 * garbage collection that an export causes frees the generator of the same key: both wait for the
 * key's lock on one thread. A key that was read has no generator.
 */
export const PEM: ED25519KeyPairOptions<'pem', 'pem'> = {
  publicKeyEncoding: { type: 'spki', format: 'pem' },
  privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
}

export interface KeyPair {
  readonly publicKey: KeyObject
  readonly privateKey: KeyObject
}

export function readPair({ publicKey, privateKey }: KeyPairSyncResult<string, string>): KeyPair {
  return { publicKey: createPublicKey(publicKey), privateKey: createPrivateKey(privateKey) }
}

/** A pair that is made when it is first used: an RSA key takes long. */
export function lazyPair(make: () => KeyPairSyncResult<string, string>): KeyPair {
  let made: KeyPair | undefined
  const pair = (): KeyPair => (made ??= readPair(make()))
  return {
    get publicKey() {
      return pair().publicKey
    },
    get privateKey() {
      return pair().privateKey
    },
  }
}

/** A public key of RFC 8037, appendix A.2. */
export const RFC_KEY = {
  kty: 'OKP',
  crv: 'Ed25519',
  x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo',
} as const

/** A private key, or a secret. */
export type Key = KeyObject | Uint8Array | string

/** Signs as JWS does (RFC 7518 §3), with any key: also one of another algorithm. */
export function signBytes(alg: string, input: string, key: Key): Buffer {
  const hash = `sha${alg.slice(2)}`
  if (typeof key === 'string' || key instanceof Uint8Array)
    return createHmac(hash, key).update(input).digest()
  const saltLength = constants.RSA_PSS_SALTLEN_DIGEST
  const pss = { padding: constants.RSA_PKCS1_PSS_PADDING, saltLength }
  const options = { key, dsaEncoding: 'ieee-p1363', ...(alg.startsWith('PS') ? pss : {}) } as const
  return sign(alg.startsWith('Ed') ? null : hash, Buffer.from(input), options)
}
