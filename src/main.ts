#!/usr/bin/env node
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { setFlagsFromString } from 'node:v8'
import type { DevClaims } from './auth/dev.ts'
import { type Config, readConfig, VARIABLES } from './config.ts'
import { ConfigError, errorCodeOf, reasonOf } from './errors.ts'
import { createLog } from './ops/log.ts'
import { createService, type Listening } from './service.ts'
import { openStore } from './store/open.ts'
import { version } from './version.ts'

const USAGE = `usage: plant-store [serve] [--dev]
       plant-store token --sub NAME [--ttl SECONDS] [--scope "SCOPE …"]
       plant-store check
       plant-store export FILE
       plant-store import FILE
       plant-store --help | --version`

const HELP = `${USAGE}

serve    serves plants; --dev makes a key in the data directory and prints curl lines that work as they are
token    prints a token for the key that serve --dev made
check    says whether the data directory is sound; changes nothing
export   writes everything to a new SQLite file, also while the service runs
import   creates every plant of such a file in the store: in etcd, or in the data directory, which no service may hold meanwhile

Environment variables:
`

const DEV_TTL_SECONDS = 8 * 60 * 60
const FLUSH_MS = 1000
const STOP_SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

/** The command line is wrong; the message says how. */
class UsageError extends Error {}

const PARSED = {
  dev: { type: 'boolean' },
  sub: { type: 'string' },
  ttl: { type: 'string' },
  scope: { type: 'string' },
  help: { type: 'boolean', short: 'h' },
  version: { type: 'boolean' },
} as const

/** The options that each command takes, and how many arguments. */
const COMMANDS: Readonly<
  Record<string, { readonly options: readonly string[]; readonly args: number }>
> = {
  serve: { options: ['dev'], args: 0 },
  token: { options: ['sub', 'ttl', 'scope'], args: 0 },
  check: { options: [], args: 0 },
  export: { options: [], args: 1 },
  import: { options: [], args: 1 },
}

async function main(argv: readonly string[]): Promise<void> {
  const { values, positionals } = parse(argv)
  if (values.help) return print(help())
  if (values.version) return print(version())
  const [command = 'serve', ...args] = positionals
  const known = Object.hasOwn(COMMANDS, command) ? COMMANDS[command] : undefined
  if (!known) throw new UsageError(`there is no command ${JSON.stringify(command)}`)
  const stray = Object.keys(values).find((name) => !known.options.includes(name))
  if (stray !== undefined) throw new UsageError(`${command} takes no --${stray}`)
  if (args.length !== known.args)
    throw new UsageError(`${command} takes ${known.args === 0 ? 'no argument' : 'one FILE'}`)
  const [file = ''] = args
  switch (command) {
    case 'serve':
      return serve(values.dev === true)
    case 'token':
      return token(values)
    default:
      return print(await storage(command, resolve(file)))
  }
}

/**
 * check, export, import. What only a command needs is loaded by that command: a service starts the
 * sooner.
 */
async function storage(command: string, file: string): Promise<string> {
  // Where the reader of a pipe has left, the work goes on, and the status tells how it ended.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})
  const { checkStore, exportStore, importStore } = await import('./store/sqljs/tools.ts')
  const config = readConfig(process.env, 'storage')
  if (command === 'import')
    return importStore(
      (log, onFatal) => openStore(config, { log, onFatal }),
      file,
      (line) => process.stderr.write(`${line}\n`),
    )
  if (config.etcd)
    throw new Error(
      `${command} is for the embedded store: what is in etcd is looked at with "etcdctl endpoint status" and saved with "etcdctl snapshot save"`,
    )
  if (command === 'check') return checkStore(config.dataDirectory)
  return exportStore(config.dataDirectory, file)
}

function parse(
  argv: readonly string[],
): ReturnType<typeof parseArgs<{ options: typeof PARSED; allowPositionals: true }>> {
  try {
    return parseArgs({ args: [...argv], options: PARSED, allowPositionals: true })
  } catch (error) {
    throw new UsageError(reasonOf(error))
  }
}

async function serve(dev: boolean): Promise<void> {
  const config = await configure(dev)
  const log = createLog(config.logLevel)
  const service = createService(config, {
    log,
    onFatal(error) {
      process.stderr.write(
        `plant-store: memory and disk may differ; ending, and the next start recovers: ${String(error)}\n`,
      )
      process.exit(1)
    },
  })
  let stopping = false
  const stop = (signal: NodeJS.Signals): void => {
    if (stopping) process.exit(1)
    stopping = true
    log.info('stopping', { signal })
    void service.close().then(async () => {
      log.info('stopped')
      await log.flush(FLUSH_MS)
      process.exit(0)
    })
  }
  for (const signal of STOP_SIGNALS) process.on(signal, stop)
  const listening = await service.listen().catch((error: unknown) => {
    // The stop ends the process once it has ended what was under way.
    if (stopping) return undefined
    throw error
  })
  if (!listening) return
  log.info('listening', {
    version: version(),
    ...listening,
    data: config.etcd?.endpoints ?? config.dataDirectory,
    ...keyFields(config),
  })
  if (dev) process.stderr.write(await invitation(config, listening))
}

