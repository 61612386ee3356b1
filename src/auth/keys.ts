/** Makes the source of keys that is configured: a secret, a file, a URL, or discovery. */
import { webcrypto } from 'node:crypto'
import type { CryptoKey } from 'jose'
import { ConfigError } from '../errors.ts'
import type { Log } from '../telemetry/log.ts'
import { isTrustworthy } from './fetch.ts'
import { fileKeys } from './file-keys.ts'
import { formatOf, readKeySet } from './key-set.ts'
import { type KeySource, TIMING } from './key-source.ts'
import { discoverKeySet, RemoteKeys } from './remote-keys.ts'
import { TokenCache } from './token-cache.ts'

export type { KeySource, Timing } from './key-source.ts'

/**
 * A JSON Web Key Set is in a file, which is read again when it changes, or at a URL: https, or http
 * on loopback. With `discovery`, the issuer names that URL.
 */
export type KeyConfig =
  | { readonly kind: 'secret'; readonly secret: Uint8Array }
  | { readonly kind: 'file'; readonly path: string }
  | { readonly kind: 'url'; readonly url: string }
  | { readonly kind: 'discovery' }

/** RFC 7518 §3.2: a key for HS256 has at least as many bytes as its hash. */
const MIN_SECRET_BYTES = 32
const UNTRUSTWORTHY =
  'must be an https URL, or http on 127.0.0.0/8, [::1] or localhost, without user info'
const HS256 = { name: 'HMAC', hash: 'SHA-256' }

/**
 * Reads and checks the keys once. The returned function makes the source of one service.
 * The problems of a ConfigError do not name an option: the caller knows which one it read.
 * @throws ConfigError if the keys cannot be used, or their URL cannot be trusted.
 */
export function readKeys(
  config: KeyConfig,
  issuer: string,
  timing = TIMING,
): (log: Log) => KeySource {
  if (config.kind === 'secret') return secretKeys(config.secret)
  if (config.kind === 'file') return fileKeys(config.path, timing.poll)
  const url = config.kind === 'url' ? config.url : issuer
  // The message does not show the URL, which may hold a password.
  if (!isTrustworthy(url)) throw new ConfigError([UNTRUSTWORTHY])
  const isSet = config.kind === 'url'
  return (log) =>
    new RemoteKeys((get) => (isSet ? get(url, readKeySet) : discoverKeySet(url, get)), log, timing)
}

function secretKeys(secret: Uint8Array): () => KeySource {
  const { length } = secret
  if (length < MIN_SECRET_BYTES)
    throw new ConfigError([`must have at least ${MIN_SECRET_BYTES} bytes, and has ${length}`])
  // Anyone who has the public key could sign with it.
  const format = formatOf(secret)
  if (format === 'PEM' || format === 'a key set')
    throw new ConfigError([`must be a secret, and is ${format}: public keys are for JWKS settings`])
  let imported: Promise<CryptoKey> | undefined
  // Imported once: jose would import plain bytes for every token.
  const find = () =>
    (imported ??= webcrypto.subtle.importKey('raw', secret, HS256, false, ['verify']))
  const keys = { algorithms: ['HS256'], verified: new TokenCache(), find }
  return () => ({ keys })
}
