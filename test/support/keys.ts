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
