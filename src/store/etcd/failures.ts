const PERIOD_MS = 1000
/** Of one period. Causes are few: an endpoint, a path and what went wrong there. */
const CAUSES_MAX = 32

export type EtcdLog = (
  level: 'info' | 'error',
  message: string,
  fields: Readonly<Record<string, unknown>>,
) => void

/** Logs why calls fail: each cause once a second. What is left out is counted in the next line. */
export class Failures {
  readonly #log: EtcdLog
  /** When each cause of the last second was logged, the oldest first. */
  readonly #loggedAt = new Map<string, number>()
  #notLogged = 0

  constructor(log: EtcdLog) {
    this.#log = log
  }

  report(message: string, reason: string): void {
    const now = performance.now()
    for (const [cause, at] of this.#loggedAt) {
      if (now - at < PERIOD_MS) break
      this.#loggedAt.delete(cause)
    }
    const cause = `${message}: ${reason}`
    if (this.#loggedAt.has(cause) || this.#loggedAt.size === CAUSES_MAX) {
      this.#notLogged += 1
      return
    }
    this.#loggedAt.set(cause, now)
    const notLogged = this.#notLogged > 0 ? { notLogged: this.#notLogged } : {}
    this.#log('error', message, { reason, ...notLogged })
    this.#notLogged = 0
  }
}
