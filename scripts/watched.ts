import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { reasonOf } from '../dist/errors.js'
import { type Environment, launch, type Launched } from '../test/support/launch.ts'
import { run } from '../test/support/process.ts'

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

  /** A clean stop, which must leave a sound directory. */
  async stop(directory: string): Promise<void> {
    const code = await this.kill('SIGTERM')
    if (code !== 0) this.complaints.push(`SIGTERM ended the service with ${code}`)
    this.complaints.push(...(await check(directory)))
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

/** What `plant-store check` finds wrong with a directory. */
export async function check(directory: string): Promise<readonly string[]> {
  const { status, stdout, stderr } = await run(['check'], { PLANTS_DATA: directory })
  return status === 0 ? [] : [`check: ${stdout}${stderr}`]
}

/**
 * Does something in a new directory, and prints what it finds wrong: then the directory is left.
 * Returns how much that is.
 */
export async function inDirectory(
  name: string,
  use: (root: string) => Promise<readonly string[]>,
): Promise<number> {
  const root = await mkdtemp(join(tmpdir(), `plant-store-${name}-`))
  const problems = await use(root).catch((error: unknown) => [reasonOf(error)])
  for (const problem of problems.slice(0, 20)) console.error(problem)
  if (problems.length === 0) await rm(root, { recursive: true })
  else console.error(`the directory is left: ${root}`)
  return problems.length
}
