import { randomBytes } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { SignJWT } from 'jose/jwt/sign'
import { ConfigError, errorCodeOf, reasonOf } from '../errors.ts'
import { readRegularFile } from '../regular-file.ts'

const KEY_BYTES = 32
const FILE_MAX_BYTES = 64 * 1024

export interface DevClaims {
  readonly issuer: string
  readonly audience: string
  readonly sub: string
  readonly ttlSeconds: number
  readonly scope?: string | undefined
  /**
   * Further claims, for a service that reads owner, audience or scopes from others than the usual
   * ones.
   */
  readonly more?: Readonly<Record<string, string>>
}

/** @throws ConfigError when the file holds something else than a development key. */
export function readDevKey(path: string): Uint8Array | undefined {
  let text = ''
  try {
    text = readRegularFile(path, FILE_MAX_BYTES).toString('latin1')
  } catch (error) {
    if (errorCodeOf(error) === 'ENOENT') return undefined
    const reason = reasonOf(error)
    throw new ConfigError([`the development key of PLANTS_DATA cannot be read: ${reason}`])
  }
  const key = Buffer.from(text, 'base64url')
  if (key.length === KEY_BYTES && text === encode(key)) return key
  throw new ConfigError([
    `${path} holds no development key: remove it, and "serve --dev" makes a new one`,
  ])
}

/**
 * The development key of a data directory, which is made where there is none. Whoever reads the
 * file can make tokens.
 */
export function readOrCreateDevKey(path: string): Uint8Array {
  const existing = readDevKey(path)
  if (existing !== undefined) return existing
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
  const key = randomBytes(KEY_BYTES)
  // wx: of two that start at the same moment one makes the key, and the other fails rather than
  // replace it.
  writeFileSync(path, encode(key), { flag: 'wx', mode: 0o600 })
  return key
}

/** An access token signed with the development key; `typ` as RFC 9068 §2.1 has it. */
export function signDevToken(key: Uint8Array, claims: DevClaims): Promise<string> {
  const issuedAt = Math.floor(Date.now() / 1000)
  return new SignJWT({
    ...claims.more,
    ...(claims.scope === undefined ? {} : { scope: claims.scope }),
  })
    .setProtectedHeader({ alg: 'HS256', typ: 'at+jwt' })
    .setIssuer(claims.issuer)
    .setAudience(claims.audience)
    .setSubject(claims.sub)
    .setIssuedAt(issuedAt)
    .setExpirationTime(issuedAt + claims.ttlSeconds)
    .sign(key)
}

function encode(key: Buffer): string {
  return `${key.toString('base64url')}\n`
}
