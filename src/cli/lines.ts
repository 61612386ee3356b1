import { isError, reasonOf } from '../errors.ts'
import type { LogFormat } from '../ops/log.ts'

/** What a terminal would obey instead of showing it. */
const CONTROL = /[\x00-\x1f\x7f-\x9f]/g
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
  request({ method = '-', route = '-', status, ms, error }) {
    const what = error === undefined ? '' : `error ${error}`
    return line([method.padEnd(METHOD_CHARS), route, String(status), `${ms.toFixed(1)} ms`, what])
  },
}

function line(words: readonly string[]): string {
  const time = new Date().toTimeString().slice(0, 8)
  return `${[time, ...words].join(' ').trimEnd().replace(CONTROL, '')}\n`
}

function shown(value: unknown): string {
  if (typeof value === 'string' || typeof value === 'bigint') return String(value)
  if (isError(value)) return reasonOf(value)
  try {
    const written = (_: string, each: unknown) => (typeof each === 'bigint' ? String(each) : each)
    return JSON.stringify(value, written)
  } catch {
    // A circle, or a getter or toJSON that throws.
    return Object.prototype.toString.call(value)
  }
}
