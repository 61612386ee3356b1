/* Reads the command line, runs the command, and ends the process with its status. */

import { parseArgs } from 'node:util'
import { setFlagsFromString } from 'node:v8'
import { VERSION } from '../version.ts'
import { ConfigError, errorCodeOf, escaped, reasonOf, UsageError } from '../errors.ts'
import { COMMANDS, OPTIONS, USAGE } from './commands.ts'
import { endAtOnce, takeSignals } from './signals.ts'

async function main(): Promise<string | undefined> {
  const { values, positionals } = parseArgs({ options: OPTIONS, allowPositionals: true })
  const [name = 'serve', ...files] = positionals
  // It takes them itself.
  if (name !== 'serve' || values.help || values.version) takeSignals(endAtOnce)
  if (values.help) return (await import('./help.ts')).help()
  if (values.version) return VERSION
  const command = COMMANDS.get(name)
  if (!command) throw new UsageError(`there is no command ${JSON.stringify(name)}`)
  const [, load, takes = []] = command
  const stray = Object.keys(values).find((given) => !takes.some((option) => option === given))
  if (stray !== undefined) throw new UsageError(`${name} takes no --${stray}`)
  const [count, what] = takes.includes('file') ? [1, 'one FILE'] : [0, 'no argument']
  if (files.length !== count) throw new UsageError(`${name} takes ${what}`)
  const { run } = await load()
  return run({ ...values, file: files[0] ?? '' })
}

function print(text: string | undefined): void {
  if (text === undefined) return
  process.stdout.write(`${text}\n`, (error) => {
    if (error && errorCodeOf(error) !== 'EPIPE') fail(error)
  })
}

/** Status 2: the command line or the configuration is wrong. Status 1: it could not be done. */
function fail(error: unknown): never {
  takeSignals(endAtOnce)
  const isConfig = error instanceof ConfigError
  const isParsing = errorCodeOf(error)?.startsWith('ERR_PARSE_ARGS_')
  const isUsage = isParsing || error instanceof UsageError
  // The parser writes advice in lines of its own, also on a file whose name begins with a dash.
  const [said = ''] = reasonOf(error).split('. To specify a positional')
  const problems = isConfig ? error.problems : [isParsing ? said.replaceAll('\n', ' ') : said]
  const lines = problems.map((problem) => `plant-store: ${escaped(problem)}\n`)
  process.stderr.write(lines.join('') + (isUsage ? `${USAGE}\n` : ''))
  process.exit(isConfig || isUsage ? 2 : 1)
}

// A reader that has left does not end the process: the command goes on, and its status says how it
// ended. A write that must know of it has a callback.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

// V8 compiles WebAssembly that runs often a second time. By default SQLite's start counts as often:
// compiling its parser alone takes 40 ms and 14 MiB. What runs often under load is still compiled.
setFlagsFromString('--wasm-tiering-budget=200000000')

main().then(print).catch(fail)
