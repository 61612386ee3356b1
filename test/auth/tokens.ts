import assert from 'node:assert/strict'
import { generateKeyPairSync, type KeyObject } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Caller, TokenRules } from '../../dist/auth/caller.js'
import { type Keys, KeySource, KeysUnavailable, TIMING } from '../../dist/auth/key-source.js'
import { type KeySettings, readKeys } from '../../dist/auth/keys.js'
import { type TokenKeys, type TokenRequest, Verifier } from '../../dist/auth/verifier.js'
import { FairQueue } from '../../dist/limits/fair-queue.js'
import type { Log } from '../../dist/telemetry/log.js'
import { temporaryDirectorySync as temporaryDirectory } from '../support/directories.ts'
import { type Key, lazyPair, PEM, readPair, signBytes } from '../support/keys.ts'
import { silent } from '../support/log.ts'

// Tokens are built by hand, because a library would refuse to write the wrong ones.

export const ISSUER = 'https://issuer.example/'
export const AUDIENCE = 'plants'
/** Seconds; the frozen clock of most tests. */
export const NOW = 1_800_000_000

export const RULES: TokenRules = {
  issuer: ISSUER,
  audience: [AUDIENCE],
  ownerClaim: 'sub',
  audienceClaim: 'aud',
  scopeClaim: undefined,
  clockTolerance: 5,
}

export const rsa = lazyPair(() => generateKeyPairSync('rsa', { modulusLength: 2048, ...PEM }))
export const rsa2 = lazyPair(() => generateKeyPairSync('rsa', { modulusLength: 2048, ...PEM }))
/** Of 1024 bits. */
export const weak = lazyPair(() => generateKeyPairSync('rsa', { modulusLength: 1024, ...PEM }))
export const p256 = readPair(generateKeyPairSync('ec', { namedCurve: 'P-256', ...PEM }))
export const other256 = readPair(generateKeyPairSync('ec', { namedCurve: 'P-256', ...PEM }))
export const p384 = readPair(generateKeyPairSync('ec', { namedCurve: 'P-384', ...PEM }))
export const p521 = readPair(generateKeyPairSync('ec', { namedCurve: 'P-521', ...PEM }))
export const ed25519 = readPair(generateKeyPairSync('ed25519', PEM))
export const SECRET = Buffer.alloc(32, 7)

export type Members = Readonly<Record<string, unknown>>

export function jwk(key: KeyObject, more: Members = {}): Members {
  return { ...key.export({ format: 'jwk' }), ...more }
}

export function claims(more: Members = {}): Members {
  return { iss: ISSUER, aud: AUDIENCE, sub: 'alice', iat: NOW, exp: NOW + 60, ...more }
}

export function without(name: string, from: Members = claims()): Members {
  return Object.fromEntries(Object.entries(from).filter(([key]) => key !== name))
}

/** Members, or the exact text or bytes. */
type Part = Members | string | Uint8Array

export function base64url(part: Part): string {
  const isWritten = typeof part === 'string' || part instanceof Uint8Array
  return Buffer.from(isWritten ? part : JSON.stringify(part)).toString('base64url')
}

export function signature(alg: string, input: string, key: Key): string {
  return signBytes(alg, input, key).toString('base64url')
}

/** A token with any header and payload, signed by `alg` even if the header names another. */
export function token(header: Part, payload: Part, key: Key, alg: string): string {
  const input = `${base64url(header)}.${base64url(payload)}`
  return `${input}.${signature(alg, input, key)}`
}

/** A token signed by `alg`, as its header says. */
export function signed(
  alg: string,
  key: Key,
  header: Members = {},
  payload: Part = claims(),
): string {
  return token({ alg, ...header }, payload, key, alg)
}

export function hs256(payload: Part = claims(), header: Members = {}): string {
  return signed('HS256', SECRET, header, payload)
}

export { temporaryDirectory }

export function keyFile(...keys: readonly Members[]): string {
  const path = join(temporaryDirectory(), 'jwks.json')
  writeFileSync(path, JSON.stringify({ keys }))
  return path
}

/** The keys of one service. */
export function createKeySource(settings: Partial<KeySettings>, log: Log, timing = TIMING) {
  return new KeySource(readKeys({ issuer: ISSUER, ...settings }), log, timing)
}

/** Keys that are there already, whatever a fetch brings. */
export function fixed(keys: Keys, fetchFor: TokenKeys['fetchFor'] = () => undefined) {
  return { keys, unavailable: undefined, fetchFor }
}

export function secretKeys(jwtSecret: Buffer = SECRET): KeySource {
  return createKeySource({ jwtSecret }, silent)
}

export function fileKeys(...keys: readonly Members[]): KeySource {
  return createKeySource({ jwksFile: keyFile(...keys) }, silent)
}

export const STAYS: TokenRequest = { isChunked: false, isOver: false }

/** A verifier with a queue of its own, whose clients stay by default. */
export class PatientVerifier extends Verifier {
  constructor(keys: TokenKeys, rules: TokenRules, now?: () => number, queue = new FairQueue()) {
    super(keys, rules, queue, now)
  }

  override verify(text: string, client: TokenRequest = STAYS): Caller | Promise<Caller> {
    return super.verify(text, client)
  }
}

export function verifier(keys: TokenKeys = secretKeys(), rules: Partial<TokenRules> = {}) {
  return new PatientVerifier(keys, { ...RULES, ...rules }, () => NOW * 1000)
}

export async function accepted(text: string, by: PatientVerifier = verifier()): Promise<void> {
  assert.equal((await by.verify(text)).owner, 'alice')
}

const challenge = 'Bearer realm="plants", error="invalid_token"'

export async function refused(text: string, condition: string, by = verifier()): Promise<void> {
  const isAbsent = condition === 'keysUnavailable'
  const expected = isAbsent ? KeysUnavailable : { message: /./, refusal: condition, challenge }
  // async, so that a throw and a rejection are the same.
  await assert.rejects(async () => by.verify(text), expected)
}
