/* The settings of a command that verifies no token. */

import { ConfigError } from '../errors.ts'
import { type Config, inputOf, KEYS, readValues } from '../settings/read.ts'

/** What a token says that is signed with the development key. */
const DEV_CLAIMS = { PLANTS_ISSUER: 'plant-store-dev', PLANTS_AUDIENCE: 'plants' }
const OWN_KEY =
  'is set, and "serve --dev" and "token" use the development key only: ' +
  'for tokens of your issuer, see "Deploy" in README.md'

/**
 * Reads all but the settings of keys: for a command that verifies no token, or for the development
 * key.
 * @throws ConfigError, also for settings of keys that are `refused`.
 */
export function readWithoutKeys(env: NodeJS.ProcessEnv, keys: 'ignored' | 'refused'): Config {
  const input = inputOf(env, DEV_CLAIMS)
  if (keys === 'refused') input.refuse(KEYS, OWN_KEY)
  for (const option of KEYS) input.given.delete(option)
  const config = readValues(input)
  if (input.problems.length > 0) throw new ConfigError(input.problems)
  return config
}
