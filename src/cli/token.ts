import { readConfig } from '../config.ts'
import { devClaims, devKeyPath, readDevKey, signDevToken } from './dev-key.ts'

/** A token for the key that `serve --dev` made. */
export function token(
  sub: string,
  ttlSeconds: number | undefined,
  scope: string | undefined,
): string {
  const config = readConfig(process.env, 'dev')
  const key = readDevKey(devKeyPath(config))
  if (key) return signDevToken(key, devClaims(config, sub, scope), ttlSeconds)
  const what = `there is no development key in ${config.dataDirectory}`
  throw new Error(`${what}: start "plant-store serve --dev" first`)
}
