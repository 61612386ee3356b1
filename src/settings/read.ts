/* Reads the settings of an operator into what the service works with. */

import { createPrivateKey, X509Certificate } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import type { ConfiguredKeys } from '../auth/key-source.ts'
import { readKeys } from '../auth/keys.ts'
import { ConfigError, reasonOf } from '../errors.ts'
import { type Option, type Values, variableOf, VARIABLES } from './table.ts'
import { isSecure } from './values.ts'

/** Every setting, and what follows from several of them. */
export type Config = ReturnType<typeof readValues>

/** All that the service can be told. */
export type ServiceConfig = Config & { readonly keys: ConfiguredKeys }

export const KEYS: readonly Option[] = ['jwtSecretFile', 'jwtSecret', 'jwksFile', 'jwksUrl']
const ETCD_TLS: readonly Option[] = ['etcdCaFile', 'etcdCertFile', 'etcdKeyFile']
const OF_ETCD: readonly Option[] = ['etcdPrefix', 'etcdUsername', 'etcdPasswordFile', ...ETCD_TLS]
const NO_SETTINGS =
  'keys come from the issuer, or from PLANTS_JWT_SECRET_FILE or PLANTS_JWKS_FILE; ' +
  'to try the service, "serve --dev" needs no setting'

/** What Kubernetes sets for a Service named plants, or plants-…; no setting has such a name. */
const OF_KUBERNETES = /^PLANTS_([A-Z0-9_]+_)?(SERVICE_HOST|PORT(_[A-Z0-9_]+)?)$/

/**
 * Reads the environment variables of a service; an empty value counts as unset.
 * @throws ConfigError that names every problem by its variable.
 */
export function readConfig(env: NodeJS.ProcessEnv): ServiceConfig {
  return readService(inputOf(env), NO_SETTINGS)
}

/** `defaults` are for variables that are not set. */
export function inputOf(env: NodeJS.ProcessEnv, defaults: NodeJS.ProcessEnv = {}): Input {
  const given = Object.entries(env).filter(([name, text]) => {
    return name.startsWith('PLANTS_') && text && !OF_KUBERNETES.test(name)
  })
  const all = [...Object.entries(defaults), ...given]
  return newInput(all, variableOf, ': see --help for the variables that are')
}

/** What an operator wrote, or a program passed; and what is wrong with it. */
type Input = ReturnType<typeof newInput>

/** `nameOf` returns what messages call an option, and `hint` ends those of an unknown one. */
export function newInput(
  source: [name: string, value: unknown][],
  nameOf: typeof variableOf,
  hint = '',
) {
  const options = new Map(VARIABLES.map(({ option }) => [nameOf(option), option]))
  const given = new Map<Option, unknown>()
  const problems: string[] = []
  for (const [name, value] of source) {
    const option = options.get(name)
    if (option === undefined) problems.push(`${name} is not known${hint}`)
    else given.set(option, value)
  }
  const wrong = (option: Option, what: string) => problems.push(`${nameOf(option)} ${what}`)
  const refuse = (refused: readonly Option[], what: string): void => {
    for (const option of refused) if (given.delete(option)) wrong(option, what)
  }
  /** What `read` returns. Undefined if it throws, which is a problem. */
  const attempt = <T>(option: Option, read: () => T, advice = ''): T | undefined => {
    try {
      return read()
    } catch (error) {
      wrong(option, `${reasonOf(error)}${advice}`)
      return undefined
    }
  }
  return { given, problems, nameOf, wrong, refuse, attempt }
}

/**
 * Reads the keys too, so that their problems are reported with all others. `advice` is a problem
 * more if neither issuer nor audience is set.
 */
export function readService(input: Input, advice?: string): ServiceConfig {
  const { given, problems, nameOf, attempt } = input
  const config = readValues(input)
  const names = (options: readonly Option[]): string => options.map(nameOf).join(', ')
  const sources = KEYS.filter((option) => given.has(option))
  const [option = 'issuer', other] = sources
  if (other) problems.push(`${names(sources)} are set: keys come from one place only`)
  const others = `; or set one of ${names(KEYS)}: it says where the keys are`
  const read = () => readKeys(config, nameOf('keysOverHttp'))
  const isUsable = !other && config[option] !== undefined
  const keys = isUsable && attempt(option, read, option === 'issuer' ? others : '')
  if (advice && !given.has('issuer') && !given.has('audience')) problems.push(advice)
  // Without keys there is a problem.
  if (!keys || problems.length > 0) throw new ConfigError(problems)
  return { ...config, keys }
}

/** Reads every setting and reports what is wrong; the value of a wrong setting is undefined. */
export function readValues(input: Input) {
  const { given, nameOf, wrong, refuse, attempt } = input
  if (!given.has('etcdEndpoints'))
    refuse(OF_ETCD, `is of no use without ${nameOf('etcdEndpoints')}`)
  else refuse(['maxOwnerBytes'], `is of no use with ${nameOf('etcdEndpoints')}: etcd has a quota`)
  if (!isSecure(String(given.get('etcdEndpoints')))) refuse(ETCD_TLS, 'is of no use without https')
  requireBoth(input, 'etcdUsername', 'etcdPasswordFile')
  requireBoth(input, 'etcdCertFile', 'etcdKeyFile')
  const entries = VARIABLES.map(({ option, read }) => {
    return [option, attempt(option, () => read(given.get(option)))]
  })
  // Each value has its setting's type. With a problem, none of them is used.
  const values = Object.fromEntries(entries) as Values
  const { etcdCertFile: cert, etcdKeyFile: key, listen, adminListen } = values
  if (cert && key && !new X509Certificate(cert).checkPrivateKey(createPrivateKey(key)))
    wrong('etcdKeyFile', 'is not the key of the first certificate')
  // With port 0 each gets another free port.
  if (listen && !('port' in listen && listen.port === 0) && isDeepStrictEqual(listen, adminListen))
    wrong('adminListen', `is the same address as ${nameOf('listen')}: each needs its own`)
  // How to reach etcd, if plants are kept there.
  const { etcdEndpoints: endpoints, etcdPrefix: prefix, etcdCaFile: ca } = values
  const { etcdUsername: name, etcdPasswordFile: password = '' } = values
  const user = name === undefined ? undefined : { name, password }
  return { ...values, etcd: endpoints && { endpoints, prefix, user, tls: { ca, cert, key } } }
}

function requireBoth({ given, nameOf, wrong }: Input, one: Option, other: Option): void {
  const [present, missing] = given.has(one) ? [one, other] : [other, one]
  if (given.has(present) && !given.has(missing)) wrong(missing, `is required by ${nameOf(present)}`)
}
