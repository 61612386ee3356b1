/** Reads secrets for HS256, of which any one may verify a token. */
import { isUtf8 } from 'node:buffer'
import { webcrypto } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { CryptoKey, FlattenedJWSInput } from 'jose'
import { ConfigError, reasonWithoutPath } from '../errors.ts'
import { invalidToken } from './bearer.ts'
import { formatOf } from './key-set.ts'
import type { LoadedKeys } from './key-source.ts'
import { TokenCache } from './token-cache.ts'

/** RFC 7518 §3.2: a key for HS256 has at least as many bytes as its hash. */
const MIN_SECRET_BYTES = 32
const HS256 = { name: 'HMAC', hash: 'SHA-256' }
/** In latin1: that of UTF-8, and those of UTF-16 before a character of ASCII. */
const BYTE_ORDER_MARK = /^(?:\xef\xbb\xbf|\xff\xfe.\0|\xfe\xff\0)/s
/** Any but the line ends, CR and LF. */
const CONTROL = /[^\P{Cc}\r\n]/u

/** @throws ConfigError that names a file by its place, if there are several. */
export function readSecrets(paths: readonly string[]): LoadedKeys {
  const read = (path: string, i: number): Buffer => {
    try {
      const secret = contentOf(readFileSync(path))
      checkSecret(secret)
      return secret
    } catch (error) {
      const which = paths.length > 1 ? `file ${i + 1} ` : ''
      throw new ConfigError([`${which}cannot be used: ${reasonWithoutPath(error)}`])
    }
  }
  const secrets = paths.map(read)
  const binary = paths.filter((_, i) => !isTextFile(secrets[i] ?? Buffer.alloc(0)))
  return { ...secretKeys(secrets), binary }
}

/**
 * What the file of a secret holds: of a text, all but one final LF or CR LF; of other bytes, all.
 * @throws Error if it begins with a byte order mark, which is never meant.
 */
export function contentOf(bytes: Buffer, isText = isTextFile(bytes)): Buffer {
  if (BYTE_ORDER_MARK.test(bytes.toString('latin1', 0, 4)))
    throw new Error('begins with a byte order mark: save it as UTF-8 without one')
  const [end = ''] = (isText && /\r?\n$/.exec(bytes.toString())) || []
  return bytes.subarray(0, bytes.length - end.length)
}

function isTextFile(bytes: Buffer): boolean {
  return isUtf8(bytes) && !CONTROL.test(bytes.toString())
}

/** @throws ConfigError */
export function checkSecret(secret: Uint8Array): void {
  const { length } = secret
  if (length < MIN_SECRET_BYTES)
    throw new ConfigError([`must have at least ${MIN_SECRET_BYTES} bytes, and has ${length}`])
  // Anyone who has the public key could sign with it.
  const format = formatOf(secret)
  if (format === 'PEM' || format === 'a key set')
    throw new ConfigError([`must be a secret, and is ${format}: public keys are for JWKS settings`])
}

/** The keys of secrets that were checked. */
export function secretKeys(secrets: readonly Uint8Array[]): LoadedKeys {
  let imported: Promise<CryptoKey[]> | undefined
  const find = async (_: unknown, jws: FlattenedJWSInput): Promise<CryptoKey> => {
    // Imported once: jose would import plain bytes for every token.
    const keys = await (imported ??= Promise.all(secrets.map(importSecret)))
    // jose verifies the signature with the key that is returned.
    for (const key of keys) if (keys.length === 1 || (await isSignedBy(key, jws))) return key
    throw invalidToken('tokenInvalid', 'signature verification failed')
  }
  return {
    algorithms: ['HS256'],
    verified: new TokenCache(),
    find,
    text: secrets.map((secret) => Buffer.from(secret).toString('base64')).join(),
    size: secrets.length,
  }
}

function importSecret(secret: Uint8Array): Promise<CryptoKey> {
  return webcrypto.subtle.importKey('raw', secret, HS256, false, ['verify'])
}

function isSignedBy(key: CryptoKey, { signature, ...jws }: FlattenedJWSInput): Promise<boolean> {
  const input = Buffer.from(`${jws.protected}.${String(jws.payload)}`)
  return webcrypto.subtle.verify('HMAC', key, Buffer.from(signature, 'base64url'), input)
}
