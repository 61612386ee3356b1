import { token } from '../../test/support/tokens.ts'

const EXP = Math.floor(Date.now() / 1000) + 86_400

/** A token that outlives the benchmark; `jti` makes it differ from all others of its user. */
export function sign(user: string, jti?: string): string {
  return token(user, { exp: EXP, jti })
}
