/** Reads from the claims of a verified token who sent a request. */
import { createHash } from 'node:crypto'
import type { JWTPayload } from 'jose'
import { invalidToken } from './bearer.ts'

/** Who sent a request, as its verified token says. */
export interface Caller {
  readonly owner: string
  /** The owner's SHA-256 in hex. The log has the beginning of it. */
  readonly ownerHash: string
  readonly scopes: ReadonlySet<string>
  /** When the token expires: seconds since 1970. */
  readonly exp: number
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

/**
 * Checks what jose does not, or only in `aud`, and reads who the caller is.
 * @throws HttpError tokenUnacceptable if a claim is missing or of no use.
 */
export function readCaller(claims: JWTPayload, rules: TokenRules): Caller {
  const { exp = Infinity } = claims
  // JSON's 1e400 is Infinity, which jose takes for a number: the token would never expire.
  if (!Number.isFinite(exp)) throw invalidToken('tokenUnacceptable', 'exp is not finite')
  const audiences = [requiredClaimOf(claims, rules.audienceClaim)].flat()
  if (!audiences.includes(rules.audience))
    throw invalidToken('tokenUnacceptable', 'the audience claim does not hold the audience')
  const owner = requiredClaimOf(claims, rules.ownerClaim)
  if (typeof owner !== 'string' || owner === '' || !owner.isWellFormed())
    throw invalidToken('tokenUnacceptable', 'the owner claim is no usable string')
  const ownerHash = createHash('sha256').update(owner).digest('hex')
  const scopeClaim = rules.scopeClaim ?? (Object.hasOwn(claims, 'scope') ? 'scope' : 'scp')
  return { owner, ownerHash, scopes: readScopes(claimOf(claims, scopeClaim)), exp }
}

/** @throws HttpError tokenUnacceptable if the token does not have the claim. */
function requiredClaimOf(claims: JWTPayload, name: string): unknown {
  const value = claimOf(claims, name)
  if (value !== undefined) return value
  throw invalidToken('tokenUnacceptable', `missing required "${name}" claim`)
}

/**
 * The value of the claim of this name, else what the path leads to: `realm_access.roles` are the
 * `roles` inside `realm_access`. Undefined if the token has neither.
 */
function claimOf(claims: JWTPayload, name: string): unknown {
  const path = Object.hasOwn(claims, name) ? [name] : name.split('.')
  return path.reduce<unknown>(memberOf, claims)
}

/** A member may be configured as `constructor`, which every object inherits. */
function memberOf(value: unknown, name: string): unknown {
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
  if (!isObject || !Object.hasOwn(value, name)) return undefined
  // An object may have a member of any name.
  return (value as Readonly<Record<string, unknown>>)[name]
}

/** A string is split at spaces (RFC 8693 §4.2); `scp`, `roles` and `permissions` may be arrays. */
function readScopes(value: unknown): ReadonlySet<string> {
  // Copies: a part of the string would keep the whole of it, all its blanks too.
  if (typeof value === 'string')
    return new Set(value.split(' ').filter(Boolean).map((scope) => Buffer.from(scope).toString()))
  const isList = Array.isArray(value) && value.every((scope) => typeof scope === 'string')
  return new Set(isList ? value : [])
}
