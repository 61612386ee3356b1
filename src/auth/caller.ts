/** Reads from the claims of a verified token who sent a request. */
import { createHash } from 'node:crypto'
import type { JWTPayload } from 'jose'
import { TokenRefused } from './bearer.ts'
import { isJsonObject } from './json-object.ts'

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
  /** Of which a token must have one. */
  readonly audience: readonly string[]
  readonly audienceClaim: string
  /** In seconds. */
  readonly clockTolerance: number
  readonly ownerClaim: string
  /** undefined: `scope`, or `scp` if the token has no `scope`. */
  readonly scopeClaim: string | undefined
}

/**
 * Checks what jose does not, or only in `aud`, and reads who the caller is.
 * @throws TokenRefused tokenUnacceptable if a claim is missing or of no use.
 */
export function readCaller(claims: JWTPayload, rules: TokenRules): Caller {
  const { exp = Infinity } = claims
  // JSON's 1e400 is Infinity, which jose takes for a number: the token would never expire.
  if (!Number.isFinite(exp)) throw unacceptable('exp is not finite')
  const audiences = [claimOf(claims, rules.audienceClaim)].flat()
  if (!rules.audience.some((audience) => audiences.includes(audience)))
    throw unacceptable(`the claim "${rules.audienceClaim}" does not hold the audience`)
  const owner = claimOf(claims, rules.ownerClaim)
  if (typeof owner !== 'string' || owner === '' || !owner.isWellFormed())
    throw unacceptable(`the claim "${rules.ownerClaim}" is no usable string`)
  const ownerHash = createHash('sha256').update(owner).digest('hex')
  const scopeClaim = rules.scopeClaim ?? (Object.hasOwn(claims, 'scope') ? 'scope' : 'scp')
  return { owner, ownerHash, scopes: readScopes(claimOf(claims, scopeClaim)), exp }
}

/** The value of the claim of this name, else what the path leads to. Undefined without either. */
function claimOf(claims: JWTPayload, name: string): unknown {
  return Object.hasOwn(claims, name) ? claims[name] : valueAt(claims, name)
}

/**
 * What a path of names with dots between leads to: `realm_access.roles` are the `roles` inside
 * `realm_access`. A name may have dots itself, so each beginning of the path that ends before a dot
 * is tried, the shortest first, then the whole path. Only own members: a name may be `constructor`.
 */
function valueAt(value: unknown, path: string): unknown {
  if (!isJsonObject(value)) return undefined
  for (let dot = path.indexOf('.'); dot >= 0; dot = path.indexOf('.', dot + 1)) {
    const name = path.slice(0, dot)
    const found = Object.hasOwn(value, name) ? valueAt(value[name], path.slice(dot + 1)) : undefined
    if (found !== undefined) return found
  }
  return Object.hasOwn(value, path) ? value[path] : undefined
}

/**
 * A string is split at spaces (RFC 8693 §4.2); `scp`, `roles` and `permissions` may be arrays. Of
 * an object the names are scopes, as Zitadel has roles: {"reader": {"1": "org.example"}}.
 */
function readScopes(value: unknown): ReadonlySet<string> {
  // Copies: a part of the string would keep the whole of it, all its blanks too.
  if (typeof value === 'string')
    return new Set(value.split(' ').filter(Boolean).map((scope) => Buffer.from(scope).toString()))
  const list = isJsonObject(value) ? Object.keys(value).filter((n) => isGranted(value[n])) : value
  const isList = Array.isArray(list) && list.every((scope) => typeof scope === 'string')
  return new Set(isList ? list : [])
}

/** `false` denies a role; of a list the path is too short: {"realm_access": {"roles": [...]}}. */
function isGranted(member: unknown): boolean {
  return member === true || (isJsonObject(member) && Object.keys(member).length > 0)
}

function unacceptable(reason: string): TokenRefused {
  return new TokenRefused('tokenUnacceptable', reason)
}
