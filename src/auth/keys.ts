import { webcrypto } from 'node:crypto'
import type { CryptoKey } from 'jose'
import { ConfigError } from '../errors.ts'
import { discoverKeySetUrl, isTrustworthy } from './fetch.ts'
import { FileKeys } from './file-keys.ts'
import { RemoteKeys } from './remote-keys.ts'
import { type KeyLog, type KeySource, TIMING, type Timing } from './key-source.ts'

export type { KeyLog, KeySource, Timing } from './key-source.ts'

export type KeyConfig =
  | { readonly kind: 'secret'; readonly secret: Uint8Array }
  | { readonly kind: 'file'; readonly path: string }
  | { readonly kind: 'url'; readonly url: string }
  | { readonly kind: 'discovery' }

/** RFC 7518 §3.2: a key for HS256 has at least as many bytes as its hash. */
const MIN_SECRET_BYTES = 32
/** They take 20 µs of a core each, and fewer at once would make the service slower. */
const AT_ONCE = 32
const HS256 = { name: 'HMAC', hash: 'SHA-256' }

/**
 * Each problem is without the name of an option, which the caller knows.
 * @throws ConfigError when the keys cannot be used, or come from where they cannot be believed.
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
      mustBeTrustworthy(config.url)
      return new RemoteKeys((get) => get(config.url), log, timing)
    case 'discovery':
      mustBeTrustworthy(issuer)
      // The document is read at every refresh: an issuer may move its keys.
      return new RemoteKeys(async (get) => get(await discoverKeySetUrl(issuer, get)), log, timing)
  }
}

/** The value itself is not shown: it may hold a password. */
function mustBeTrustworthy(url: string): void {
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
    atOnce: AT_ONCE,
    generation: 0,
    // Imported once: given the bytes, jose would import them for every token.
    key: () => (imported ??= webcrypto.subtle.importKey('raw', secret, HS256, false, ['verify'])),
    unavailableReason: () => undefined,
    close() {},
  }
}
