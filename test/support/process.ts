import assert from 'node:assert/strict'
import { type ChildProcess, fork, spawn } from 'node:child_process'
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
  type ServerProcess,
  serviceEnvironment,
} from './launch.ts'
import { PATIENCE_MS } from './time.ts'

export { MAIN, type Program, type ServerProcess }

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

/**
 * Runs each command that it is sent until the command prints its result or exits. The module with
 * the command line runs anew for each; what it imports is loaded once.
 */
const HOST = `
  const { env: environment, exit } = process
  let finish
  let outcome
  let count = 0
  const record = (name) => (text, done) => {
    outcome[name] += text
    done?.()
    if (name === 'stdout') finish(0)
  }
  process.exit = (status) => finish(status)
  for (const name of ['stdout', 'stderr']) {
    process[name].setMaxListeners(0)
    process[name].write = record(name)
  }
  process.setMaxListeners(0).on('disconnect', () => exit())
  process.on('message', async ({ main, args, env, cwd }) => {
    process.chdir(cwd)
    process.env = { ...environment, ...env }
    process.argv = [process.execPath, main, ...args]
    outcome = { status: null, stdout: '', stderr: '' }
    const status = new Promise((resolve) => (finish = resolve))
    await import(new URL('cli/command-line.js?' + count++, 'file://' + main))
    outcome.status = await status
    process.send(outcome)
  })`

let host: ChildProcess | undefined

/**
 * As `run`, for commands that end by themselves and print what they return; one at a time. All
 * share a process, because the start of Node costs more than such a command.
 */
export async function command(
  args: readonly string[],
  env: Environment = {},
  cwd = process.cwd(),
  main = MAIN,
): Promise<Outcome> {
  if (!host?.connected) {
    const script = join(temporaryDirectorySync(), 'host.mjs')
    writeFileSync(script, HOST)
    const stdio = ['ignore', 'ignore', 'inherit', 'ipc'] as const
    host = fork(script, { env: environment({}), execArgv: [], stdio: [...stdio] })
  }
  const { channel, pid = 0 } = host
  // Between commands it keeps no process from ending.
  host.ref()
  channel?.ref()
  host.send({ main, args, env, cwd })
  const hangs = setTimeout(() => process.kill(pid, 'SIGKILL'), PATIENCE_MS)
  const waiting = new AbortController()
  const { signal } = waiting
  try {
    const ended = once(host, 'exit', { signal }).then(() => assert.fail('its process ended'))
    // What the script above sends.
    return (await Promise.race([once(host, 'message', { signal }), ended]))[0] as Outcome
  } finally {
    waiting.abort()
    clearTimeout(hangs)
    host.unref()
    channel?.unref()
  }
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
