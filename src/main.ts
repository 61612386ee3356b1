#!/usr/bin/env node
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { setFlagsFromString } from 'node:v8'
import { serve } from './cli/serve.ts'
import { readConfig, VARIABLES } from './config.ts'
import { ConfigError, errorCodeOf, reasonOf } from './errors.ts'
import { openStore } from './store/open.ts'
import { version } from './version.ts'

/** The command line is wrong, and the message says how. */
class UsageError extends Error {}

const OPTIONS = {
  dev: { type: 'boolean' },
  sub: { type: 'string' },
  ttl: { type: 'string' },
  scope: { type: 'string' },
  help: { type: 'boolean', short: 'h' },
  version: { type: 'boolean' },
} as const

type Values = ReturnType<typeof parse>['values']

interface Command {
  readonly usage: string
  readonly meaning: string
  readonly options?: readonly (keyof Values)[]
  readonly takesFile?: boolean
  /** Returns what is to be printed. */
  readonly run: (values: Values, file: string) => Promise<string | undefined>
}

/** What a service does not need is loaded by its command: a service starts sooner. */
const COMMANDS: Readonly<Record<string, Command>> = {
  serve: {
    usage: '[serve] [--dev]',
    meaning:
      'serves plants; --dev makes a key in the data directory and prints curl lines to paste',
    options: ['dev'],
    run: async ({ dev = false }) => void (await serve(dev)),
  },
  token: {
    usage: 'token --sub NAME [--ttl SECONDS] [--scope "SCOPE …"]',
    meaning: 'prints a token for the key that serve --dev made',
    options: ['sub', 'ttl', 'scope'],
    async run({ sub, ttl, scope }) {
      if (!sub) throw new UsageError('token needs --sub NAME: whose token it is to be')
      if (ttl !== undefined && !/^[1-9][0-9]{0,9}$/.test(ttl))
        throw new UsageError('--ttl must be a number of seconds, 1 or more')
      const { token } = await import('./cli/token.ts')
      return token(sub, ttl === undefined ? undefined : Number(ttl), scope)
    },
  },
  check: {
    usage: 'check',
    meaning: 'says whether the data directory is sound; changes nothing',
    run: async () => (await import('./cli/check.ts')).checkStore(embeddedStore('check')),
  },
  export: {
    usage: 'export FILE',
    meaning: 'writes everything to a new SQLite file, also while the service runs',
    takesFile: true,
    run: async (_, file) =>
      (await import('./cli/export.ts')).exportStore(embeddedStore('export'), file),
  },
  import: {
    usage: 'import FILE',
    meaning: 'creates every plant of such a file in etcd, or in the store of a stopped service',
    takesFile: true,
    async run(_, file) {
      const { importStore } = await import('./cli/import.ts')
      const config = readConfig(process.env, 'storage')
      const tell = (line: string) => void process.stderr.write(`${line}\n`)
      return importStore((log, onFatal) => openStore(config, { log, onFatal }), file, tell)
    },
  },
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
  if (values.help) return help()
  if (values.version) return version()
  const [name = 'serve', ...args] = positionals
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!command) throw new UsageError(`there is no command ${JSON.stringify(name)}`)
  const known: readonly string[] = command.options ?? []
  const stray = Object.keys(values).find((each) => !known.includes(each))
  if (stray !== undefined) throw new UsageError(`${name} takes no --${stray}`)
  if (args.length !== (command.takesFile ? 1 : 0))
    throw new UsageError(`${name} takes ${command.takesFile ? 'one FILE' : 'no argument'}`)
  return command.run(values, resolve(args[0] ?? ''))
}

function parse(argv: readonly string[]) {
  try {
    return parseArgs({ args: [...argv], options: OPTIONS, allowPositionals: true })
  } catch (error) {
    throw new UsageError(reasonOf(error))
  }
}

function usage(): string {
  const lines = [...Object.values(COMMANDS).map((each) => each.usage), '--help | --version']
  return `usage: ${lines.map((line) => `plant-store ${line}`).join('\n       ')}`
}

function help(): string {
  const commands = Object.entries(COMMANDS).map(([name, { meaning }]) => [name, meaning] as const)
  const variables = VARIABLES.map(({ name, fallback, meaning }) => {
    return [`  ${name}`, `${meaning}${fallback && ` (default ${fallback})`}`] as const
  })
  const sections = [usage(), columns(commands), `Environment variables:\n${columns(variables)}`]
  return sections.join('\n\n')
}

function columns(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([first]) => first.length))
  return rows.map(([first, second]) => `${first.padEnd(width)}  ${second}`).join('\n')
}

function print(text: string | undefined): void {
  if (text === undefined) return
  process.stdout.write(`${text}\n`, (error) => {
    if (error && errorCodeOf(error) !== 'EPIPE') fail(error)
  })
}

/** Status 2: the command line or the configuration is wrong. Status 1: it could not be done. */
function fail(error: unknown): never {
  const isConfig = error instanceof ConfigError
  const isUsage = error instanceof UsageError
  const problems = isConfig ? error.problems : [reasonOf(error)]
  const lines = problems.map((problem) => `plant-store: ${problem}\n`)
  process.stderr.write(lines.join('') + (isUsage ? `${usage()}\n` : ''))
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
