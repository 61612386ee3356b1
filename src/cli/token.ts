/* `token`, and the development key that signs what it prints. */

import { createHmac, randomBytes } from 'node:crypto'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import type { TokenRules } from '../auth/caller.ts'
import { readWithoutKeys } from './settings.ts'
import { ConfigError, errorCodeOf, reasonOf, UsageError } from '../errors.ts'

const KEY_FILE = 'dev.key'
const KEY_BYTES = 32
const textOf = (key: Buffer): string => `${key.toString('base64url')}\n`
const DEFAULT_TTL_SECONDS = 8 * 60 * 60

/** Whose token it is, its scopes with spaces between, and for how many seconds it is valid. */
interface Wanted {
  readonly sub: string
  readonly scope?: string | undefined
  readonly ttl?: string | undefined
}

/** A token for the key that `serve --dev` made. */
export function run({ sub, scope, ttl }: Partial<Wanted>): string {
  if (!sub) throw new UsageError('token needs --sub NAME: whose token it is to be')
  if (ttl !== undefined && !/^[1-9][0-9]{0,9}$/.test(ttl))
    throw new UsageError('--ttl must be a number of seconds, 1 or more')
  const config = readWithoutKeys(process.env, 'refused')
  const key = readDevKey(config.data)
  if (key) return signDevToken(key, config, { sub, scope, ttl })
  const what = '"token" signs with the development key only'
  const missing = `there is none in ${config.data}: get tokens from your issuer`
  throw new Error(`${what}, and ${missing}; to try the service, "plant-store serve --dev" makes it`)
}

/**
 * The development key in a data directory.
 * @throws ConfigError if the file cannot be read or holds no development key.
 */
export function readDevKey(directory: string): Buffer | undefined {
  const path = `${directory}/${KEY_FILE}`
  try {
    const text = readFileSync(path, 'latin1')
    const key = Buffer.from(text, 'base64url')
    if (key.length === KEY_BYTES && text === textOf(key)) return key
    throw new Error('it holds no key; remove it, and "serve --dev" makes a new one')
  } catch (error) {
    if (errorCodeOf(error) === 'ENOENT') return undefined
    const what = `${path}, the development key of PLANTS_DATA, cannot be used`
    throw new ConfigError([`${what}: ${reasonOf(error)}`])
  }
}

/** Makes the key if there is none. A process that can read the file can make tokens. */
export function readOrCreateDevKey(directory: string): Buffer {
  const existing = readDevKey(directory)
  if (existing !== undefined) return existing
  const path = `${directory}/${KEY_FILE}`
  const key = randomBytes(KEY_BYTES)
  try {
    mkdirSync(directory, { recursive: true, mode: 0o700 })
    writeFileSync(path, textOf(key), { flag: 'wx', mode: 0o600, flush: true })
    return key
  } catch (error) {
    // A part of a key.
    if (errorCodeOf(error) !== 'EEXIST') rmSync(path, { force: true })
    throw new Error(`${path}, the development key of PLANTS_DATA, cannot be made`, { cause: error })
  }
}

/**
 * An access token, signed with the development key (RFC 7515 §3.1), with the claims that a service
 * with these rules reads. `typ`: RFC 9068 §2.1.
 */
export function signDevToken(key: Uint8Array, rules: TokenRules, wanted: Wanted): string {
  const { issuer: iss, audience, ownerClaim, audienceClaim, scopeClaim = 'scope' } = rules
  const [aud] = audience
  const { sub, scope, ttl = DEFAULT_TTL_SECONDS } = wanted
  const iat = Math.floor(Date.now() / 1000)
  const configured = { [scopeClaim]: scope, [ownerClaim]: sub, [audienceClaim]: aud }
  // JSON leaves out a scope that is undefined.
  const claims = { scope, ...configured, iss, aud, sub, iat, exp: iat + Number(ttl) }
  const parts = [{ alg: 'HS256', typ: 'at+jwt' }, claims]
  const encoded = parts.map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
  const input = encoded.join('.')
  return `${input}.${createHmac('sha256', key).update(input).digest('base64url')}`
}
