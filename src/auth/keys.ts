/** Reads the keys that are configured: secrets, a file, a URL, or what discovery names. */
import { readFileSync } from 'node:fs'
import { ConfigError, reasonWithoutPath } from '../errors.ts'
import type { Log } from '../telemetry/log.ts'
import { distrustOf, fetchDocument, type HttpRule, shownUrl } from './fetch.ts'
import { readJsonObject, readKeySet } from './key-set.ts'
import { type Keys, type KeySource, MAX_KEY_SET_BYTES, type Timing, TIMING } from './key-source.ts'
import { type Load, ReloadedKeys } from './reloaded-keys.ts'
import { readSecrets } from './secrets.ts'

export type { KeySource, Timing } from './key-source.ts'

/** At most one says where keys are. Else the discovery document of the issuer does. */
export interface KeySettings {
  readonly issuer: string
  /** For each secret the path of its file, or the secret itself. */
  readonly jwtSecretFile?: readonly (string | Buffer)[] | undefined
  readonly jwtSecret?: Buffer | undefined
  readonly jwksFile?: string | undefined
  readonly jwksUrl?: string | undefined
}

/** Keys that were read and checked once. */
export interface ConfiguredKeys {
  readonly kind: 'secret' | 'secrets' | 'file' | 'url' | 'discovery'
  /** The paths, or the URL without its query, which may hold a secret. */
  readonly from?: string
  /** Makes the source of one service. */
  readonly open: (log: Log) => KeySource
}

const BINARY = 'a secret file is no text: all its bytes are the secret'
const ON_LOOPBACK: HttpRule = { isAnywhere: false, setting: 'keysOverHttp' }

/**
 * The problems of a ConfigError do not name a setting: the caller knows which one it read.
 * @throws ConfigError if the keys cannot be used, or their URL cannot be trusted.
 */
export function readKeys(
  { issuer, jwtSecretFile, jwtSecret, jwksFile, jwksUrl }: KeySettings,
  http = ON_LOOPBACK,
  timing = TIMING,
): ConfiguredKeys {
  const secrets = jwtSecretFile ?? (jwtSecret && [jwtSecret])
  if (secrets?.every(Buffer.isBuffer)) {
    const keys = readSecrets(secrets)
    return { kind: 'secret', open: () => ({ keys }) }
  }
  if (secrets) return keysOfFiles('secrets', secrets.join(), () => readSecrets(secrets), timing)
  if (jwksFile !== undefined)
    return keysOfFiles('file', jwksFile, () => readKeyFile(jwksFile), timing)
  const url = jwksUrl ?? issuer
  // The message does not show the URL, which may hold a password.
  const distrust = distrustOf(url, http)
  if (distrust !== undefined) throw new ConfigError([distrust])
  const load: Load = async (running) => {
    const found = jwksUrl ?? (await discover(issuer, http, timing.fetch, running))
    return fetchDocument(found, readKeySet, timing.fetch, running)
  }
  const open = (log: Log): KeySource => new ReloadedKeys(load, log, timing)
  const kind = jwksUrl === undefined ? 'discovery' : 'url'
  return { kind, from: url.replace(/[?#].*$/s, ''), open }
}

/**
 * Files are local and small, so they are read synchronously; and again every few seconds, because a
 * mounted volume swaps symbolic links, which some watchers do not see.
 */
function keysOfFiles(
  kind: ConfiguredKeys['kind'],
  from: string,
  read: () => Keys,
  timing: Timing,
): ConfiguredKeys {
  const first = read()
  const polled = { ...timing, refresh: timing.poll, usable: Infinity }
  const open = (log: Log): KeySource => {
    for (const path of first.binary ?? []) log.info(BINARY, { path })
    return new ReloadedKeys(async () => read(), log, polled, first)
  }
  return { kind, from, open }
}

/** @throws ConfigError */
function readKeyFile(path: string): Keys {
  try {
    const bytes = readFileSync(path)
    if (bytes.length > MAX_KEY_SET_BYTES) throw new Error(`more than ${MAX_KEY_SET_BYTES} bytes`)
    // Its author can mend it, so one secret key refuses all of it.
    return readKeySet(bytes, 'refused')
  } catch (error) {
    throw new ConfigError([`cannot be used: ${reasonWithoutPath(error)}`])
  }
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
