/** Makes the source of keys that is configured: a secret, a file, a URL, or discovery. */
import { webcrypto } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { CryptoKey } from 'jose'
import { ConfigError, reasonWithoutPath } from '../errors.ts'
import type { Log } from '../telemetry/log.ts'
import { fetchDocument, isTrustworthy, shownUrl } from './fetch.ts'
import { formatOf, type KeySet, readJsonObject, readKeySet } from './key-set.ts'
import { type KeySource, MAX_KEY_SET_BYTES, TIMING } from './key-source.ts'
import { type Load, ReloadedKeys } from './reloaded-keys.ts'
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
  if (config.kind === 'file') {
    const load = (): KeySet => readKeyFile(config.path)
    const first = load()
    const polled = { ...timing, refresh: timing.poll, usable: Infinity }
    return (log) => new ReloadedKeys(async () => load(), log, polled, first)
  }
  const url = config.kind === 'url' ? config.url : issuer
  // The message does not show the URL, which may hold a password.
  if (!isTrustworthy(url)) throw new ConfigError([UNTRUSTWORTHY])
  const load: Load = async (running) => {
    const from = config.kind === 'url' ? url : await discover(issuer, timing.fetch, running)
    return withKeys(await fetchDocument(from, readKeySet, timing.fetch, running))
  }
  return (log) => new ReloadedKeys(load, log, timing)
}

/**
 * A key file is local and small, so it is read synchronously; and again every few seconds, because
 * a mounted volume swaps symbolic links, which some watchers do not see. The author of a file can
 * mend it, so one secret key refuses all of it.
 * @throws ConfigError
 */
function readKeyFile(path: string): KeySet {
  try {
    const bytes = readFileSync(path)
    if (bytes.length > MAX_KEY_SET_BYTES) throw new Error(`more than ${MAX_KEY_SET_BYTES} bytes`)
    const set = readKeySet(bytes)
    if (set.secretKey) throw new Error(`${set.secretKey} is symmetric or private`)
    return withKeys(set)
  } catch (error) {
    throw new ConfigError([`cannot be used: ${reasonWithoutPath(error)}`])
  }
}

/** Such a set must not replace an earlier one. */
function withKeys(set: KeySet): KeySet {
  if (set.size > 0) return set
  throw new Error('the key set holds no key that can verify a token')
}

/**
 * The URL of the key set that the discovery document of an issuer names (OpenID Connect Discovery
 * 1.0 §4). The document is read at every refresh, because an issuer may move its keys.
 * @throws Error if the document names another issuer (§4.3: exactly the same string is required),
 * or a URL that cannot be trusted.
 */
async function discover(issuer: string, timeoutMs: number, running: AbortController) {
  const url = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
  const read = (bytes: Uint8Array) => readJsonObject(bytes, 'an OpenID discovery document')
  const { issuer: named, jwks_uri: keySetUrl } = await fetchDocument(url, read, timeoutMs, running)
  const other = typeof named === 'string' ? shownUrl(named) : 'none'
  if (named !== issuer) throw new Error(`${shownUrl(url)} is of another issuer: ${other}`)
  if (isTrustworthy(keySetUrl)) return keySetUrl
  throw new Error(`${shownUrl(url)} names a jwks_uri that is neither https nor on loopback`)
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
