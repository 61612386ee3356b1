/* Tells on standard error how far a command is. */

import { escaped } from '../errors.ts'

/** A shorter step writes no line; a longer one writes one each time this has passed. */
const LINE_EVERY_MS = 1000
/** SQLite checks this many bytes in about 1 s. */
const LONG_BYTES = 100e6

export class Progress {
  readonly #write: (text: string) => unknown
  #step = { what: '', startedAtMs: 0, toldAtMs: 0 }

  /** A test puts something in place of standard error. */
  constructor(write = (text: string): unknown => process.stderr.write(text)) {
    this.#write = write
  }

  /** Names a step that cannot tell how far it is, if it has many bytes. */
  announce(what: string, bytes = 0): void {
    if (bytes >= LONG_BYTES) this.tell(`${what}: ${Math.round(bytes / 1e6)} MB`)
  }

  /** How far a step is. To be called often, and first when it begins. */
  at(what: string, done: number, total: number, unit: 'plants' | 'MB'): void {
    const nowMs = performance.now()
    if (what !== this.#step.what) this.#step = { what, startedAtMs: nowMs, toldAtMs: nowMs }
    if (done === total || nowMs - this.#step.toldAtMs < LINE_EVERY_MS) return
    this.#step.toldAtMs = nowMs
    const perSecond = (done * 1000) / (nowMs - this.#step.startedAtMs)
    const scaled = (value: number): number => Math.round(unit === 'MB' ? value / 1e6 : value)
    const rate = `${scaled(perSecond)} a second, ${Math.ceil((total - done) / perSecond)} s left`
    this.tell(`${what}: ${scaled(done)} of ${scaled(total)} ${unit}, ${rate}`)
  }

  tell(line: string): void {
    this.#write(`${escaped(line)}\n`)
  }
}
