import { createHmac } from 'node:crypto'

export const SECRET = 'a test secret of more than thirty-two bytes'
export const ISSUER = 'https://issuer.test'
export const AUDIENCE = 'plants'

function part(value: unknown): string {
  return Buffer.from(JSON.stringify(value)).toString('base64url')
}

/**
 * An HS256 token that the service under test accepts, but for what `claims` and `header` change;
 * undefined leaves a claim out.
 */
export function token(
  sub: string | undefined,
  claims: Readonly<Record<string, unknown>> = {},
  header: Readonly<Record<string, unknown>> = {},
): string {
  const now = Math.floor(Date.now() / 1000)
  const input = `${part({ alg: 'HS256', typ: 'at+jwt', ...header })}.${part({ iss: ISSUER, aud: AUDIENCE, sub, iat: now, exp: now + 600, ...claims })}`
  return `${input}.${createHmac('sha256', SECRET).update(input).digest('base64url')}`
}
