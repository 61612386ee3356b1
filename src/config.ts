import { createKeySource, type KeyConfig, type KeySource } from './auth/keys.ts'
import { Environment } from './environment.ts'
import { ConfigError } from './errors.ts'
import { createLog, type Log } from './ops/log.ts'
import { members, type Report } from './rules.ts'
import { type Config, SETTINGS } from './settings.ts'

export type { Address } from './http/listen.ts'
export { type Config, variableOf, VARIABLES } from './settings.ts'

/** All but the keys. */
export type Settings = Omit<Config, 'keys'>

/** What a service starts from. */
export interface ServiceConfig extends Config {
  /** The source of the keys, if it was built to check them. It is for one service. */
  readonly openKeys?: (log: Log) => KeySource
}

type ServiceKeys = Pick<ServiceConfig, 'keys' | 'openKeys'>

const { keys: KEYS, ...WITHOUT_KEYS } = SETTINGS
/** What a token says that a development key signs. */
const DEV_CLAIMS = { issuer: 'plant-store-dev', audience: 'plants' }
/** The option that is wrong if keys of a kind cannot be used. */
const OPTION_OF = {
  secret: 'keys.secret',
  file: 'keys.path',
  url: 'keys.url',
  discovery: 'issuer',
} as const satisfies Readonly<Record<KeyConfig['kind'], string>>

/** Why these needs take no configured keys. */
const OWN_KEY = {
  dev: 'cannot be used with --dev, which makes its own key',
  token:
    'is set, and "token" signs with the development key only: let your issuer sign, or ' +
    'sign as "Run it for real" in README.md does',
} as const

/**
 * Reads the environment variables. Only a `service` has configured keys: `dev` has its own key,
 * which `token` uses, and a command on the `storage` needs none.
 * @throws ConfigError that names every problem by its variable.
 */
export function readConfig(
  env: NodeJS.ProcessEnv,
  need: 'service' | 'dev' | 'token' | 'storage',
): Settings & Partial<ServiceKeys> {
  const isService = need === 'service'
  const environment = new Environment(env)
  const { problems, report } = environment
  const { keys, etcd, ...plain } = environment.options(isService ? SETTINGS : WITHOUT_KEYS)
  const options = isService ? plain : { ...DEV_CLAIMS, ...plain }
  if (env['PLANTS_ETCD_ENDPOINTS']) options['etcd'] = etcd
  else environment.refuse('etcd', 'is of no use without PLANTS_ETCD_ENDPOINTS')
  const settings = members(WITHOUT_KEYS)(options, '', report)

  const sources = environment.namesIn('keys')
  let checked: ServiceKeys | undefined
  if (need === 'dev' || need === 'token') environment.refuse('keys', OWN_KEY[need])
  if (isService && sources.length > 1)
    problems.push(`${sources.join(', ')} are set: keys come from one place only`)
  else if (isService) checked = readKeys(withKind(Object(keys)), settings?.issuer, report)
  if (!settings || problems.length > 0) throw new ConfigError(problems)
  return { ...settings, ...checked }
}

/**
 * Reads the options of an embedding application.
 * @throws ConfigError that names every problem by its option.
 */
export function readOptions(given: unknown): ServiceConfig {
  if (typeof given !== 'object' || given === null || Array.isArray(given))
    throw new ConfigError(['the options must be an object'])
  const problems: string[] = []
  const wrong: Report = (option, what) => void problems.push(`${option} ${what}`)
  const { keys, ...options } = { keys: undefined, ...given }
  const settings = members(WITHOUT_KEYS)(options, '', wrong)
  const checked = readKeys(keys, settings?.issuer, wrong)
  if (!settings || !checked || problems.length > 0) throw new ConfigError(problems)
  return { ...settings, ...checked }
}

/** Adds the kind that the one member says. Without a member, keys are discovered. */
function withKind(keys: object): object {
  const kind = 'secret' in keys ? 'secret' : 'path' in keys ? 'file' : 'url'
  return { kind: Object.keys(keys).length > 0 ? kind : 'discovery', ...keys }
}

/** Builds the source of the keys, so that its problems are reported with all others. */
function readKeys(
  value: unknown,
  issuer: string | undefined,
  wrong: Report,
): ServiceKeys | undefined {
  const keys = KEYS(value, 'keys', wrong)
  const isWhole = keys && Object.values(keys).every((member: unknown) => member !== undefined)
  if (!isWhole || (keys.kind === 'discovery' && issuer === undefined)) return undefined
  // A source logs only after a service has started it.
  const silent = createLog('silent')
  let log = silent
  const later: Log = {
    ...silent,
    error: (...line) => log.error(...line),
    info: (...line) => log.info(...line),
  }
  try {
    const source = createKeySource(keys, issuer ?? '', later)
    const openKeys = (given: Log): KeySource => {
      log = given
      return source
    }
    return { keys, openKeys }
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    for (const problem of error.problems) wrong(OPTION_OF[keys.kind], problem)
    return undefined
  }
}
