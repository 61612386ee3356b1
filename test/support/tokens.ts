import { createHmac } from 'node:crypto'

export const SECRET = 'a test secret of more than thirty-two bytes'
export const ISSUER = 'https://issuer.test'
export const AUDIENCE = 'plants'

type Members = Readonly<Record<string, unknown>>

/** The compact form of a token with this header and payload, signed by `sign`. */
export function signToken(
  header: Members,
  payload: Members,
  sign: (input: string) => Buffer,
): string {
  const part = (members: Members): string =>
    Buffer.from(JSON.stringify(members)).toString('base64url')
  const input = `${part(header)}.${part(payload)}`
  return `${input}.${sign(input).toString('base64url')}`
}

/**
 * An HS256 token that the service under test accepts, except for what `claims` and `header` change;
 * undefined leaves a claim out.
 */
export function token(sub: string | undefined, claims: Members = {}, header: Members = {}): string {
  const now = Math.floor(Date.now() / 1000)
  return signToken(
    { alg: 'HS256', typ: 'at+jwt', ...header },
    { iss: ISSUER, aud: AUDIENCE, sub, iat: now, exp: now + 600, ...claims },
    (input) => createHmac('sha256', SECRET).update(input).digest(),
  )
}
