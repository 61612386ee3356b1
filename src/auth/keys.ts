/** Reads the keys that are configured: secrets, a file, a URL, or what discovery names. */
import { readFileSync } from 'node:fs'
import { ConfigError, reasonWithoutPath } from '../errors.ts'
import { distrustOf, fetchDocument, MAX_KEY_SET_BYTES, shownUrl } from './fetch.ts'
import { readJsonObject, readKeySet } from './key-set.ts'
import type { ConfiguredKeys, Keys } from './key-source.ts'
import { readSecrets } from './secrets.ts'

/** At most one says where keys are. Else the discovery document of the issuer does. */
export interface KeySettings {
  readonly issuer: string
  /** For each secret the path of its file, or the secret itself. */
  readonly jwtSecretFile?: readonly (string | Buffer)[] | undefined
  readonly jwtSecret?: Buffer | undefined
  readonly jwksFile?: string | undefined
  readonly jwksUrl?: string | undefined
  readonly keysOverHttp?: 'loopback' | 'anywhere'
}

/**
 * The problems of a ConfigError do not name a setting: the caller knows which one it read.
 * @param overHttp is what messages call the setting `keysOverHttp`.
 * @throws ConfigError if the keys cannot be used, or their URL cannot be trusted.
 */
export function readKeys(settings: KeySettings, overHttp = 'keysOverHttp'): ConfiguredKeys {
  const { issuer, jwtSecretFile, jwtSecret, jwksFile, jwksUrl, keysOverHttp } = settings
  // Files are local and small, so they are read synchronously.
  const ofFiles = (kind: ConfiguredKeys['kind'], from: string, read: () => Keys) => {
    return { kind, from, first: read(), load: async () => read() }
  }
  const secrets = jwtSecretFile ?? (jwtSecret && [jwtSecret])
  if (secrets?.every(Buffer.isBuffer)) return { kind: 'secret', first: readSecrets(secrets) }
  if (secrets) return ofFiles('secrets', secrets.join(), () => readSecrets(secrets))
  if (jwksFile !== undefined) return ofFiles('file', jwksFile, () => readKeyFile(jwksFile))

  const url = jwksUrl ?? issuer
  // The message does not show the URL, which may hold a password.
  const problem = distrustOf(url, keysOverHttp === 'anywhere', overHttp)
  if (problem !== undefined) throw new ConfigError([problem])
  const load: ConfiguredKeys['load'] = async (running, timeoutMs) => {
    // The document is read at every refresh, because an issuer may move its keys.
    const document = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
    const read = (bytes: Uint8Array) => keySetUrlIn(bytes, settings, overHttp)
    const found = jwksUrl ?? (await fetchDocument(document, read, running, timeoutMs))
    return fetchDocument(found, readKeySet, running, timeoutMs)
  }
  const kind = jwksUrl === undefined ? 'discovery' : 'url'
  return { kind, from: url.replace(/[?#].*$/s, ''), load }
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
 * The URL of the key set that a discovery document names (OpenID Connect Discovery 1.0 §4).
 * @throws Error if it is the document of another issuer (§4.3: exactly the same string is
 * required), or names a URL that cannot be trusted.
 */
function keySetUrlIn(document: Uint8Array, settings: KeySettings, overHttp: string): string {
  const { issuer, jwks_uri: url } = readJsonObject(document, 'an OpenID discovery document')
  const named = typeof issuer === 'string' ? issuer : 'none'
  if (named !== settings.issuer) throw new Error(`is of another issuer: ${shownUrl(named)}`)
  const found = typeof url === 'string' ? url : ''
  const problem = distrustOf(found, settings.keysOverHttp === 'anywhere', overHttp)
  if (problem !== undefined) throw new Error(`names a jwks_uri that ${problem}`)
  return found
}
