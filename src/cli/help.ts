/* The texts of usage and help. */

import { VARIABLES } from '../settings/table.ts'
import type { CommandName } from './commands.ts'
import { columns } from './config.ts'

/** `details` are what else a reader should know. */
type Help = Readonly<Record<'usage' | 'meaning' | 'details' | 'example', string>>

const OF_STORE = 'It reads PLANTS_DATA. For plants in etcd, use etcdctl.'

export const HELP: Readonly<Record<CommandName, Help>> = {
  serve: {
    usage: '[serve] [--dev]',
    meaning: 'serves plants; --dev makes a key in the data directory and prints curl lines',
    details: `SIGTERM, SIGINT and SIGHUP stop it: it answers the requests under way, and writes a
snapshot. A second signal ends it at once. The log is on standard output, one JSON
object per line; with --dev on a terminal, lines for people.`,
    example: 'PLANTS_ISSUER=https://issuer.example PLANTS_AUDIENCE=plants plant-store serve',
  },
  token: {
    usage: 'token --sub NAME [--ttl SECONDS] [--scope "SCOPE …"]',
    meaning: 'prints a token for the key that serve --dev made',
    details: `Only "serve --dev" with the same PLANTS_DATA accepts it. It names the owner --sub. It
is valid for --ttl seconds (default 28800), and has the scopes of --scope, if any.`,
    example: 'TOKEN=$(plant-store token --sub alice --ttl 3600)',
  },
  check: {
    usage: 'check',
    meaning: 'says whether the data directory is sound; changes nothing',
    details: `A service may run meanwhile. ${OF_STORE}`,
    example: 'PLANTS_DATA=/var/lib/plant-store plant-store check',
  },
  export: {
    usage: 'export FILE',
    meaning: 'writes everything to a new SQLite file (- is standard output); a service may run',
    details: `${OF_STORE}
FILE must not exist. With - nothing else is written to standard output, which must not be a
terminal.`,
    example: 'PLANTS_DATA=/var/lib/plant-store plant-store export plants.sqlite',
  },
  import: {
    usage: 'import FILE',
    meaning: 'creates every plant of such a file in etcd, or in the store of a stopped service',
    details: `The store may have plants. Identical ones are skipped; a row that cannot be stored is
named, and the others are stored. FILE may be any SQLite file with a table "plants" of
owner, id, name and tag.`,
    example: 'PLANTS_DATA=/var/lib/plant-store plant-store import plants.sqlite',
  },
  config: {
    usage: 'config',
    meaning: 'prints the settings in force and where each comes from, or every problem',
    details: 'They are those of "serve". Secrets are left out, and nothing is changed.',
    example: 'PLANTS_ISSUER=https://issuer.example PLANTS_AUDIENCE=plants plant-store config',
  },
  openapi: {
    usage: 'openapi',
    meaning: 'prints the OpenAPI description of the interface',
    details: 'It is JSON, the same as /openapi.json of the admin listener.',
    example: 'plant-store openapi > openapi.json',
  },
  completion: {
    usage: 'completion bash|zsh|fish',
    meaning: 'prints a script that completes these commands in a shell',
    details: 'Put the example into the file that the shell reads when it starts.',
    example: 'eval "$(plant-store completion bash)"  # fish: plant-store completion fish | source',
  },
}

const STATUSES = `Exit status:
  0  done
  1  not done, and the message says why
  2  the command line or a setting is wrong`

export function usage(): string {
  const lines = [...Object.values(HELP).map((each) => each.usage), '--help | --version']
  return `usage: ${lines.map((line) => `plant-store ${line}`).join('\n       ')}`
}

/** For `--help` alone. */
export function help(): string {
  const commands = Object.entries(HELP).map(([name, { meaning }]) => [name, meaning])
  const variables = VARIABLES.map(({ name, fallback, meaning }) => {
    return [`  ${name}`, `${meaning}${fallback && ` (default ${fallback})`}`]
  })
  const more = '"plant-store COMMAND --help" says more of each.'
  const settings = `Environment variables:\n${columns(variables)}`
  return [usage(), columns(commands), more, settings].join('\n\n')
}

/** For `COMMAND --help`. */
export function helpOf(name: CommandName): string {
  const { usage, meaning, details, example } = HELP[name]
  const what = `usage: plant-store ${usage}\n\n${name} ${meaning}.\n\n${details}`
  return `${what}\n\n${STATUSES}\n\nExample:\n  ${example}`
}
