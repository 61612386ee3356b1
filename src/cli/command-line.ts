import '../unbundled.ts'
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { setFlagsFromString } from 'node:v8'
import { readConfig } from '../config.ts'
import { ConfigError, errorCodeOf, escaped, reasonOf } from '../errors.ts'
import { openStore } from '../store/open.ts'
import { version } from '../version.ts'
import { type Command, COMMANDS, type CommandName, isCommand, OPTIONS } from './commands.ts'
import { serve } from './serve.ts'

/** The command line is wrong, and the message says how. */
class UsageError extends Error {}

type Values = ReturnType<typeof parse>['values']

/** Does the work of a command. Returns what is to be printed. */
type Run = (values: Values, argument: string) => Promise<string | undefined>

/** As a file name, this is standard output. */
const STDOUT = '-'

/** What a service does not need is loaded by its command: a service starts sooner. */
const RUN: Readonly<Record<CommandName, Run>> = {
  serve: async ({ dev = false }) => void (await serve(dev)),
  async token({ sub, ttl, scope }) {
    if (!sub) throw new UsageError('token needs --sub NAME: whose token it is to be')
    if (ttl !== undefined && !/^[1-9][0-9]{0,9}$/.test(ttl))
      throw new UsageError('--ttl must be a number of seconds, 1 or more')
    const { token } = await import('./token.ts')
    return token(sub, ttl === undefined ? undefined : Number(ttl), scope)
  },
  async check() {
    const { checkStore } = await import('./check.ts')
    return escaped(await checkStore(embeddedStore('check')))
  },
  async export(_, file) {
    const directory = embeddedStore('export')
    const { exportStore, exportToOutput } = await import('./export.ts')
    if (file !== STDOUT) return escaped(await exportStore(directory, resolve(file)))
    if (process.stdout.isTTY)
      throw new UsageError('export - writes a database, and standard output is a terminal')
    process.stderr.write(`${await exportToOutput(directory)}\n`)
    return undefined
  },
  async import(_, file) {
    const { importStore } = await import('./import.ts')
    const config = readConfig(process.env, 'storage')
    const told = importStore((log, onFatal) => openStore(config, { log, onFatal }), resolve(file))
    return escaped(await told)
  },
  config: async () => (await import('./config.ts')).describeConfig(process.env),
  openapi: async () => (await import('../http/openapi.ts')).openApiText(),
  completion: async (_, shell) => (await import('./completion.ts')).completion(shell),
}

/** The data directory. */
function embeddedStore(command: string): string {
  const { etcd, dataDirectory } = readConfig(process.env, 'storage')
  if (!etcd) return dataDirectory
  const what = `${command} is for the embedded store`
  const look = 'look at what is in etcd with "etcdctl endpoint status"'
  throw new Error(`${what}: ${look}, and save it with "etcdctl snapshot save"`)
}

async function main(argv: readonly string[]): Promise<string | undefined> {
  const { values, positionals } = parse(argv)
  const [name = 'serve', ...args] = positionals
  if (values.help && positionals.length === 0) return (await import('./help.ts')).help()
  if (values.version) return version()
  if (!isCommand(name)) throw new UsageError(`there is no command ${JSON.stringify(name)}`)
  if (values.help) return (await import('./help.ts')).helpOf(name)
  const { options = [], argument }: Command = COMMANDS[name]
  const known: readonly string[] = options
  const stray = Object.keys(values).find((each) => !known.includes(each))
  if (stray !== undefined) throw new UsageError(`${name} takes no --${stray}`)
  if (args.length !== (argument ? 1 : 0))
    throw new UsageError(`${name} takes ${argument ? `one ${argument.name}` : 'no argument'}`)
  const [given = ''] = args
  const { words } = argument ?? {}
  if (words && !words.includes(given))
    throw new UsageError(`${name} takes ${words.join(', ')}, and not ${JSON.stringify(given)}`)
  return RUN[name](values, given)
}

function parse(argv: readonly string[]) {
  try {
    return parseArgs({ args: [...argv], options: OPTIONS, allowPositionals: true })
  } catch (error) {
    throw new UsageError(reasonOf(error))
  }
}

function print(text: string | undefined): void {
  if (text === undefined) return
  process.stdout.write(`${text}\n`, (error) => {
    if (error && errorCodeOf(error) !== 'EPIPE') void fail(error)
  })
}

/** Status 2: the command line or the configuration is wrong. Status 1: it could not be done. */
async function fail(error: unknown): Promise<never> {
  const isConfig = error instanceof ConfigError
  const isUsage = error instanceof UsageError
  const problems = isConfig ? error.problems : [reasonOf(error)]
  const lines = problems.map((problem) => `plant-store: ${escaped(problem)}\n`)
  const usage = isUsage ? `${(await import('./help.ts')).usage()}\n` : ''
  process.stderr.write(lines.join('') + usage)
  process.exit(isConfig || isUsage ? 2 : 1)
}

// A reader that has left does not end the process: the command goes on, and its status says how it
// ended. A write that must know of it has a callback.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

// By default Node would open its inspector, on a port of loopback where every user of the machine
// may run code in this process.
process.on('SIGUSR1', () => {})

// V8 compiles WebAssembly that runs often a second time. By default it takes SQLite's start for
// that: its parser alone takes 40 ms and 14 MiB. What runs often under load is still compiled.
setFlagsFromString('--wasm-tiering-budget=200000000')

main(process.argv.slice(2)).then(print).catch(fail)
