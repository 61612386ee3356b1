import { isUtf8 } from 'node:buffer'
import { type JsonObject, readJsonObject } from './json-object.ts'

/** Bytes of a token, dots included. A token that lists 200 groups has about 10,400. */
export const MAX_TOKEN_BYTES = 12_288
/**
 * Base64url of a token's header, which has some 100. It is parsed before the signature is verified:
 * 900 members take 2 ms.
 */
export const MAX_HEADER_LENGTH = 4096

// RFC 8725 §3.11: a logout token, an ID token or another kind of JWT names itself here and must not
// pass for an access token. RFC 7515 §4.1.9 compares media types without case; RFC 9068 §2.1 gives
// the last two.
const ACCEPTED_TYP: ReadonlySet<string> = new Set(['jwt', 'at+jwt', 'application/at+jwt'])

/**
 * Checks that a token is one compact JWS in its only spelling (RFC 7515 §3.1, §2: base64url without
 * padding), so that no two strings are the same token. Nothing is verified yet.
 * @throws Error that says what is wrong.
 */
export function checkJws(token: string): void {
  // Characters are bytes from here on: any that is not ASCII fails the round trip below.
  if (token.length > MAX_TOKEN_BYTES) throw new Error(`longer than ${MAX_TOKEN_BYTES} bytes`)
  const parts = token.split('.')
  if (parts.length !== 3) throw new Error('not three parts')
  if ((parts[0]?.length ?? 0) > MAX_HEADER_LENGTH)
    throw new Error(`a header longer than ${MAX_HEADER_LENGTH} characters`)
  const [header, payload] = parts.map(decodeStrictly)
  if (header === undefined || payload === undefined || !isUtf8(payload))
    throw new Error('the payload is not UTF-8')
  checkHeader(readJsonObject(header))
}

/**
 * Encoding the bytes again gives the same text only without padding, unused bits and characters of
 * another alphabet.
 */
function decodeStrictly(part: string): Buffer {
  const bytes = Buffer.from(part, 'base64url')
  if (part === '' || bytes.toString('base64url') !== part)
    throw new Error('not canonical base64url')
  return bytes
}

function checkHeader(header: JsonObject): void {
  const { typ, b64 } = header
  if (typ !== undefined && !(typeof typ === 'string' && ACCEPTED_TYP.has(typ.toLowerCase()))) {
    throw new Error('a token of another kind, by its typ')
  }
  // RFC 7797 §7: a JWT never has an unencoded payload. jose looks at b64 only where crit lists it.
  if (b64 !== undefined && b64 !== true) throw new Error('unencoded payload')
}
