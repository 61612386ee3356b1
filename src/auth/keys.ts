/** Reads the keys that are configured: secrets, a file, a URL, or what discovery names. */
import { readFileSync } from 'node:fs'
import { withoutPath } from '../errors.ts'
import { fetchDocument, MAX_KEY_SET_BYTES, shownUrl, trustedUrl } from './fetch.ts'
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
 * @param overHttp is what messages call the setting `keysOverHttp`.
 * @throws Error if the keys cannot be used, or their URL cannot be trusted. It does not name the
 * setting of the keys: the caller knows which one it read.
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

  const trusted = (url: string, what = '') =>
    trustedUrl(url, keysOverHttp === 'anywhere', overHttp, what)
  const url = trusted(jwksUrl ?? issuer)
  const load: ConfiguredKeys['load'] = async (running, timeoutMs) => {
    // The document is read at every refresh, because an issuer may move its keys.
    const document = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`
    const read = (bytes: Uint8Array) =>
      trusted(keySetUrlIn(bytes, issuer), 'names a jwks_uri that ')
    const found = jwksUrl ?? (await fetchDocument(document, read, running, timeoutMs))
    return fetchDocument(found, readKeySet, running, timeoutMs)
  }
  const kind = jwksUrl === undefined ? 'discovery' : 'url'
  return { kind, from: shownUrl(url), load }
}

function readKeyFile(path: string): Keys {
  return withoutPath('cannot be used', () => {
    const bytes = readFileSync(path)
    if (bytes.length > MAX_KEY_SET_BYTES) throw new Error(`more than ${MAX_KEY_SET_BYTES} bytes`)
    // Its author can mend it, so one secret key refuses all of it.
    return readKeySet(bytes, 'refused')
  })
}

/**
 * The URL of the key set that a discovery document names (OpenID Connect Discovery 1.0 §4).
 * @throws Error if it is the document of another issuer (§4.3: exactly the same string is
 * required).
 */
function keySetUrlIn(document: Uint8Array, wanted: string): string {
  const { issuer, jwks_uri: url } = readJsonObject(document, 'an OpenID discovery document')
  const named = typeof issuer === 'string' ? issuer : 'none'
  if (named !== wanted) throw new Error(`is of another issuer: ${shownUrl(named)}`)
  return typeof url === 'string' ? url : ''
}
