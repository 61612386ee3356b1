import { createHash } from 'node:crypto'
import { fstatSync, writeFileSync } from 'node:fs'

const MAX_UNREAD = 2 ** 20 // bytes of lines that the reader has not taken yet

const LEVELS = { silent: 0, error: 1, info: 2, debug: 3 } as const

export type LogLevel = keyof typeof LEVELS
export type Fields = Readonly<Record<string, unknown>>

/**
 * Where whole lines go, one call at a time. Any Writable will do, if somebody listens for its
 * 'error'.
 */
export interface LogSink {
  write(lines: string, done: (error?: unknown) => void): unknown
}

/** What the line of a request says. */
export interface RequestLine {
  /** Unknown where Node's parser refused the request. */
  readonly method: string | undefined
  /** The path pattern that matched, if any. */
  readonly route: string | undefined
  readonly status: number
  readonly ms: number
  readonly requestId: string
  /** The trace that the caller counts the request to: 32 hex digits. */
  readonly traceId: string | undefined
  /** As `ownerHash` gives it. */
  readonly owner: string | undefined
}

export interface Log {
  /** At level info. The one line that is written so often that it has a way of its own. */
  request(line: RequestLine): void
  error(message: string, fields?: Fields): void
  info(message: string, fields?: Fields): void
  debug(message: string, fields?: Fields): void
  /** Lines lost so far, because the reader is too slow or gone. */
  readonly dropped: number
  /**
   * Resolves when all lines are written or lost, or after the timeout: what is stuck then, only
   * process.exit ends.
   */
  flush(timeoutMs: number): Promise<void>
}

/**
 * A log of one JSON object a line, written once a turn of the event loop. It never throws and never
 * waits for its reader.
 */
export function createLog(level: LogLevel, out: LogSink = standardOutput()): Log {
  let pending: string[] = []
  let unread = 0 // bytes, pending or handed to the sink
  let dropped = 0
  let untold = 0 // dropped lines that no notice has told of
  let full = false
  let torn = false
  let busy = false // a write is scheduled or under way
  let waiting: (() => void)[] = []

  function append(line: string): void {
    const size = Buffer.byteLength(line)
    // Once full, until the next write: no shorter line slips in before the notice of the gap.
    full ||= unread + size > MAX_UNREAD
    if (full) {
      dropped++
      untold++
    } else {
      pending.push(line)
      unread += size
    }
    if (!busy) setImmediate(write)
    busy = true
  }

  function write(): void {
    const [lines, size, told] = [pending, unread, untold]
    const notice = told > 0 ? render('error', 'log lines were dropped', { dropped: told }) : ''
    pending = []
    untold = 0
    full = false
    // A write that failed may have left half a line behind.
    out.write(`${torn ? '\n' : ''}${lines.join('')}${notice}`, (error) => {
      torn = Boolean(error)
      unread -= size
      if (torn) {
        dropped += lines.length
        untold += told + lines.length
      }
      // After a failure the notice waits for the next line: alone it would fail again, and again.
      if (pending.length > 0 || (untold > 0 && !torn)) return write()
      busy = false
      for (const resolve of waiting) resolve()
      waiting = []
    })
  }

  const at = (own: LogLevel) =>
    LEVELS[own] > LEVELS[level]
      ? () => {}
      : (message: string, fields?: Fields) => append(render(own, message, fields))
  return {
    error: at('error'),
    info: at('info'),
    debug: at('debug'),
    request: LEVELS.info > LEVELS[level] ? () => {} : (line) => append(renderRequest(line)),
    get dropped() {
      return dropped
    },
    flush: (timeoutMs) =>
      new Promise((resolve) => {
        if (!busy) return resolve()
        const timer = setTimeout(resolve, timeoutMs)
        waiting.push(() => resolve(clearTimeout(timer)))
      }),
  }
}

/**
 * Owners whose hash is remembered: most requests are of an owner who was just there. Longer names
 * are hashed each time.
 */
const HASHES_MAX = 4096
const HASHED_MAX_CHARS = 128
const hashes = new Map<string, string>()

/** Stands for an owner in the log: the first 12 hex digits of SHA-256. */
export function ownerHash(owner: string): string {
  const known = hashes.get(owner)
  if (known !== undefined) return known
  const hash = createHash('sha256').update(owner).digest('hex').slice(0, 12)
  if (owner.length > HASHED_MAX_CHARS) return hash
  if (hashes.size >= HASHES_MAX) hashes.clear()
  hashes.set(owner, hash)
  return hash
}

function render(level: LogLevel, message: string, fields?: Fields): string {
  const head = { time: new Date().toISOString(), level, message }
  try {
    return `${JSON.stringify({ ...head, ...fields, ...head }, replace)}\n`
  } catch {
    // A circle, or a getter or toJSON that throws.
    return `${JSON.stringify({ ...head, fields: 'could not be written as JSON' })}\n`
  }
}

let now = { ms: 0, iso: '' }

/**
 * The same as `render` gives, in a tenth of the time. A method is a token, and a route one of ours:
 * neither needs escaping.
 */
function renderRequest({
  method,
  route,
  status,
  ms,
  requestId,
  traceId,
  owner,
}: RequestLine): string {
  const time = Date.now()
  if (time !== now.ms) now = { ms: time, iso: new Date(time).toISOString() }
  const by = method === undefined ? '' : `"method":"${method}",`
  const matched = route === undefined ? '' : `"route":"${route}",`
  const traced = traceId === undefined ? '' : `,"traceId":"${traceId}"`
  const of = owner === undefined ? '' : `,"owner":"${owner}"`
  return `{"time":"${now.iso}","level":"info","message":"request",${by}${matched}"status":${status},"ms":${ms},"requestId":${JSON.stringify(requestId)}${traced}${of}}\n`
}

/**
 * What JSON.stringify cannot do by itself. It is asked of the answer's members too, so of causes of
 * causes.
 */
function replace(_name: string, value: unknown): unknown {
  if (typeof value === 'bigint') return String(value)
  if (!(value instanceof Error)) return value
  return { name: value.name, message: value.message, stack: value.stack, cause: value.cause }
}

/**
 * A pipe or socket is written by process.stdout: on Linux a net.Socket that does not block,
 * whatever its documentation says, and a second one on the same descriptor would take its events.
 * Not by fs.write: while the reader stalls that holds a thread, and process.exit waits for it. All
 * else (a file, a terminal) takes what it is given.
 */
function standardOutput(): LogSink {
  const kind = fstatSync(1)
  if (kind.isFIFO() || kind.isSocket())
    return process.stdout.off('error', ignore).on('error', ignore)
  return {
    write(lines, done) {
      try {
        writeFileSync(1, lines)
      } catch (error) {
        return done(error)
      }
      done()
    },
  }
}

/**
 * The callback of the write that failed has it already; unheard, the event would end the process.
 */
function ignore(): void {}
