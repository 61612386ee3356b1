/* `config`: the settings in force. */

import { resolve } from 'node:path'
import { readConfig, VARIABLES } from '../config.ts'
import { escaped } from '../errors.ts'
import { type Address, written } from '../http/listen.ts'
import { columns } from './help.ts'
import { sourceOf } from './serve.ts'

export const run = (): string => describeConfig(process.env)

/**
 * Every setting of a service, where its value comes from, and the value unless it is a secret.
 * @throws ConfigError that names every problem by its variable.
 */
export function describeConfig(env: NodeJS.ProcessEnv): string {
  const { keys, issuer, etcd } = readConfig(env, 'service')
  const from = sourceOf({ keys, issuer })
  const rows = VARIABLES.map(({ name, option, fallback, read }) => {
    const text = env[name] || fallback
    // The prefix has a default that counts only with etcd.
    if (!text || (option === 'etcdPrefix' && !etcd)) return [name, 'unset', '']
    const source = env[name] ? 'variable' : 'default'
    if (option === 'jwtSecret') return [name, source, shown('(left out)')]
    // A URL of keys may have a secret in its query.
    if (option === 'jwksUrl') return [name, source, shown(from)]
    return [name, source, shown(name.endsWith('_FILE') ? resolve(text) : read(text))]
  })
  const secret = 'a secret, which is left out'
  rows.push(['keys', keys.kind, from === undefined ? secret : shown(from)])
  return columns(rows)
}

/** Text that could end a line, or hide in one, is written as JSON writes it. */
function shown(value: unknown): string {
  const isAddress = typeof value === 'object' && !Array.isArray(value)
  // Of the settings, only addresses and lists of endpoints are objects. A list has commas.
  const text = isAddress ? written(value as Address) : String(value)
  return /^[!-~]+$/.test(text) ? text : escaped(JSON.stringify(text))
}
