import {
  createPrivateKey,
  createPublicKey,
  type ED25519KeyPairOptions,
  type KeyObject,
  type KeyPairSyncResult,
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
