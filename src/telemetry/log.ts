/* The log: its levels, its lines, and where they go. */

import { escaped, isError, reasonOf } from '../errors.ts'
import { LogWriter, standardOutput } from './log-writer.ts'

/** Each also logs what those before it log. */
export const LOG_LEVELS = ['silent', 'error', 'info', 'debug'] as const
/** Which requests have a line; `errors` are statuses from 400 on, and those that were cut off. */
export const LOG_REQUESTS = ['all', 'errors', 'off'] as const

export type LogLevel = (typeof LOG_LEVELS)[number]
export type LogRequests = (typeof LOG_REQUESTS)[number]
type Fields = Readonly<Record<string, unknown>>

/**
 * A line of the log. All values are as JSON has them: an `Error` is an object with `name`,
 * `message`, `stack` and `cause`.
 */
export interface LogLine {
  /** ISO 8601, in UTC, with milliseconds. */
  readonly time: string
  readonly level: Exclude<LogLevel, 'silent'>
  /** `request` for the line of a request. */
  readonly message: string
  readonly [field: string]: unknown
}

export type OnLog = (line: LogLine) => void

export type Log = ReturnType<typeof logTo>

/** Takes whole lines. */
type Lines = Pick<LogWriter, 'add' | 'dropped' | 'flush'>

/** How lines are written. Both functions return whole lines, and never throw. */
const JSON_LINES = { line: render, request: renderRequest }

export type LogFormat = typeof JSON_LINES

/** A log of one JSON object a line. It never throws; a pipe or socket never holds it up. */
export function createLog(level: LogLevel, output = standardOutput(), format = JSON_LINES): Log {
  const reportOf = (dropped: number) => format.line('error', 'log lines were dropped', { dropped })
  return logTo(new LogWriter(output, reportOf), level, format)
}

/** A log that passes its lines to an application. Whatever that throws, the log goes on. */
export function createCallbackLog(level: LogLevel, onLog: OnLog): Log {
  let hasFailed = false
  const fail = (error: unknown): void => {
    if (!hasFailed) process.emitWarning(`plant-store: onLog failed: ${reasonOf(error)}`)
    hasFailed = true
  }
  // A line is as `render` and `renderRequest` write it. The promise catches what onLog throws, and
  // what an asynchronous one rejects with.
  const add = (line: string): void =>
    void new Promise((resolve) => resolve(onLog(JSON.parse(line) as LogLine))).catch(fail)
  return logTo({ add, dropped: 0, flush: () => Promise.resolve() }, level, JSON_LINES)
}

function logTo(lines: Lines, level: LogLevel, format: LogFormat) {
  const isOn = (own: LogLevel): boolean => LOG_LEVELS.indexOf(own) <= LOG_LEVELS.indexOf(level)
  const at = (own: LogLevel): ((message: string, fields?: Fields) => void) =>
    isOn(own) ? (message, fields) => lines.add(format.line(own, message, fields)) : () => {}
  return {
    error: at('error'),
    info: at('info'),
    debug: at('debug'),
    /** At level info. Texts of its fields are visible ASCII: they need no escaping. */
    request: isOn('info') ? (fields: Fields) => lines.add(format.request(fields)) : () => {},
    /** Lines lost so far, because the reader is too slow or gone. */
    dropped: () => lines.dropped,
    /**
     * Resolves when all lines are written or lost, or after the timeout. A write may then be stuck:
     * only process.exit ends it.
     */
    flush: (timeoutMs: number) => lines.flush(timeoutMs),
  }
}

function render(level: LogLevel, message: string, fields?: Fields): string {
  const first = { time: new Date().toISOString(), level, message }
  try {
    return `${escaped(JSON.stringify({ ...first, ...fields, ...first }, replace))}\n`
  } catch {
    // A circle, or a getter or toJSON that throws.
    return `${escaped(JSON.stringify({ ...first, fields: 'could not be written as JSON' }))}\n`
  }
}

/** For JSON.stringify, which also passes it the members of what it returns: causes of causes. */
function replace(_name: string, value: unknown): unknown {
  if (typeof value === 'bigint') return String(value)
  if (!isError(value)) return value
  return { name: value.name, message: value.message, stack: value.stack, cause: value.cause }
}

let now = { ms: 0, iso: '' }

/** What `render` would return, in a tenth of the time, of fields without errors and controls. */
function renderRequest(fields: Fields): string {
  const ms = Date.now()
  if (ms !== now.ms) now = { ms, iso: new Date(ms).toISOString() }
  return `${JSON.stringify({ time: now.iso, level: 'info', message: 'request', ...fields })}\n`
}
