import { BOUNDS, type Config, DEFAULTS } from './config.ts'
import { ConfigError } from './errors.ts'
import { createLog } from './ops/log.ts'
import { createService, type PlantService } from './service.ts'

export type { KeyConfig } from './auth/keys.ts'
export type { Address, Config } from './config.ts'
export { ConfigError } from './errors.ts'
export type { EtcdConfig } from './store/etcd/store.ts'
export type { Listening, PlantService } from './service.ts'

/** What must be said; all else has the defaults of the configuration table. */
export type PlantServiceConfig = Partial<Config> & Pick<Config, 'issuer' | 'audience' | 'keys'>

/**
 * A plant store to be run inside another program: `listen` opens its own listeners, `handler` mounts in any `node:http`
 * server. Nothing is read from the environment, no signal is handled, and the process is never ended.
 * @param onFatal is told when memory and disk may differ: the service answers 503 from then on, and a new one must be made.
 * @throws ConfigError that names every problem, or when the keys cannot be used.
 */
export function createPlantService(config: PlantServiceConfig, onFatal: (error: unknown) => void = () => {}): PlantService {
  const said = Object.entries(config).filter(([, value]) => value !== undefined)
  refuseWrong(new Map<string, unknown>(said))
  // An undefined does not undo a default. What remains are members of PlantServiceConfig, the required ones among them.
  const whole = { ...DEFAULTS, ...Object.fromEntries(said) } as Config
  return createService(whole, { log: createLog(whole.logLevel), onFatal })
}

/** JavaScript passes anything. What would open a door where nobody looks is refused: a name misspelt, no issuer, a bound that is none. */
function refuseWrong(said: ReadonlyMap<string, unknown>): void {
  const problems: string[] = []
  for (const name of said.keys()) if (!Object.hasOwn(DEFAULTS, name) && !['issuer', 'audience', 'keys'].includes(name)) problems.push(`${name} is not known`)
  for (const name of ['issuer', 'audience']) if (typeof said.get(name) !== 'string' || said.get(name) === '') problems.push(`${name} is required, and a text`)
  if (typeof said.get('keys') !== 'object' || said.get('keys') === null) problems.push('keys is required: where keys come from')
  for (const [name, [min, max]] of Object.entries(BOUNDS)) {
    const value = said.get(name) ?? min
    if (!Number.isInteger(value) || Number(value) < min || Number(value) > max) problems.push(`${name} must be an integer from ${min} to ${max}`)
  }
  if (problems.length > 0) throw new ConfigError(problems)
}