/** Where keys come from, and never what they are. */
function keyFields({ keys, issuer }: Config): {
  readonly keys: string
  readonly keysFrom: string | undefined
} {
  switch (keys.kind) {
    case 'secret':
      return { keys: 'secret', keysFrom: undefined }
    case 'file':
      return { keys: 'file', keysFrom: keys.path }
    case 'url':
      // A query may hold what is none of the log's business.
      return { keys: 'url', keysFrom: keys.url.replace(/[?#].*$/s, '') }
    case 'discovery':
      return { keys: 'discovery', keysFrom: issuer }
  }
}

async function configure(dev: boolean): Promise<Config> {
  const { keys, ...config } = readConfig(process.env, dev ? 'dev' : 'service')
  if (keys) return { ...config, keys }
  const { readOrCreateDevKey } = await import('./auth/dev.ts')
  return {
    ...config,
    keys: { kind: 'secret', secret: readOrCreateDevKey(devKeyPath(config.dataDirectory)) },
  }
}

function devKeyPath(dataDirectory: string): string {
  return `${dataDirectory}/dev.key`
}

async function token(values: {
  readonly sub?: string
  readonly ttl?: string
  readonly scope?: string
}): Promise<void> {
  const { sub, ttl = String(DEV_TTL_SECONDS), scope } = values
  if (!sub) throw new UsageError('token needs --sub NAME: whose token it is to be')
  if (!/^[1-9][0-9]{0,9}$/.test(ttl))
    throw new UsageError('--ttl must be a number of seconds, 1 or more')
  const { readDevKey, signDevToken } = await import('./auth/dev.ts')
  const config = readConfig(process.env, 'dev')
  const key = readDevKey(devKeyPath(config.dataDirectory))
  if (!key)
    throw new Error(
      `there is no development key in ${config.dataDirectory}: start "plant-store serve --dev" first`,
    )
  print(await signDevToken(key, devClaims(config, sub, Number(ttl), scope)))
}

function devClaims(
  config: Omit<Config, 'keys'>,
  sub: string,
  ttlSeconds: number,
  scope: string | undefined,
): DevClaims {
  const { issuer, audience, ownerClaim, audienceClaim, scopeClaim = 'scope' } = config
  const more = {
    [ownerClaim]: sub,
    [audienceClaim]: audience,
    ...(scope === undefined ? {} : { [scopeClaim]: scope }),
  }
  return { issuer, audience, sub, ttlSeconds, scope, more }
}

/** Lines to paste: they create a plant and list it. */
async function invitation(config: Config, { plants }: Listening): Promise<string> {
  if (config.keys.kind !== 'secret') return ''
  const { signDevToken } = await import('./auth/dev.ts')
  const scope =
    [config.readScope, config.writeScope].filter((name) => name !== undefined).join(' ') ||
    undefined
  const claims = devClaims(config, 'alice', DEV_TTL_SECONDS, scope)
  const bearer = `-H 'Authorization: Bearer ${await signDevToken(config.keys.secret, claims)}'`
  const socket = /^unix:(.*)$/s.exec(plants)?.[1]
  const target =
    socket === undefined ? `${plants}/plants` : `--unix-socket '${socket}' http://localhost/plants`
  return `
The plant store listens on ${plants} with a development key; never use that key for anything real.
Paste these in another shell, to create a plant and to list it:

curl -i ${target} ${bearer} -H 'Content-Type: application/json' -d '{"id": 1, "name": "Monstera", "tag": "indoor"}'

curl -i ${target} ${bearer}

`
}

function help(): string {
  const width = Math.max(...VARIABLES.map(([name]) => name.length))
  return (
    HELP +
    VARIABLES.map(
      ([name, fallback, meaning]) =>
        `  ${name.padEnd(width)}  ${meaning}${fallback && ` (default ${fallback})`}`,
    ).join('\n')
  )
}

function print(text: string): void {
  process.stdout.write(`${text}\n`, (error) => {
    if (error && errorCodeOf(error) !== 'EPIPE') fail(error)
  })
}

/** Status 2: the command line or the configuration is wrong. 1: it could not be done. */
function fail(error: unknown): never {
  const wrongUse = error instanceof UsageError
  const message = reasonOf(error)
  const problems = error instanceof ConfigError ? error.problems : [message]
  const lines = problems.map((problem) => `plant-store: ${problem}\n`)
  process.stderr.write(`${lines.join('')}${wrongUse ? `${USAGE}\n` : ''}`)
  process.exit(wrongUse || error instanceof ConfigError ? 2 : 1)
}

// A reader that is gone does not end the process. Each writer has a callback where it must know.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

// Else it would have Node open its inspector, on a port of loopback where anybody on the machine
// may run code in this process.
process.on('SIGUSR1', () => {})

// V8 compiles WebAssembly that runs often a second time, and by its default takes SQLite's start
// for that already: its parser alone takes 40 ms and 14 MiB, for nothing. What load makes run often
// it compiles again all the same.
setFlagsFromString('--wasm-tiering-budget=200000000')

main(process.argv.slice(2)).catch(fail)
