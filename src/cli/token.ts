/* `token`, and the development key that signs what it prints. */

import { createHmac, randomBytes } from 'node:crypto'
import { mkdirSync, readFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { type Config, readWithoutKeys } from '../settings/read.ts'
import { ConfigError, errorCodeOf, reasonOf, UsageError } from '../errors.ts'
import { writeWhole } from '../store/sqljs/files.ts'
import { writeNewFile } from '../store/sqljs/new-file.ts'

const KEY_BYTES = 32
const DEFAULT_TTL_SECONDS = 8 * 60 * 60

type TokenOptions = { readonly [name in 'sub' | 'ttl' | 'scope']?: string }

/** A token for the key that `serve --dev` made. */
export function run(_: string, { sub, ttl, scope }: TokenOptions): string {
  if (!sub) throw new UsageError('token needs --sub NAME: whose token it is to be')
  if (ttl !== undefined && !/^[1-9][0-9]{0,9}$/.test(ttl))
    throw new UsageError('--ttl must be a number of seconds, 1 or more')
  const config = readWithoutKeys(process.env, 'refused')
  const key = readDevKey(devKeyPath(config))
  if (key) return signDevToken(key, devClaims(config, sub, scope), ttl)
  const what = '"token" signs with the development key only'
  const missing = `there is none in ${config.data}: get tokens from your issuer`
  throw new Error(`${what}, and ${missing}; to try the service, "plant-store serve --dev" makes it`)
}

export function devKeyPath({ data }: Config): string {
  return `${data}/dev.key`
}

/** @throws ConfigError if the file cannot be read or holds no development key. */
export function readDevKey(path: string): Buffer | undefined {
  let text = ''
  try {
    text = readFileSync(path, 'latin1')
  } catch (error) {
    if (errorCodeOf(error) === 'ENOENT') return undefined
    const what = 'the development key of PLANTS_DATA cannot be read'
    throw new ConfigError([`${what}: ${reasonOf(error)}`])
  }
  const key = Buffer.from(text, 'base64url')
  if (key.length === KEY_BYTES && text === textOf(key)) return key
  const advice = 'remove it, and "serve --dev" makes a new one'
  throw new ConfigError([`${path} holds no development key: ${advice}`])
}

/** Makes the key if there is none. A process that can read the file can make tokens. */
export async function readOrCreateDevKey(path: string): Promise<Buffer> {
  const existing = readDevKey(path)
  if (existing !== undefined) return existing
  const key = randomBytes(KEY_BYTES)
  try {
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
    await writeNewFile(path, (file) =>
      writeWhole(file, Buffer.from(textOf(key)), 0).then(() => file.sync()),
    )
    return key
  } catch (error) {
    throw new Error(`${path}, the development key of PLANTS_DATA, cannot be made`, { cause: error })
  }
}

/** The claims that a service with this configuration reads. */
export function devClaims(
  config: Config,
  sub: string,
  scope: string | undefined,
): Readonly<Record<string, string>> {
  const { issuer: iss, audience: aud, ownerClaim, audienceClaim, scopeClaim = 'scope' } = config
  const scopes = scope === undefined ? {} : { scope, [scopeClaim]: scope }
  return { ...scopes, [ownerClaim]: sub, [audienceClaim]: aud, iss, aud, sub }
}

/** An access token, signed with the development key (RFC 7515 §3.1). `typ`: RFC 9068 §2.1. */
export function signDevToken(
  key: Uint8Array,
  claims: Readonly<Record<string, string>>,
  ttlSeconds: number | string = DEFAULT_TTL_SECONDS,
): string {
  const iat = Math.floor(Date.now() / 1000)
  const header = { alg: 'HS256', typ: 'at+jwt' }
  const parts = [header, { ...claims, iat, exp: iat + Number(ttlSeconds) }]
  const encoded = parts.map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
  const input = encoded.join('.')
  return `${input}.${createHmac('sha256', key).update(input).digest('base64url')}`
}

function textOf(key: Buffer): string {
  return `${key.toString('base64url')}\n`
}
