import { webcrypto } from 'node:crypto'
import type { CryptoKey } from 'jose'
import { ConfigError } from '../errors.ts'
import { isTrustworthy } from './fetch.ts'
import { FileKeys } from './file-keys.ts'
import { type KeyLog, type KeySource, TIMING, type Timing } from './key-source.ts'
import { discoverKeySet, RemoteKeys } from './remote-keys.ts'

export type { KeyLog, KeySource, Timing } from './key-source.ts'

export type KeyConfig =
  | { readonly kind: 'secret'; readonly secret: Uint8Array }
  | {
      readonly kind: 'file'
      /** Of a JSON Web Key Set, which is read again when it changes. */
      readonly path: string
    }
  | {
      readonly kind: 'url'
      /** Of a JSON Web Key Set: https, or http on loopback. */
      readonly url: string
    }
  | { readonly kind: 'discovery' }

/** RFC 7518 §3.2: a key for HS256 has at least as many bytes as its hash. */
const MIN_SECRET_BYTES = 32
/** HS256 takes 20 µs of a core; fewer at once would make the service slower. */
const SECRET_AT_ONCE = 32
const HS256 = { name: 'HMAC', hash: 'SHA-256' }

/**
 * The problems of a ConfigError do not name an option: the caller knows which one it read.
 * @throws ConfigError if the keys cannot be used, or their URL cannot be trusted.
 */
export function createKeySource(
  config: KeyConfig,
  issuer: string,
  log: KeyLog,
  timing: Timing = TIMING,
): KeySource {
  switch (config.kind) {
    case 'secret':
      return secretKeys(config.secret)
    case 'file':
      return new FileKeys(config.path, log, timing)
    case 'url':
      checkTrustworthy(config.url)
      return new RemoteKeys((fetcher) => fetcher.get(config.url), log, timing)
    case 'discovery':
      checkTrustworthy(issuer)
      return new RemoteKeys((fetcher) => discoverKeySet(issuer, fetcher), log, timing)
  }
}

/** Does not show the URL, which may hold a password. */
function checkTrustworthy(url: string): void {
  if (isTrustworthy(url)) return
  const loopback = '127.0.0.0/8, [::1] or localhost'
  throw new ConfigError([`must be an https URL, or http on ${loopback}, without user info`])
}

function secretKeys(secret: Uint8Array): KeySource {
  if (secret.length < MIN_SECRET_BYTES) {
    const problem = `must have at least ${MIN_SECRET_BYTES} bytes, and has ${secret.length}`
    throw new ConfigError([problem])
  }
  let imported: Promise<CryptoKey> | undefined
  return {
    algorithms: ['HS256'],
    atOnce: SECRET_AT_ONCE,
    generation: 0,
    // Imported once: jose would import plain bytes for every token.
    key: () => (imported ??= webcrypto.subtle.importKey('raw', secret, HS256, false, ['verify'])),
    unavailableReason: () => undefined,
    start() {},
    close() {},
  }
}
