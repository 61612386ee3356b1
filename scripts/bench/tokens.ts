import { createHmac } from 'node:crypto'

export const SECRET = 'plants-bench-secret-0123456789abcdef0123456789'
export const ISSUER = 'bench'
export const AUDIENCE = 'plants'
const LIFE_SECONDS = 86_400

const now = Math.floor(Date.now() / 1000)
const header = part({ alg: 'HS256', typ: 'JWT' })

function part(value: unknown): string {
  return Buffer.from(JSON.stringify(value)).toString('base64url')
}

/** `jti` makes a token that differs from all others of its user. */
export function sign(sub: string, jti?: string): string {
  const input = `${header}.${part({ sub, iss: ISSUER, aud: AUDIENCE, iat: now, exp: now + LIFE_SECONDS, jti })}`
  return `${input}.${createHmac('sha256', SECRET).update(input).digest('base64url')}`
}
