/* Every command and option, once: for usage, help and the check of a command line. */

import type { parseArgs } from 'node:util'

/** The type is what `parseArgs` reads. */
interface Option {
  readonly type: 'boolean' | 'string'
  readonly short?: string
  /** How a usage line names its value. */
  readonly value?: string
  readonly meaning: string
}

export const OPTIONS = {
  dev: {
    type: 'boolean',
    meaning: 'uses a development key, made in the data directory, and prints curl lines to paste',
  },
  sub: { type: 'string', value: 'NAME', meaning: 'required: the owner that the token names' },
  ttl: { type: 'string', value: 'SECONDS', meaning: 'how long the token is valid (default 28800)' },
  scope: {
    type: 'string',
    value: '"SCOPE …"',
    meaning: 'scopes of the token, with spaces between',
  },
  help: { type: 'boolean', short: 'h', meaning: 'prints this' },
  version: { type: 'boolean', meaning: 'prints the version' },
} as const satisfies Readonly<Record<string, Option>>

export type Values = ReturnType<typeof parseArgs<{ options: typeof OPTIONS }>>['values']

/** The command line is wrong, and the message says how. */
export class UsageError extends Error {}
UsageError.prototype.name = 'UsageError'

export interface Command {
  readonly usage: string
  readonly meaning: string
  /** What else a reader of its help should know. */
  readonly details: string
  readonly options?: readonly (keyof typeof OPTIONS)[]
  /** Its one argument. */
  readonly argument?: string
  readonly example: string
}

const OF_STORE = 'It reads PLANTS_DATA. For plants in etcd, use etcdctl.'

export const COMMANDS = {
  serve: {
    usage: '[serve] [--dev]',
    meaning:
      'serves plants; --dev makes a key in the data directory and prints curl lines to paste',
    details:
      'SIGTERM, SIGINT and SIGHUP stop it: it answers the requests under way, and writes a\n' +
      'snapshot. A second signal ends it at once. The log is on standard output, one JSON\n' +
      'object per line; with --dev on a terminal, lines for people.',
    options: ['dev'],
    example: 'PLANTS_ISSUER=https://issuer.example PLANTS_AUDIENCE=plants plant-store serve',
  },
  token: {
    usage: 'token --sub NAME [--ttl SECONDS] [--scope "SCOPE …"]',
    meaning: 'prints a token for the key that serve --dev made',
    details: 'Only "serve --dev" with the same PLANTS_DATA accepts it.',
    options: ['sub', 'ttl', 'scope'],
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
    details:
      `${OF_STORE}\nFILE must not exist. With - nothing else is written to standard output, ` +
      'which must not be a\nterminal.',
    argument: 'FILE',
    example: 'PLANTS_DATA=/var/lib/plant-store plant-store export - | gzip > plants.sqlite.gz',
  },
  import: {
    usage: 'import FILE',
    meaning: 'creates every plant of such a file in etcd, or in the store of a stopped service',
    details:
      'The store may have plants. Identical ones are skipped; a row that cannot be stored is\n' +
      'named, and the others are stored. FILE may be any SQLite file with a table "plants" of\n' +
      'owner, id, name and tag.',
    argument: 'FILE',
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
    argument: 'SHELL',
    example:
      'eval "$(plant-store completion bash)"    # fish: plant-store completion fish | source',
  },
} as const satisfies Readonly<Record<string, Command>>

export type CommandName = keyof typeof COMMANDS

export function isCommand(name: string): name is CommandName {
  return Object.hasOwn(COMMANDS, name)
}
