/** Reads secrets for HS256, of which any one may verify a token. */
import { isUtf8 } from 'node:buffer'
import { readFileSync } from 'node:fs'
import { withoutPath } from '../errors.ts'
import { formatOf } from './key-set.ts'
import type { Keys } from './key-source.ts'
import { TokenCache } from './token-cache.ts'

/** RFC 7518 §3.2: a key for HS256 has at least as many bytes as its hash. */
const MIN_SECRET_BYTES = 32
/** In latin1: that of UTF-8, and those of UTF-16 before a character of ASCII. */
const BYTE_ORDER_MARK = /^(?:\xef\xbb\xbf|\xff\xfe.\0|\xfe\xff\0)/s
/** Any but the line ends, CR and LF. */
const CONTROL = /[^\P{Cc}\r\n]/u

/**
 * Reads secrets: each is in the file at a path, or is passed itself.
 * @throws Error that names a file by its place, if there are several.
 */
export function readSecrets(sources: readonly (string | Buffer)[]): Keys {
  const binary: string[] = []
  const secrets = sources.map((source, i) =>
    withoutPath(`${sources.length > 1 ? `file ${i + 1} ` : ''}cannot be used`, () => {
      const secret = typeof source === 'string' ? contentOf(readFileSync(source)) : source
      if (typeof source === 'string' && !isTextFile(secret)) binary.push(source)
      if (secret.length < MIN_SECRET_BYTES)
        throw new Error(`must have at least ${MIN_SECRET_BYTES} bytes, and has ${secret.length}`)
      // Anyone who has the public key could sign with it.
      const format = formatOf(secret)
      if (format === 'PEM' || format === 'a key set')
        throw new Error(`must be a secret, and is ${format}: public keys are for JWKS settings`)
      return secret
    }),
  )
  // Imported once: jose would import plain bytes for every token.
  const imports = secrets.map((secret) =>
    crypto.subtle.importKey('raw', secret, { name: 'HMAC', hash: 'SHA-256' }, false, ['verify']),
  )
  return {
    text: secrets.map((secret) => secret.toString('base64')).join(),
    size: secrets.length,
    binary,
    algorithms: ['HS256'],
    verified: new TokenCache(),
    find: () => Promise.all(imports),
  }
}

/**
 * What the file of a secret holds: of a text, all but one final LF or CR LF; of other bytes, all.
 * @throws Error if it begins with a byte order mark, which is never meant.
 */
export function contentOf(bytes: Buffer, isText = isTextFile(bytes)): Buffer {
  if (BYTE_ORDER_MARK.test(bytes.toString('latin1', 0, 4)))
    throw new Error('begins with a byte order mark: save it as UTF-8 without one')
  if (!isText) return bytes
  const [end = ''] = /\r?\n$/.exec(bytes.toString()) ?? []
  return bytes.subarray(0, bytes.length - end.length)
}

function isTextFile(bytes: Buffer): boolean {
  return isUtf8(bytes) && !CONTROL.test(bytes.toString())
}
