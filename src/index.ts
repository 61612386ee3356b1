import { type Config, DEFAULTS } from './config.ts'
import { createLog } from './ops/log.ts'
import { createService, type PlantService } from './service.ts'

export type { KeyConfig } from './auth/keys.ts'
export type { Address, Config } from './config.ts'
export { ConfigError } from './errors.ts'
export type { Listening, PlantService } from './service.ts'

/** What must be said; all else has the defaults of the configuration table. */
export type PlantServiceConfig = Partial<Config> & Pick<Config, 'issuer' | 'audience' | 'keys'>

/**
 * A plant store to be run inside another program: `listen` opens its own listeners, `handler` mounts in any `node:http`
 * server. Nothing is read from the environment, no signal is handled, and the process is never ended.
 * @param onFatal is told when memory and disk may differ: the service answers 503 from then on, and a new one must be made.
 * @throws ConfigError when the keys cannot be used.
 */
export function createPlantService(config: PlantServiceConfig, onFatal: (error: unknown) => void = () => {}): PlantService {
  const whole: Config = { ...DEFAULTS, ...config }
  return createService(whole, { log: createLog(whole.logLevel), onFatal })
}
