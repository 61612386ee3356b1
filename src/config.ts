import { createKeySource, type KeyConfig, type KeyLog, type KeySource } from './auth/keys.ts'
import { Environment } from './environment.ts'
import { ConfigError } from './errors.ts'
import { members, type Report } from './rules.ts'
import { type Config, SETTINGS } from './settings.ts'

export type { Address } from './http/listen.ts'
export { type Config, VARIABLES } from './settings.ts'

/** All but the keys. */
export type Settings = Omit<Config, 'keys'>

/** Where the keys of a service come from, and their source, which was built to check them. */
interface CheckedKeys {
  readonly keys: KeyConfig
  /** Returns the same source every time: it is for one service. */
  readonly openKeys: (log: KeyLog) => KeySource
}

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

/**
 * Reads the environment variables of a service, or of a command: `dev` has its own key, `storage`
 * uses none.
 * @throws ConfigError that names every problem by its variable.
 */
export function readConfig(env: NodeJS.ProcessEnv, need: 'service'): Settings & CheckedKeys
export function readConfig(
  env: NodeJS.ProcessEnv,
  need: 'dev' | 'storage',
): Settings & { readonly keys?: never }
export function readConfig(
  env: NodeJS.ProcessEnv,
  need: 'service' | 'dev' | 'storage',
): Settings & Partial<CheckedKeys> {
  const environment = new Environment(env)
  const problems: string[] = []
  const refuse = (names: readonly string[], what: string): void => {
    for (const name of names) problems.push(`${name} ${what}`)
  }
  const wrong: Report = (option, what) => void refuse([environment.variableOf(option)], what)

  refuse(environment.unknown(), 'is not known: see --help for the variables that are')
  const { keys, etcd, ...options } = environment.options()
  const hasEtcd = environment.namesIn('etcd.endpoints').length > 0
  if (!hasEtcd) refuse(environment.namesIn('etcd.'), 'is of no use without PLANTS_ETCD_ENDPOINTS')
  const sources = environment.namesIn('keys.')
  if (need === 'dev') refuse(sources, 'cannot be used with --dev, which makes a key of its own')
  const isUnclear = need === 'service' && sources.length > 1
  if (isUnclear) refuse([sources.join(', ')], 'are set: keys come from one place only')

  const claims = need === 'service' ? {} : DEV_CLAIMS
  const given = { ...claims, ...options, etcd: hasEtcd ? etcd : undefined }
  const settings = members(WITHOUT_KEYS).read(given, '', wrong)
  const needsKeys = need === 'service' && !isUnclear
  const checked = needsKeys ? readKeys(withKind(Object(keys)), settings?.issuer, wrong) : undefined
  if (!settings || problems.length > 0) throw new ConfigError(problems)
  return { ...settings, ...checked }
}

/**
 * Reads the options of an embedding application.
 * @throws ConfigError that names every problem by its option.
 */
export function readOptions(given: unknown): Settings & CheckedKeys {
  if (typeof given !== 'object' || given === null || Array.isArray(given))
    throw new ConfigError(['the options must be an object'])
  const problems: string[] = []
  const wrong: Report = (option, what) => void problems.push(`${option} ${what}`)
  const { keys, ...options } = { keys: undefined, ...given }
  const settings = members(WITHOUT_KEYS).read(options, '', wrong)
  const checked = readKeys(keys, settings?.issuer, wrong)
  if (!settings || !checked || problems.length > 0) throw new ConfigError(problems)
  return { ...settings, ...checked }
}

/** What the environment says of `keys`, as an application would pass it. */
function withKind(given: object): object {
  const kind = 'secret' in given ? 'secret' : 'path' in given ? 'file' : 'url'
  return { kind: Object.keys(given).length > 0 ? kind : 'discovery', ...given }
}

/**
 * Reads where keys come from and builds their source, so that its problems are reported with all
 * others. Undefined: something was reported.
 */
function readKeys(
  value: unknown,
  issuer: string | undefined,
  wrong: Report,
): CheckedKeys | undefined {
  const keys = KEYS.read(value, 'keys', wrong)
  const isWhole = keys && Object.values(keys).every((member: unknown) => member !== undefined)
  if (!isWhole || (keys.kind === 'discovery' && issuer === undefined)) return undefined
  // Until a service opens the source, it neither fetches nor reads again, and logs nothing.
  let log: KeyLog = () => {}
  try {
    const source = createKeySource(keys, issuer ?? '', (...line) => log(...line))
    const openKeys = (given: KeyLog): KeySource => {
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
