import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { temporaryDirectory } from './service.ts'
import { AUDIENCE, ISSUER, SECRET } from './tokens.ts'

export const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url))

export interface Outcome {
  readonly status: number | null
  readonly stdout: string
  readonly stderr: string
}

/**
 * The built program, or another copy of it, the options of node itself, where it is run, and how
 * many files it may open.
 */
export interface Program {
  readonly main?: string
  readonly options?: readonly string[]
  readonly cwd?: string
  readonly maxDescriptors?: number
}

type Environment = Readonly<Record<string, string>>

/** Only what is given, and what Node needs: the surroundings must not change what a test sees. */
function environment(env: Environment): Record<string, string> {
  return { PATH: process.env['PATH'] ?? '', ...env }
}

/**
 * The environment in which a process, and each of its threads, runs this before everything else.
 */
export async function preload(source: string): Promise<Environment> {
  const path = join(await temporaryDirectory(), 'preload.mjs')
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
  { main = MAIN, options = [], cwd, maxDescriptors }: Program = {},
): Promise<ServerProcess> {
  const limit = maxDescriptors === undefined ? '' : `ulimit -n ${maxDescriptors} && `
  const child = spawn(
    'sh',
    ['-c', `${limit}exec "$0" "$@"`, process.execPath, ...options, main, ...args],
    {
      ...(cwd === undefined ? {} : { cwd }),
      env: environment({
        PLANTS_LISTEN: '127.0.0.1:0',
        PLANTS_ADMIN_LISTEN: '127.0.0.1:0',
        PLANTS_DATA: dataDirectory,
        ...(args.includes('--dev')
          ? {}
          : { PLANTS_ISSUER: ISSUER, PLANTS_AUDIENCE: AUDIENCE, PLANTS_JWT_SECRET: SECRET }),
        ...env,
      }),
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  )
  t.after(() => child.kill('SIGKILL'))
  let [text, told] = ['', false]
  const exited = once(child, 'exit').then(() => child.exitCode)
  const listening = new Promise<{ plants: string; admin: string }>((resolve, reject) => {
    const read = (chunk: string): void => {
      text += chunk
      if (told) return
      const line = /^\{.*"message":"listening".*\}$/m.exec(text)?.[0]
      // The service's own line, whose fields are its documented ones.
      if (line === undefined) return
      told = true
      resolve(JSON.parse(line) as { plants: string; admin: string })
    }
    child.stdout.setEncoding('utf8').on('data', read)
    child.stderr.setEncoding('utf8').on('data', read)
    void exited.then((code) => reject(new Error(`the service ended with ${code}: ${text}`)))
  })
  const { plants, admin } = await listening
  return {
    child,
    port: Number(new URL(plants).port),
    adminPort: Number(new URL(admin).port),
    exited,
    output: () => text,
    kill(signal) {
      child.kill(signal)
      return exited
    },
  }
}
