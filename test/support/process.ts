import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { pathToFileURL } from 'node:url'
import { temporaryDirectorySync } from './directories.ts'
import {
  type Environment,
  environment,
  launch,
  MAIN,
  type Program,
  serviceEnvironment,
} from './launch.ts'

export { MAIN, type Program }

interface Outcome {
  readonly status: number | null
  readonly stdout: string
  readonly stderr: string
}

/** Makes a process, and each of its threads, run this before everything else. */
export async function preload(source: string): Promise<{ readonly NODE_OPTIONS: string }> {
  const path = join(temporaryDirectorySync(), 'preload.mjs')
  writeFileSync(path, source)
  return { NODE_OPTIONS: `--import=${pathToFileURL(path).href}` }
}

/** Runs a command of the built program to its end. */
export async function run(
  args: readonly string[],
  env: Environment = {},
  cwd?: string,
  main = MAIN,
): Promise<Outcome> {
  const child = spawn(process.execPath, [main, ...args], {
    env: environment(env),
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(cwd === undefined ? {} : { cwd }),
  })
  let [stdout, stderr] = ['', '']
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
  await once(child, 'close')
  return { status: child.exitCode, stdout, stderr }
}

export interface ServerProcess {
  readonly child: ChildProcess
  readonly port: number
  readonly adminPort: number
  readonly exited: Promise<number | null>
  output(): string
  kill(signal: NodeJS.Signals): Promise<number | null>
}

/** Starts `serve` as a process of its own and resolves once it listens. */
export async function startProcess(
  t: TestContext,
  dataDirectory: string,
  env: Environment = {},
  args: readonly string[] = ['serve'],
  program: Program = {},
): Promise<ServerProcess> {
  const all = serviceEnvironment(dataDirectory, env, args.includes('--dev'))
  const server = launch(all, { ...program, args })
  t.after(() => server.child.kill('SIGKILL'))
  return { ...server, ...(await server.listening) }
}
