/* Reads what a program passes to embed the service. */

import { ConfigError } from '../errors.ts'
import { newInput, readService, type ServiceConfig } from './read.ts'
import { kindOf } from './values.ts'

/**
 * Reads the options of a program.
 * @throws ConfigError that names every problem by its option.
 */
export function readOptions(options: unknown): ServiceConfig {
  if (typeof options !== 'object' || options === null || Array.isArray(options))
    throw new ConfigError(['the options must be an object'])
  const { onLog, ...settings } = { onLog: undefined, ...options }
  const given = Object.entries(settings).filter(([, value]) => value !== undefined)
  const input = newInput(given, (option) => option)
  if (onLog !== undefined && typeof onLog !== 'function')
    input.problems.push(`onLog must be a function, and is ${kindOf(onLog)}`)
  return readService(input)
}
