/* `config`: the settings in force. */

import { resolve } from 'node:path'
import { readConfig } from '../settings/read.ts'
import { escaped } from '../errors.ts'
import { type Address, addressText } from '../http/listen.ts'
import { VARIABLES } from '../settings/table.ts'

export const run = (): string => describeConfig(process.env)

/**
 * Every setting of a service, where its value comes from, and the value unless it is a secret.
 * @throws ConfigError that names every problem by its variable.
 */
export function describeConfig(env: NodeJS.ProcessEnv): string {
  const config = readConfig(env)
  const { kind, from: keysFrom } = config.keys
  const rows = VARIABLES.map(({ name, option }) => {
    const [text = '', value] = [env[name], config[option]]
    // The prefix has a default that counts only with etcd.
    if (value === undefined || (option === 'etcdPrefix' && !config.etcd)) return [name, 'unset', '']
    const from = text ? 'variable' : 'default'
    if (option === 'jwtSecret') return [name, from, shown('(left out)')]
    // A URL of keys may have a secret in its query.
    if (option === 'jwksUrl') return [name, from, shown(keysFrom)]
    // The value of such a setting is the content of its file, or a list of paths.
    const isContent = name.endsWith('_FILE') && !Array.isArray(value)
    return [name, from, shown(isContent ? resolve(text) : value)]
  })
  rows.push(['keys', kind, keysFrom ? shown(keysFrom) : 'a secret, which is left out'])
  return columns(rows)
}

/** Text that could end a line, or hide in one, is written as JSON writes it. */
function shown(value: unknown): string {
  const isAddress = typeof value === 'object' && !Array.isArray(value)
  // Of the settings, only addresses and lists of endpoints are objects. A list has commas.
  const text = isAddress ? addressText(value as Address) : String(value)
  return /^[!-~]+$/.test(text) ? text : escaped(JSON.stringify(text))
}

/** All columns but the last are as wide as their longest cell. */
export function columns(rows: readonly (readonly string[])[]): string {
  const widthOf = (at: number): number => Math.max(...rows.map((row) => row[at]?.length ?? 0))
  const padded = rows.map((row) => row.map((cell, at) => cell.padEnd(widthOf(at))))
  return padded.map((row) => row.join('  ').trimEnd()).join('\n')
}
