/* `token`: a token for the key that `serve --dev` made. */

import { readConfig } from '../config.ts'
import { UsageError, type Values } from './commands.ts'
import { devClaims, devKeyPath, readDevKey, signDevToken } from './dev-key.ts'

/** A token for the key that `serve --dev` made. */
export function run({ sub, ttl, scope }: Values): string {
  if (!sub) throw new UsageError('token needs --sub NAME: whose token it is to be')
  if (ttl !== undefined && !/^[1-9][0-9]{0,9}$/.test(ttl))
    throw new UsageError('--ttl must be a number of seconds, 1 or more')
  const config = readConfig(process.env, 'token')
  const key = readDevKey(devKeyPath(config))
  if (key) return signDevToken(key, devClaims(config, sub, scope), ttl)
  const what = '"token" signs with the development key only'
  const missing = `there is none in ${config.dataDirectory}: get tokens from your issuer`
  throw new Error(`${what}, and ${missing}; to try the service, "plant-store serve --dev" makes it`)
}
