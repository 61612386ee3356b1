import { readConfig } from '../config.ts'
import { UsageError, type Values } from './command.ts'
import { DEV_TTL_SECONDS, devClaims, devKeyPath, readDevKey, signDevToken } from './dev-key.ts'

/** A token for the key that `serve --dev` made. */
export function token({ sub, ttl = String(DEV_TTL_SECONDS), scope }: Values): string {
  if (!sub) throw new UsageError('token needs --sub NAME: whose token it is to be')
  if (!/^[1-9][0-9]{0,9}$/.test(ttl))
    throw new UsageError('--ttl must be a number of seconds, 1 or more')
  const config = readConfig(process.env, 'dev')
  const key = readDevKey(devKeyPath(config))
  if (key) return signDevToken(key, devClaims(config, sub, Number(ttl), scope))
  const what = `there is no development key in ${config.dataDirectory}`
  throw new Error(`${what}: start "plant-store serve --dev" first`)
}
