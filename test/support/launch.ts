import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { portOf } from './ports.ts'
import { AUDIENCE, ISSUER, SECRET } from './tokens.ts'

export const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url))

/** As the example unit and the image run Node. */
export const FLAGS = [
  '--single-threaded-gc',
  '--max-semi-space-size=4',
  '--no-allocation-site-pretenuring',
] as const

export type Environment = Readonly<Record<string, string>>

/** The built program, or another copy of it, and how it is run. */
export interface Program {
  readonly main?: string
  /** Options of node itself. */
  readonly options?: readonly string[]
  readonly cwd?: string
  readonly maxDescriptors?: number
  /** A command that runs the rest of the command line, such as `nice -n 10`. */
  readonly prefix?: readonly string[]
  /** Where stdout and stderr go instead of to this process. */
  readonly logFile?: string
}

interface LaunchOptions extends Program {
  readonly args?: readonly string[]
  /** Called with whole lines of stdout and stderr; then `output` has only the last ones. */
  readonly onLines?: (lines: string) => void
}

export interface Ports {
  readonly port: number
  readonly adminPort: number
}

export interface Launched {
  readonly child: ChildProcess
  readonly pid: number
  /** Rejects if the process ends before it listens. Never resolves with a `logFile`. */
  readonly listening: Promise<Ports>
  readonly exited: Promise<number | null>
  /** Empty with a `logFile`. */
  output(): string
  kill(signal: NodeJS.Signals): Promise<number | null>
}

/** One that listens. */
export type ServerProcess = Launched & Ports

/** What `output` keeps of lines that were passed to `onLines`. */
const LAST_CHARS = 4000

const live = new Set<ChildProcess>()
process.on('exit', () => live.forEach((child) => child.kill('SIGKILL')))

/** Only what is given, and what Node needs: a test must not depend on its surroundings. */
export function environment(env: Environment): Record<string, string> {
  return { PATH: process.env['PATH'] ?? '', ...env }
}

/** The settings of `serve` on free ports; it accepts the tokens of `tokens.ts` unless `dev`. */
export function serviceEnvironment(
  dataDirectory: string,
  env: Environment = {},
  dev = false,
): Environment {
  const hasKeys = Object.keys(env).some((name) => /^PLANTS_JW/.test(name))
  return {
    PLANTS_LISTEN: '127.0.0.1:0',
    PLANTS_ADMIN_LISTEN: '127.0.0.1:0',
    PLANTS_DATA: dataDirectory,
    ...(dev ? {} : { PLANTS_ISSUER: ISSUER, PLANTS_AUDIENCE: AUDIENCE }),
    ...(dev || hasKeys ? {} : { PLANTS_JWT_SECRET: SECRET }),
    ...env,
  }
}

/** Starts a process of the service, which ends with this process at the latest. */
export function launch(
  env: Environment,
  { args = ['serve'], onLines, ...program }: LaunchOptions = {},
): Launched {
  const { main = MAIN, options = [], cwd, maxDescriptors, prefix = [], logFile } = program
  const limit =
    maxDescriptors === undefined ? [] : ['sh', '-c', `ulimit -n ${maxDescriptors}; exec "$0" "$@"`]
  const command = [...limit, ...prefix, process.execPath, ...options, main, ...args]
  const log = logFile === undefined ? 'pipe' : openSync(logFile, 'w')
  const child = spawn(command[0] ?? '', command.slice(1), {
    ...(cwd === undefined ? {} : { cwd }),
    env: environment(env),
    stdio: ['ignore', log, log],
  })
  if (typeof log === 'number') closeSync(log)
  live.add(child)
  const exited = once(child, 'close').then(() => {
    live.delete(child)
    return child.exitCode
  })
  const output = new Output(onLines)
  for (const stream of [child.stdout, child.stderr])
    stream?.setEncoding('utf8').on('data', output.reader())
  const listening = new Promise<Ports>((resolve, reject) => {
    output.listening = resolve
    void exited.then((code) => reject(new Error(`the service ended with ${code}: ${output.text}`)))
  })
  // A caller that never waits for it must not end by it.
  listening.catch(() => {})
  return {
    child,
    pid: child.pid ?? 0,
    listening,
    exited,
    output: () => output.text,
    kill(signal) {
      child.kill(signal)
      return exited
    },
  }
}

/** What a process has written, and the ports that its log line "listening" names. */
class Output {
  readonly #onLines: ((lines: string) => void) | undefined
  text = ''
  listening: ((ports: Ports) => void) | undefined

  constructor(onLines: ((lines: string) => void) | undefined) {
    this.#onLines = onLines
  }

  /** Each stream has its own unfinished line. */
  reader(): (chunk: string) => void {
    let rest = ''
    return (chunk) => {
      this.text += chunk
      this.#findPorts()
      if (!this.#onLines) return
      this.text = this.text.slice(-LAST_CHARS)
      const end = (rest + chunk).lastIndexOf('\n') + 1
      const lines = (rest + chunk).slice(0, end)
      rest = (rest + chunk).slice(end)
      if (lines !== '') this.#onLines(lines)
    }
  }

  #findPorts(): void {
    const line = this.listening && /^\{.*"message":"listening".*\}$/m.exec(this.text)?.[0]
    if (line === undefined) return
    // The service's own line, whose fields are its documented ones.
    const { plants, admin } = JSON.parse(line) as { plants: string; admin?: string }
    this.listening?.({ port: portOf(plants), adminPort: portOf(admin) })
    this.listening = undefined
  }
}

/** Scripts call this, so that a signal too ends what they launched and removes what they wrote. */
export function exitOnSignals(): void {
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(1))
}
