import { readConfig } from '../config.ts'
import { devClaims, devKeyPath, readDevKey, signDevToken } from './dev-key.ts'

/** A token for the key that `serve --dev` made. */
export function token(
  sub: string,
  ttlSeconds: number | undefined,
  scope: string | undefined,
): string {
  const config = readConfig(process.env, 'token')
  const key = readDevKey(devKeyPath(config))
  if (key) return signDevToken(key, devClaims(config, sub, scope), ttlSeconds)
  const what = '"token" signs with the development key only'
  const missing = `there is none in ${config.dataDirectory}: get tokens from your issuer`
  throw new Error(`${what}, and ${missing}; to try the service, "plant-store serve --dev" makes it`)
}
