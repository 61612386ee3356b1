import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { MAIN } from '../../test/support/process.ts'

const START_PATIENCE_MS = 30_000

const live = new Set<ChildProcess>()
// However this one ends, none is left behind.
process.on('exit', () => live.forEach((child) => child.kill('SIGKILL')))
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(1))

/** The built service as a process of its own. What it says that it should not is a complaint. */
export class Service {
  readonly #child
  readonly #exited: Promise<number | null>
  readonly #port: Promise<number>
  readonly complaints: string[] = []
  #told = false
  #rest = ''

  private constructor(env: Readonly<Record<string, string>>) {
    this.#child = spawn(process.execPath, [MAIN, 'serve'], {
      env: {
        PATH: process.env['PATH'] ?? '',
        PLANTS_LISTEN: '127.0.0.1:0',
        PLANTS_ADMIN_LISTEN: 'off',
        ...env,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    live.add(this.#child)
    this.#exited = once(this.#child, 'close').then(() => {
      live.delete(this.#child)
      if (!this.#told)
        this.complaints.push(
          `the service ended by itself, with ${this.#child.exitCode ?? this.#child.signalCode}`,
        )
      return this.#child.exitCode
    })
    this.#child.stderr
      .setEncoding('utf8')
      .on('data', (text: string) => this.complaints.push(`on stderr: ${text.trim()}`))
    this.#port = new Promise((resolve, reject) => {
      void this.#exited.then(() =>
        reject(new Error(`the service ended before it listened: ${this.complaints.join('\n')}`)),
      )
      this.#child.stdout.setEncoding('utf8').on('data', (text: string) => {
        const lines = this.#rest + text
        const end = lines.lastIndexOf('\n') + 1
        this.#rest = lines.slice(end)
        this.#read(lines.slice(0, end), resolve)
      })
    })
    this.#port.catch(() => {})
  }

  static async start(
    env: Readonly<Record<string, string>>,
  ): Promise<{ readonly service: Service; readonly port: number }> {
    const service = new Service(env)
    const timer = setTimeout(() => service.#child.kill('SIGKILL'), START_PATIENCE_MS)
    const port = await service.#port
    clearTimeout(timer)
    return { service, port }
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  kill(signal: NodeJS.Signals): Promise<number | null> {
    this.#told = true
    this.#child.kill(signal)
    return this.#exited
  }

  #read(lines: string, listening: (port: number) => void): void {
    if (lines.includes('"level":"error"')) {
      // A journal's end that SIGKILL tore is told of, and so are lines that this process was too
      // busy to read.
      const told = lines
        .split('\n')
        .filter(
          (line) =>
            line.includes('"level":"error"') &&
            !line.includes('is torn') &&
            !line.includes('log lines were dropped'),
        )
      this.complaints.push(...told.map((line) => `in the log: ${line}`))
    }
    const port = lines.includes('"message":"listening"')
      ? /"message":"listening".*"plants":"http:\/\/127\.0\.0\.1:(\d+)"/.exec(lines)?.[1]
      : undefined
    if (port !== undefined) listening(Number(port))
  }
}
