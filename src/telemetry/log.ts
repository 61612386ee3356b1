import { createHash } from 'node:crypto'
import { types } from 'node:util'
import { escaped, isError, reasonOf } from '../errors.ts'
import { type LogSink, LogWriter, standardOutput } from './log-writer.ts'

/** Each also logs what those before it log. */
export const LOG_LEVELS = ['silent', 'error', 'info', 'debug'] as const
/** Which requests have a line; `errors` are statuses from 400 on, and those that were cut off. */
export const LOG_REQUESTS = ['all', 'errors', 'off'] as const

export type LogLevel = (typeof LOG_LEVELS)[number]
export type LogRequests = (typeof LOG_REQUESTS)[number]
type Fields = Readonly<Record<string, unknown>>

/** What the line of a request says. */
interface RequestLine {
  /** Unknown if Node's parser refused the request. */
  readonly method: string | undefined
  /** The path pattern that matched, if any. */
  readonly route: string | undefined
  readonly status: number
  /** The error value of a refused request, as in the catalogue. */
  readonly error: number | undefined
  readonly ms: number
  readonly requestId: string
  /** The trace that the caller counts the request to: 32 hex digits. */
  readonly traceId: string | undefined
  /** As `ownerHash` returns it. */
  readonly owner: string | undefined
  /** True if the connection ended before all of the response had left the process. */
  readonly aborted: true | undefined
}

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

export interface Log {
  /** At level info. Written so often that it is rendered without JSON.stringify. */
  request(line: RequestLine): void
  error(message: string, fields?: Fields): void
  info(message: string, fields?: Fields): void
  debug(message: string, fields?: Fields): void
  /** Lines lost so far, because the reader is too slow or gone. */
  readonly dropped: number
  /**
   * Resolves when all lines are written or lost, or after the timeout. A write may then be stuck:
   * only process.exit ends it.
   */
  flush(timeoutMs: number): Promise<void>
}

/** How lines are written. Both functions return whole lines, and never throw. */
export interface LogFormat {
  line(level: LogLevel, message: string, fields?: Fields): string
  request(line: RequestLine): string
}

const JSON_LINES: LogFormat = { line: render, request: renderRequest }

/** A log of one JSON object a line. It never throws and never waits for its reader. */
export function createLog(
  level: LogLevel,
  sink: LogSink = standardOutput(),
  format = JSON_LINES,
): Log {
  const writer = new LogWriter(sink, (dropped) =>
    format.line('error', 'log lines were dropped', { dropped }),
  )
  const isOn = (own: LogLevel): boolean => LOG_LEVELS.indexOf(own) <= LOG_LEVELS.indexOf(level)
  const at = (own: LogLevel): Log['info'] =>
    isOn(own) ? (message, fields) => writer.add(format.line(own, message, fields)) : () => {}
  return {
    error: at('error'),
    info: at('info'),
    debug: at('debug'),
    request: isOn('info') ? (line) => writer.add(format.request(line)) : () => {},
    get dropped() {
      return writer.dropped
    },
    flush: (timeoutMs) => writer.flush(timeoutMs),
  }
}

/** Passes lines to an application. Whatever it throws, the log goes on. */
export function callbackSink(onLog: OnLog): LogSink {
  let hasFailed = false
  const fail = (error: unknown): void => {
    if (!hasFailed) process.emitWarning(`plant-store: onLog failed: ${reasonOf(error)}`)
    hasFailed = true
  }
  return {
    write(lines, done) {
      for (const line of lines.trim().split('\n')) {
        try {
          // As `render` and `renderRequest` write it.
          const result: unknown = onLog(JSON.parse(line) as LogLine)
          // A rejection would end the process.
          if (types.isPromise(result)) result.catch(fail)
        } catch (error) {
          fail(error)
        }
      }
      done()
    },
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

/**
 * What `render` would return, in a tenth of the time. Only the id needs escaping: a method is an
 * HTTP token, and the other texts are ours.
 */
function renderRequest(line: RequestLine): string {
  const { method, route, status, error, ms, traceId, owner, aborted } = line
  const timeMs = Date.now()
  if (timeMs !== now.ms) now = { ms: timeMs, iso: new Date(timeMs).toISOString() }
  return (
    `{"time":"${now.iso}","level":"info","message":"request",` +
    (method === undefined ? '' : `"method":"${method}",`) +
    (route === undefined ? '' : `"route":"${route}",`) +
    `"status":${status},"ms":${ms},"requestId":${JSON.stringify(line.requestId)}` +
    (error === undefined ? '' : `,"error":${error}`) +
    (traceId === undefined ? '' : `,"traceId":"${traceId}"`) +
    (owner === undefined ? '' : `,"owner":"${owner}"`) +
    (aborted === undefined ? '' : ',"aborted":true') +
    '}\n'
  )
}

/**
 * Most requests are from an owner who sent one before: to hash each time costs a twentieth of the
 * rate of cached lists. Longer names are hashed each time.
 */
const MAX_CACHED_HASHES = 4096
const MAX_CACHED_CHARS = 128
const hashes = new Map<string, string>()

/** What the log says instead of an owner: the first 12 hex digits of its SHA-256. */
export function ownerHash(owner: string): string {
  const cached = hashes.get(owner)
  if (cached !== undefined) return cached
  const hash = createHash('sha256').update(owner).digest('hex').slice(0, 12)
  if (owner.length > MAX_CACHED_CHARS) return hash
  if (hashes.size >= MAX_CACHED_HASHES) hashes.clear()
  hashes.set(owner, hash)
  return hash
}
