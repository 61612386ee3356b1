import { connect, type Socket } from 'node:net'
import { setImmediate as nextTick, setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../dist/errors.js'
import type { Heard } from '../../test/support/oracle/compare.ts'
import { isHead, type Reading } from '../../test/support/oracle/requests.ts'
import { ResponseReader } from '../../test/support/response.ts'

/** What a connection sends, and how it ends. All text is latin1. */
export interface Script {
  readonly text: string
  /** Where one write ends and the next begins. */
  readonly cuts: readonly number[]
  /** `stall`: the rest comes byte by byte, more slowly than the service waits. */
  readonly ending: 'half-close' | 'answers-first' | 'destroy' | 'reset' | 'stall'
  /** With `destroy`, `reset` and `stall`: how many bytes are sent before it. */
  readonly sendOnly: number
  /** Milliseconds between writes, 0 for one tick of the event loop. */
  readonly pauseMs: number
  /** Whether nothing is read before everything is sent: a reset in between loses answers. */
  readonly readsLate: boolean
}

/** Longer than any answer takes on a loaded machine: the service waits 30 s for a request. */
const PATIENCE_MS = 35_000
/** Between the bytes of a client that stalls. */
const STALL_MS = 500

/** Sends requests at once and ends its side: the plainest script. */
export function plainScript(text: string): Script {
  return { text, cuts: [], ending: 'half-close', sendOnly: 0, pauseMs: 0, readsLate: false }
}

/**
 * Runs a script. `certain` answers come even if this side stays open. `readings` say which answers
 * are to HEAD; by default none is.
 */
export async function talk(
  port: number,
  script: Script,
  certain: number,
  readings?: readonly Reading[],
): Promise<Heard> {
  const reader = new ResponseReader((index) => readings !== undefined && isHead(readings[index]))
  const talking = new Talk(port, script, certain, reader)
  await talking.send()
  await talking.finish()
  return talking.heard
}

class Talk {
  readonly #script: Script
  readonly #certain: number
  readonly #reader: ResponseReader
  readonly #socket: Socket
  readonly #startedAtMs = performance.now()
  readonly #closed: Promise<void>
  readonly #patience: NodeJS.Timeout
  #flaw: string | undefined
  #error: string | undefined
  #wake = (): void => {}

  constructor(port: number, script: Script, certain: number, reader: ResponseReader) {
    this.#script = script
    this.#certain = certain
    this.#reader = reader
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true })
    this.#socket = socket.setEncoding('latin1')
    socket.on('data', (text: string) => this.#push(text, false))
    socket.on('end', () => {
      this.#push('', true)
      socket.end()
      this.#wake()
    })
    if (script.readsLate) socket.pause()
    // What a reset means is decided by which answers are missing.
    socket.on('error', ({ message }) => (this.#error = message))
    this.#closed = new Promise((resolve) => {
      socket.on('close', () => {
        this.#wake()
        resolve()
      })
    })
    this.#patience = setTimeout(() => {
      const seen = `${reader.answers.length} answers; then ${JSON.stringify(this.#rest(200))}`
      this.#flaw ??= `no end after ${PATIENCE_MS} ms, and ${seen}`
      socket.destroy()
    }, PATIENCE_MS)
  }

  get heard(): Heard {
    const { answers } = this.#reader
    const end = this.#socket.readableEnded ? 'with an end' : 'without an end'
    const error = this.#error === undefined ? '' : `, ${this.#error}`
    return {
      answers,
      cut: this.#script.ending === 'destroy' || this.#script.ending === 'reset',
      end: `${end}${error}; ${JSON.stringify(this.#rest(100))}`,
      isReset: this.#error !== undefined,
      tookMs: performance.now() - this.#startedAtMs,
      flaw: this.#flaw,
    }
  }

  async send(): Promise<void> {
    const { text, cuts, ending, sendOnly } = this.#script
    const isWhole = ending === 'half-close' || ending === 'answers-first'
    let sent = 0
    for (const end of [...cuts, text.length]) {
      const until = isWhole ? end : Math.min(end, sendOnly)
      if (this.#socket.closed || until <= sent) continue
      this.#socket.write(text.slice(sent, until), 'latin1')
      sent = until
      if (end < text.length) await this.#pause()
    }
    this.#socket.resume()
    for (; ending === 'stall' && this.#isOpen(); sent++) {
      await sleep(STALL_MS)
      if (this.#isOpen()) this.#socket.write(text.slice(sent, sent + 1), 'latin1')
    }
  }

  /** Ends this side as the script says, and waits until the connection is closed. */
  async finish(): Promise<void> {
    const { ending } = this.#script
    if (ending === 'destroy' || ending === 'reset') {
      await this.#pause()
      if (ending === 'destroy') this.#socket.destroy()
      else this.#socket.resetAndDestroy()
    } else {
      if (ending === 'answers-first' && this.#reader.answers.length < this.#certain)
        if (this.#isOpen()) await new Promise<void>((resolve) => (this.#wake = resolve))
      this.#socket.end()
    }
    await this.#closed
    clearTimeout(this.#patience)
  }

  /** Whether the service may still send. */
  #isOpen(): boolean {
    return !this.#socket.readableEnded && !this.#socket.closed
  }

  #pause(): Promise<void> {
    return this.#script.pauseMs > 0 ? sleep(this.#script.pauseMs) : nextTick()
  }

  #rest(maxChars: number): string {
    return this.#reader.rest.slice(0, maxChars)
  }

  #push(text: string, ended: boolean): void {
    try {
      this.#reader.push(text, ended)
      if (ended && this.#reader.rest !== '')
        throw new Error(`the answers end with ${JSON.stringify(this.#rest(300))}`)
    } catch (error) {
      this.#flaw ??= reasonOf(error)
      this.#socket.destroy()
    }
    if (this.#reader.answers.length >= this.#certain) this.#wake()
  }
}
