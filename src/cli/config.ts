import { resolve } from 'node:path'
import { type Config, readConfig, VARIABLES } from '../config.ts'
import { type Address, written } from '../http/listen.ts'
import type { Variable } from '../settings.ts'
import { escaped } from '../errors.ts'
import { columns } from './help.ts'
import { sourceOf } from './serve.ts'

/**
 * Every setting of a service, where its value comes from, and the value unless it is a secret.
 * @throws ConfigError that names every problem by its variable.
 */
export function describeConfig(env: NodeJS.ProcessEnv): string {
  const { keys = { kind: 'discovery' }, ...settings } = readConfig(env, 'service')
  const config = { ...settings, keys }
  const rows = VARIABLES.map((variable) => {
    const { name, fallback } = variable
    const value = env[name] ? given(variable, env[name], config) : valueOf(config, variable)
    // The value is that of another variable, or there is none.
    const isUnset = !env[name] && (fallback === '' || value === undefined)
    const source = env[name] ? 'variable' : isUnset ? 'unset' : 'default'
    return [name, source, isUnset ? '' : shown(value)]
  })
  const from = sourceOf(config)
  const secret = 'a secret, which is left out'
  rows.push(['keys', keys.kind, from === undefined ? secret : shown(from)])
  return columns(rows)
}

/** Of a file its path, and of a secret nothing. */
function given(variable: Variable, text: string, config: Config): unknown {
  if (variable.name.endsWith('_FILE')) return resolve(text)
  if (variable.option === 'keys.secret') return '(left out)'
  return variable.option === 'keys.url' ? sourceOf(config) : valueOf(config, variable)
}

/** What the service works with. */
function valueOf(config: Config, { option }: Variable): unknown {
  let value: unknown = config
  for (const member of option.split('.')) {
    // Object() makes an object of anything. Its members are still unknown.
    value = (Object(value) as Readonly<Record<string, unknown>>)[member]
  }
  return value
}

/** Text that could end a line, or hide in one, is written as JSON writes it. */
function shown(value: unknown): string {
  if (Array.isArray(value)) return value.join(',')
  // Of the settings, only addresses are objects.
  const text = typeof value === 'object' ? written(value as Address) : String(value)
  return /^[!-~]+$/.test(text) ? text : escaped(JSON.stringify(text))
}
