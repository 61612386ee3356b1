import { HttpError } from '../errors.ts'

const REALM = 'Bearer realm="plants"'

// RFC 6750 §3: no error attribute where the request carries no token.
const TOKEN_MISSING = ['WWW-Authenticate', REALM] as const
const INVALID_REQUEST = ['WWW-Authenticate', `${REALM}, error="invalid_request"`] as const

/** The challenge that goes with every refused token; headers as `HttpError` takes them. */
export const INVALID_TOKEN = ['WWW-Authenticate', `${REALM}, error="invalid_token"`] as const

/**
 * The challenge that names the scope a token lacks. `scope` is one scope-token (RFC 6749 §3.3): no
 * quote to escape.
 */
export function insufficientScope(scope: string): readonly string[] {
  return ['WWW-Authenticate', `${REALM}, error="insufficient_scope", scope="${scope}"`]
}

// RFC 9110 §11.1: auth-scheme is a token (§5.6.2), in any case.
const SCHEME = /^bearer(?![!#$%&'*+.^_`|~0-9a-z-])/i
// RFC 6750 §2.1: "Bearer" 1*SP b64token, and nothing else: no comma, no parameters, no second
// token.
const CREDENTIALS = /^bearer +([a-z0-9._~+/-]+=*)$/i

/**
 * The token of a request, given all its Authorization lines. Node would join or drop the second of
 * two, so that two readers of the request could see two tokens: it is refused instead (RFC 9110
 * §5.3).
 * @throws HttpError tokenMissing or authorizationMalformed.
 */
export function readBearer(values: readonly string[]): string {
  if (values.length > 1)
    throw new HttpError('authorizationMalformed', INVALID_REQUEST, 'several Authorization lines')
  const value = values[0] ?? ''
  const token = CREDENTIALS.exec(value)?.[1]
  if (token !== undefined) return token
  if (!SCHEME.test(value)) throw new HttpError('tokenMissing', TOKEN_MISSING)
  throw new HttpError('authorizationMalformed', INVALID_REQUEST, 'no b64token behind Bearer')
}
