/* The log as lines for people. */

import { inspect } from 'node:util'
import { escaped, isError, reasonOf } from '../errors.ts'
import type { LogFormat } from '../telemetry/log.ts'

/** Width of the longest common method. */
const METHOD_CHARS = 7

/** Lines for people: local time, then what happened. */
export const LINES: LogFormat = {
  line(level, message, fields = {}) {
    const given = Object.entries(fields).filter(([, value]) => value !== undefined)
    const words = given.map(([name, value]) => `${name}=${shown(value)}`)
    const what = level === 'error' ? `ERROR ${message}` : message
    return line([what, ...words])
  },
  request({ method = '-', route = '-', status, ms, error, aborted }) {
    const took = `${Number(ms).toFixed(1)} ms`
    const words = [String(method).padEnd(METHOD_CHARS), route, status, took]
    if (error !== undefined) words.push(`error ${error}`)
    if (aborted) words.push('aborted')
    return line(words)
  },
}

function line(words: readonly unknown[]): string {
  const time = new Date().toTimeString().slice(0, 8)
  return `${escaped([time, ...words].join(' ').trimEnd())}\n`
}

function shown(value: unknown): string {
  if (isError(value)) return reasonOf(value)
  // JSON.stringify would throw for a circle, a bigint, or a getter that throws.
  return typeof value === 'object' ? inspect(value, { breakLength: Infinity }) : String(value)
}
