/* Writes lines to an output that may be slow or gone. */

import { fstatSync, writeFileSync } from 'node:fs'

/** Bytes of lines that the reader has not taken yet. */
const UNREAD_MAX_BYTES = 2 ** 20

/** Writes a chunk, and calls `done` once its reader has taken it, or it is lost. Never throws. */
export type Output = (chunk: string | Uint8Array, done: (error?: unknown) => void) => unknown

/** Writes the lines of a tick at once. Lines are dropped and counted if the reader is too slow. */
export class LogWriter {
  readonly #output: Output
  readonly #reportOf: (dropped: number) => string
  /** What this tick writes. */
  #batch = { text: '', lines: 0 }
  /** Characters that are written, and not taken yet. */
  #unread = 0
  /** Lines lost so far. */
  dropped = 0
  /** How many of them a line has reported. */
  #reported = 0
  /** The last write failed, and may have left half a line. */
  #hasFailed = false

  /** `reportOf` returns the line that reports how many are dropped so far. */
  constructor(output: Output, reportOf: (dropped: number) => string) {
    this.#output = output
    this.#reportOf = reportOf
  }

  add(line: string): void {
    const batch = this.#batch
    const unread = this.#unread + batch.text.length
    if (unread + line.length > UNREAD_MAX_BYTES) return void this.dropped++
    if (batch.lines === 0) setImmediate(() => this.#write())
    if (this.dropped > this.#reported) batch.text += this.#reportOf(this.dropped)
    this.#reported = this.dropped
    batch.text += line
    batch.lines++
  }

  /** Resolves once all is written or lost, or after the timeout. */
  flush(timeoutMs: number): Promise<void> {
    return new Promise((resolve) => {
      setTimeout(resolve, timeoutMs).unref()
      this.#write(resolve)
    })
  }

  #write(written = (): void => {}): void {
    const { text, lines } = this.#batch
    this.#batch = { text: '', lines: 0 }
    this.#unread += text.length
    this.#output((this.#hasFailed ? '\n' : '') + text, (error) => {
      this.#unread -= text.length
      this.#hasFailed = Boolean(error)
      if (error) this.dropped += lines
      written()
    })
  }
}

/**
 * process.stdout writes to a pipe or socket: on Linux it is a net.Socket that does not block, in
 * spite of its documentation. A second socket on the same descriptor would take its events, and
 * fs.write would hold a thread while the reader stalls, for which process.exit waits. A file or a
 * terminal is written synchronously. A `write` that a program has put in place (PM2's cluster mode)
 * gets the lines too, but is not waited for: it may never call back.
 */
export function standardOutput(): Output {
  const kind = fstatSync(1)
  const isAsync = kind.isFIFO() || kind.isSocket()
  const stdout = process.stdout.off('error', ignore).on('error', ignore)
  return (chunk, done) => {
    const isReplaced = Object.hasOwn(stdout, 'write')
    if (isAsync && !isReplaced) return stdout.write(chunk, done)
    try {
      if (isReplaced) stdout.write(chunk)
      else writeFileSync(1, chunk)
    } catch (error) {
      return done(error)
    }
    done()
  }
}

/** The write's callback has the error; without a listener the event would end the process. */
function ignore(): void {}
