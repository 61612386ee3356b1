/** Reads from the claims of a verified token who sent a request. */
import { createHash } from 'node:crypto'
import type { JWTPayload } from 'jose'
import { invalidToken } from './bearer.ts'

/** Who sent a request, as its verified token says. */
export interface Caller {
  readonly owner: string
  /** What the log says instead of the owner: the first 12 hex digits of its SHA-256. */
  readonly ownerHash: string
  readonly scopes: ReadonlySet<string>
}

/** What a token must say, and which of its claims say who the caller is. */
export interface TokenRules {
  readonly issuer: string
  readonly audience: string
  readonly audienceClaim: string
  /** In seconds. */
  readonly clockTolerance: number
  readonly ownerClaim: string
  /** undefined: `scope`, or `scp` if the token has no `scope`. */
  readonly scopeClaim: string | undefined
}

/** @throws HttpError tokenUnacceptable if the owner claim is no usable string. */
export function readCaller(claims: JWTPayload, { ownerClaim, scopeClaim }: TokenRules): Caller {
  const owner = claimOf(claims, ownerClaim)
  if (typeof owner !== 'string' || owner === '' || !owner.isWellFormed())
    throw invalidToken('tokenUnacceptable', 'the owner claim is no usable string')
  const ownerHash = createHash('sha256').update(owner).digest('hex').slice(0, 12)
  const defaultClaim = Object.hasOwn(claims, 'scope') ? 'scope' : 'scp'
  return { owner, ownerHash, scopes: readScopes(claimOf(claims, scopeClaim ?? defaultClaim)) }
}

/**
 * The value of a claim, if the token has it. A claim may be configured as `constructor`, which
 * every object inherits.
 */
export function claimOf(claims: JWTPayload, name: string): unknown {
  return Object.hasOwn(claims, name) ? claims[name] : undefined
}

/** A string is split at spaces (RFC 8693 §4.2); `scp`, `roles` and `permissions` may be arrays. */
function readScopes(value: unknown): ReadonlySet<string> {
  if (typeof value === 'string') return new Set(value.split(' ').filter((scope) => scope !== ''))
  const isList = Array.isArray(value) && value.every((scope) => typeof scope === 'string')
  return new Set(isList ? value : [])
}
