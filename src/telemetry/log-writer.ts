import { fstatSync, writeFileSync } from 'node:fs'

/** Characters of lines that the reader has not taken yet. */
const MAX_UNREAD_CHARS = 2 ** 20

/** Receives whole lines, one call at a time. A Writable fits if its 'error' has a listener. */
export interface LogSink {
  write(lines: string, done: (error?: unknown) => void): unknown
}

/** Takes bytes, too. */
export interface Output {
  write(chunk: string | Uint8Array, done: (error?: unknown) => void): unknown
}

/** Writes the lines of a tick at once. Lines are dropped and counted if the reader is too slow. */
export class LogWriter {
  readonly #sink: LogSink
  readonly #reportOf: (dropped: number) => string
  #pending: string[] = []
  /** Characters that are pending or under way. */
  #unreadChars = 0
  #dropped = 0
  /** How many of the dropped lines a written line has reported. */
  #reported = 0
  /** From the first line that is dropped until the next write, which reports the gap. */
  #isFull = false
  /** A write is scheduled or under way. */
  #isBusy = false
  /** The last write failed, and may have left half a line. */
  #hasFailed = false
  #flushed: (() => void)[] = []

  /** `reportOf` returns the line that reports dropped lines. */
  constructor(sink: LogSink, reportOf: (dropped: number) => string) {
    this.#sink = sink
    this.#reportOf = reportOf
  }

  get dropped(): number {
    return this.#dropped
  }

  add(line: string): void {
    this.#isFull ||= this.#unreadChars + line.length > MAX_UNREAD_CHARS
    if (this.#isFull) this.#dropped++
    else {
      this.#pending.push(line)
      this.#unreadChars += line.length
    }
    if (!this.#isBusy) setImmediate(() => this.#write())
    this.#isBusy = true
  }

  flush(timeoutMs: number): Promise<void> {
    return new Promise((resolve) => {
      if (!this.#isBusy) return resolve()
      const timer = setTimeout(resolve, timeoutMs)
      this.#flushed.push(() => {
        clearTimeout(timer)
        resolve()
      })
    })
  }

  #write(): void {
    const [lines, chars, dropped] = [this.#pending, this.#unreadChars, this.#dropped]
    const start = this.#hasFailed ? '\n' : ''
    const report = dropped > this.#reported ? this.#reportOf(dropped - this.#reported) : ''
    this.#pending = []
    this.#isFull = false
    this.#sink.write(`${start}${lines.join('')}${report}`, (error) => {
      this.#hasFailed = Boolean(error)
      this.#unreadChars -= chars
      if (this.#hasFailed) this.#dropped += lines.length
      else this.#reported = dropped
      this.#goOn()
    })
  }

  #goOn(): void {
    // After a failed write the report waits for the next line: alone it would fail forever.
    const hasReport = this.#dropped > this.#reported && !this.#hasFailed
    if (this.#pending.length > 0 || hasReport) return this.#write()
    this.#isBusy = false
    for (const resolve of this.#flushed) resolve()
    this.#flushed = []
  }
}

/**
 * process.stdout writes to a pipe or socket: on Linux it is a net.Socket that does not block, in
 * spite of its documentation. A second socket on the same descriptor would take its events, and
 * fs.write would hold a thread while the reader stalls, for which process.exit waits. A file or a
 * terminal is written synchronously.
 */
export function standardOutput(): Output {
  const kind = fstatSync(1)
  if (kind.isFIFO() || kind.isSocket())
    return process.stdout.off('error', ignore).on('error', ignore)
  return {
    write(chunk, done) {
      try {
        writeFileSync(1, chunk)
      } catch (error) {
        return done(error)
      }
      done()
    },
  }
}

/** The write's callback has the error; without a listener the event would end the process. */
function ignore(): void {}
