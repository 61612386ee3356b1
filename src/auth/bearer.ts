/** Reads the token of a request from its headers, and names the challenge of each refusal. */
import { type Condition, HttpError } from '../errors.ts'

const REALM = 'Bearer realm="plants"'

// RFC 6750 §3: no error attribute if the request carries no token.
const TOKEN_MISSING = ['WWW-Authenticate', REALM]
const INVALID_REQUEST = ['WWW-Authenticate', `${REALM}, error="invalid_request"`]
const INVALID_TOKEN = ['WWW-Authenticate', `${REALM}, error="invalid_token"`]

// RFC 9110 §11.1: the scheme is a token (§5.6.2), in any case.
const SCHEME = /^bearer(?![!#$%&'*+.^_`|~0-9a-z-])/i
// RFC 6750 §2.1: "Bearer" 1*SP b64token, and nothing else. A b64token is this, and then any number
// of "=". One pattern for all of it would go back over a long text that does not match: 75 µs.
const TOKEN_START = /^[A-Za-z0-9._~+/-]+/
const SCHEME_AND_SPACES = /^bearer +$/i

/**
 * Reads the token of a request from the values of all its Authorization headers. Two of them are
 * refused: two readers of one request could otherwise see two tokens (RFC 9110 §5.3).
 * @throws HttpError tokenMissing or authorizationMalformed.
 */
export function readBearer(values: readonly string[]): string {
  if (values.length > 1)
    throw new HttpError('authorizationMalformed', INVALID_REQUEST, 'several Authorization headers')
  const value = values[0] ?? ''
  const token = value.slice(value.lastIndexOf(' ') + 1)
  const [start = ''] = TOKEN_START.exec(token) ?? []
  const isToken = start !== '' && !/[^=]/.test(token.slice(start.length))
  if (isToken && SCHEME_AND_SPACES.test(value.slice(0, -token.length))) return token
  const cause =
    value === '' ? 'no Authorization header, or an empty one' : 'another scheme than Bearer'
  if (!SCHEME.test(value)) throw new HttpError('tokenMissing', TOKEN_MISSING, cause)
  throw new HttpError('authorizationMalformed', INVALID_REQUEST, 'no b64token after Bearer')
}

/** The error for a token that is refused; `reason` is for the log alone. */
export function invalidToken(condition: Condition, reason: string): HttpError {
  return new HttpError(condition, INVALID_TOKEN, reason)
}

/**
 * The challenge that names the scope a token lacks. `scope` is one scope-token (RFC 6749 §3.3),
 * which has no quote to escape.
 */
export function insufficientScope(scope: string): readonly string[] {
  return ['WWW-Authenticate', `${REALM}, error="insufficient_scope", scope="${scope}"`]
}
