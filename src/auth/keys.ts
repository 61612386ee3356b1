/** Makes the source of keys that is configured: a secret, a file, a URL, or discovery. */
import { readFileSync } from 'node:fs'
import { ConfigError, reasonWithoutPath } from '../errors.ts'
import type { Log } from '../telemetry/log.ts'
import { distrustOf, fetchDocument, type HttpRule, shownUrl } from './fetch.ts'
import { type KeySet, readJsonObject, readKeySet } from './key-set.ts'
import { type KeySource, type LoadedKeys, MAX_KEY_SET_BYTES, TIMING } from './key-source.ts'
import { type Load, ReloadedKeys } from './reloaded-keys.ts'
import { checkSecret, readSecrets, secretKeys } from './secrets.ts'

export type { KeySource, Timing } from './key-source.ts'

/**
 * Files are read again when they change: of secrets, or of a JSON Web Key Set. Such a set may be at
 * a URL. With `discovery`, the issuer names that URL.
 */
export type KeyConfig =
  | { readonly kind: 'secret'; readonly secret: Uint8Array }
  | { readonly kind: 'secrets'; readonly paths: readonly string[] }
  | { readonly kind: 'file'; readonly path: string }
  | { readonly kind: 'url'; readonly url: string }
  | { readonly kind: 'discovery' }

const BINARY = 'a secret file is no text: all its bytes are the secret'
const ON_LOOPBACK: HttpRule = { isAnywhere: false, setting: 'keysOverHttp' }

/**
 * Reads and checks the keys once. The returned function makes the source of one service.
 * The problems of a ConfigError do not name an option: the caller knows which one it read.
 * @throws ConfigError if the keys cannot be used, or their URL cannot be trusted.
 */
export function readKeys(
  config: KeyConfig,
  issuer: string,
  http = ON_LOOPBACK,
  timing = TIMING,
): (log: Log) => KeySource {
  if (config.kind === 'secret') {
    checkSecret(config.secret)
    return () => ({ keys: secretKeys([config.secret]) })
  }
  if (config.kind === 'secrets' || config.kind === 'file') {
    const load = (): LoadedKeys =>
      config.kind === 'file' ? readKeyFile(config.path) : readSecrets(config.paths)
    const first = load()
    const polled = { ...timing, refresh: timing.poll, usable: Infinity }
    return (log) => {
      for (const path of first.binary ?? []) log.info(BINARY, { path })
      return new ReloadedKeys(async () => load(), log, polled, first)
    }
  }
  const url = config.kind === 'url' ? config.url : issuer
  // The message does not show the URL, which may hold a password.
  const distrust = distrustOf(url, http)
  if (distrust !== undefined) throw new ConfigError([distrust])
  const load: Load = async (running) => {
    const from = config.kind === 'url' ? url : await discover(issuer, http, timing.fetch, running)
    const read = (bytes: Uint8Array) => withKeys(readKeySet(bytes))
    return fetchDocument(from, read, timing.fetch, running)
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

/** Refuses a set without usable keys: it must not replace an earlier one. */
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
async function discover(
  issuer: string,
  http: HttpRule,
  timeoutMs: number,
  running: AbortController,
): Promise<string> {
  const url = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
  const read = (bytes: Uint8Array) => readJsonObject(bytes, 'an OpenID discovery document')
  const { issuer: named, jwks_uri: keySetUrl } = await fetchDocument(url, read, timeoutMs, running)
  const other = typeof named === 'string' ? shownUrl(named) : 'none'
  if (named !== issuer) throw new Error(`${shownUrl(url)} is of another issuer: ${other}`)
  const distrust = distrustOf(keySetUrl, http)
  if (distrust === undefined) return String(keySetUrl)
  throw new Error(`${shownUrl(url)} names a jwks_uri that ${distrust}`)
}
