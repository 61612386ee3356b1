/* Writes lines to an output that may be slow or gone. */

import { fstatSync, writeFileSync } from 'node:fs'

/** Bytes of lines that the reader has not taken yet. */
const UNREAD_MAX_BYTES = 2 ** 20

/** What a log writes to. A Writable fits if its 'error' has a listener. */
export interface Output {
  /** Bytes that the reader has not taken yet. An output without it has written all at once. */
  readonly writableLength?: number
  write(chunk: string | Uint8Array, done: (error?: unknown) => void): unknown
}

/** Writes the lines of a tick at once. Lines are dropped and counted if the reader is too slow. */
export class LogWriter {
  readonly #output: Output
  readonly #reportOf: (dropped: number) => string
  /** The lines of this tick. */
  #lines: string[] = []
  #chars = 0
  /** Lines lost so far. */
  dropped = 0
  /** How many of them a line has reported. */
  #reported = 0
  /** What `#reported` was before this tick: if the write fails, its report is lost too. */
  #reportedBefore = 0
  /** The last write failed, and may have left half a line. */
  #hasFailed = false

  /** `reportOf` returns the line that reports dropped lines. */
  constructor(output: Output, reportOf: (dropped: number) => string) {
    this.#output = output
    this.#reportOf = reportOf
  }

  add(line: string): void {
    const unread = (this.#output.writableLength ?? 0) + this.#chars
    if (unread + line.length > UNREAD_MAX_BYTES) {
      this.dropped++
      return
    }
    if (this.#lines.length === 0) {
      setImmediate(() => this.#write())
      this.#reportedBefore = this.#reported
    }
    const gap = this.dropped - this.#reported
    this.#reported = this.dropped
    this.#lines.push(gap > 0 ? this.#reportOf(gap) + line : line)
    this.#chars += line.length
  }

  /** Resolves once all is written or lost, or after the timeout. */
  flush(timeoutMs: number): Promise<void> {
    return new Promise((resolve) => {
      setTimeout(resolve, timeoutMs).unref()
      this.#write(resolve)
    })
  }

  #write(written = (): void => {}): void {
    const [lines, reportedBefore] = [this.#lines, this.#reportedBefore]
    this.#lines = []
    this.#chars = 0
    this.#output.write((this.#hasFailed ? '\n' : '') + lines.join(''), (error) => {
      this.#hasFailed = Boolean(error)
      if (error) {
        this.dropped += lines.length
        this.#reported = Math.min(this.#reported, reportedBefore)
      }
      written()
    })
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
