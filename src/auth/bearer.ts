/** Reads the token of a request from its headers, and names the challenge of each refusal. */
import type { Condition } from '../errors.ts'

const REALM = 'Bearer realm="plants"'
const INVALID_TOKEN = `${REALM}, error="invalid_token"`

/** As the catalogue of errors names it. */
type Refusal = Extract<Condition, `token${string}` | 'authorizationMalformed'>

/** No token that is accepted came with the request. The message is for the log alone. */
export class TokenRefused extends Error {
  readonly refusal: Refusal
  /** The value of WWW-Authenticate. */
  readonly challenge: string

  constructor(refusal: Refusal, message: string, challenge = INVALID_TOKEN) {
    super(message)
    this.refusal = refusal
    this.challenge = challenge
  }
}

// RFC 9110 §11.1: the scheme is a token (§5.6.2), in any case.
const SCHEME = /^bearer(?![!#$%&'*+.^_`|~0-9a-z-])/i
// RFC 6750 §2.1: "Bearer" 1*SP b64token, and nothing else.
const SCHEME_AND_SPACES = /^bearer +/i
/** A b64token has "=" at its end only. As a pattern of what it is, this would backtrack: 75 µs. */
const NO_B64TOKEN = /^(?:=|$)|[^\w.~+/=-]|=[^=]/

/**
 * Reads the token of a request from the values of all its Authorization headers. Two of them are
 * refused: two readers of one request could otherwise see two tokens (RFC 9110 §5.3).
 * @throws TokenRefused tokenMissing or authorizationMalformed.
 */
export function readBearer(values: readonly string[]): string {
  if (values.length > 1) throw malformed('several Authorization headers')
  const value = values[0] ?? ''
  const token = value.replace(SCHEME_AND_SPACES, '')
  if (token !== value && !NO_B64TOKEN.test(token)) return token
  if (SCHEME.test(value)) throw malformed('no b64token after Bearer')
  const reason = value ? 'another scheme than Bearer' : 'no Authorization header, or an empty one'
  // RFC 6750 §3: no error attribute if the request carries no token.
  throw new TokenRefused('tokenMissing', reason, REALM)
}

function malformed(what: string): TokenRefused {
  return new TokenRefused('authorizationMalformed', what, `${REALM}, error="invalid_request"`)
}

/**
 * The challenge that names the scope a token lacks. `scope` is one scope-token (RFC 6749 §3.3),
 * which has no quote to escape.
 */
export function insufficientScope(scope: string): readonly string[] {
  return ['WWW-Authenticate', `${REALM}, error="insufficient_scope", scope="${scope}"`]
}
