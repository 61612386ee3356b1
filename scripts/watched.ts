import { type Environment, launch, type Launched } from '../test/support/launch.ts'

const START_PATIENCE_MS = 120_000
/**
 * Errors that are expected: after SIGKILL the journal may end in half a line, and this process may
 * be too busy to read every line.
 */
const EXPECTED = /is torn|log lines were dropped/

/** The built service as a process. Whatever it should not write or do becomes a complaint. */
export class WatchedService {
  readonly complaints: string[] = []
  readonly #launched: Launched
  /** The port, once it listens; rejects if it ends before that. */
  readonly port: Promise<number>
  #toldToEnd = false

  constructor(env: Environment, onLines: (lines: string) => void = () => {}) {
    this.#launched = launch(env, {
      onLines: (lines) => {
        this.#read(lines)
        onLines(lines)
      },
    })
    const { listening, exited, child } = this.#launched
    this.port = listening.then(({ port }) => port)
    this.port.catch(() => {})
    void exited.then((code) => {
      if (this.#toldToEnd) return
      const what = `the service ended by itself with ${code ?? child.signalCode}`
      this.complaints.push(`${what}: ${this.#launched.output()}`)
    })
  }

  get pid(): number {
    return this.#launched.pid
  }

  /** The port; a service that does not listen in time is killed. */
  async ready(): Promise<number> {
    const timer = setTimeout(() => this.#launched.kill('SIGKILL'), START_PATIENCE_MS)
    try {
      return await this.port
    } finally {
      clearTimeout(timer)
    }
  }

  kill(signal: NodeJS.Signals): Promise<number | null> {
    this.#toldToEnd = true
    return this.#launched.kill(signal)
  }

  /** Lines come many at a time: look at each one only if there is something to find. */
  #read(lines: string): void {
    if (!lines.includes('"level":"error"') && !/^[^{]/m.test(lines)) return
    for (const line of lines.split('\n')) {
      const isError = line.includes('"level":"error"') || /^[^{]/.test(line)
      if (isError && !EXPECTED.test(line)) this.complaints.push(`the service wrote: ${line}`)
    }
  }
}
