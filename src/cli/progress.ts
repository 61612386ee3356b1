/* Tells on standard error how far a command is. */

import { escaped } from '../errors.ts'

/** Where progress is told: standard error, or what a test puts in its place. */
interface Target {
  readonly isTTY?: boolean
  write(text: string): unknown
}

/** Work that takes less tells nothing. */
const QUIET_MS = 1000
const LINE_EVERY_MS = 1000
const REDRAW_EVERY_MS = 200
/** SQLite checks this many bytes in about 1 s. */
const LONG_BYTES = 100e6
/** In about 0.1 s. */
const SHORT_BYTES = 10e6
/** Goes to the start of a terminal's line and clears it. */
const CLEAR_LINE = '\r\x1b[K'

type Unit = 'plants' | 'MB'

/** `1 plant`, `2 plants`. */
export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}

/** Tells how far a command is: on a terminal in one line, elsewhere in a new one each second. */
export class Progress {
  readonly #target: Target
  readonly #startedAtMs = performance.now()
  #step = { what: '', startedAtMs: this.#startedAtMs }
  #toldAtMs = -Infinity
  /** The terminal's last line is progress, which the next text replaces. */
  #isDrawn = false

  constructor(target: Target = process.stderr) {
    this.#target = target
  }

  /** What is done next. `bytes` says how much it is for work that cannot tell how far it is. */
  step(what: string, bytes = 0): void {
    if (what === this.#step.what) return
    this.#step = { what, startedAtMs: performance.now() }
    if (bytes >= (this.#isSlow ? SHORT_BYTES : LONG_BYTES))
      this.#draw(`${what}: ${Math.round(bytes / 1e6)} MB`)
  }

  /** To be called often. */
  at(done: number, total: number, unit: Unit): void {
    if (done === total) return
    const nowMs = performance.now()
    const every = this.#target.isTTY ? REDRAW_EVERY_MS : LINE_EVERY_MS
    const { what, startedAtMs } = this.#step
    const stepMs = nowMs - startedAtMs
    if (!this.#isSlow || stepMs < REDRAW_EVERY_MS || nowMs - this.#toldAtMs < every) return
    const perSecond = (done * 1000) / stepMs
    const scaled = (value: number): number => Math.round(unit === 'MB' ? value / 1e6 : value)
    const rate = `${scaled(perSecond)} a second`
    const left = `${Math.ceil((total - done) / perSecond)} s left`
    this.#draw(`${what}: ${scaled(done)} of ${scaled(total)} ${unit}, ${rate}, ${left}`)
  }

  /** Writes a line that stays. */
  tell(line: string): void {
    this.#target.write(`${this.#isDrawn ? CLEAR_LINE : ''}${escaped(line)}\n`)
    this.#isDrawn = false
  }

  /** Clears a terminal's line for what comes next. */
  end(): void {
    if (this.#isDrawn) this.#target.write(CLEAR_LINE)
    this.#isDrawn = false
  }

  get #isSlow(): boolean {
    return performance.now() - this.#startedAtMs >= QUIET_MS
  }

  #draw(text: string): void {
    this.#toldAtMs = performance.now()
    if (!this.#target.isTTY) return void this.#target.write(`${text}\n`)
    this.#target.write(CLEAR_LINE + text)
    this.#isDrawn = true
  }
}
