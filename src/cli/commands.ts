/* Every command and option. The rest of `--help` is in help.ts. */

import type { parseArgs } from 'node:util'

/** As `parseArgs` reads them. */
export const OPTIONS = {
  dev: { type: 'boolean' },
  sub: { type: 'string' },
  ttl: { type: 'string' },
  scope: { type: 'string' },
  help: { type: 'boolean', short: 'h' },
  version: { type: 'boolean' },
} as const

type Flags = ReturnType<typeof parseArgs<{ options: typeof OPTIONS }>>['values']

/** Does the work of a command. Returns what is to be printed. `file` is empty if it takes none. */
type Run = (given: Flags & { readonly file: string }) => Promise<string | undefined> | string

/** Options, and `file` if it takes one file. */
type Taken = readonly (keyof typeof OPTIONS | 'file')[]

/** `usage` is for people alone. */
type Command = readonly [usage: string, load: () => Promise<{ readonly run: Run }>, takes?: Taken]

const OF_TOKEN = 'token --sub NAME [--ttl SECONDS] [--scope "SCOPE …"]'

/** Each command has a file, which only this command loads. */
export const COMMANDS: ReadonlyMap<string, Command> = new Map<string, Command>([
  ['serve', ['[serve] [--dev]', () => import('./serve.ts'), ['dev']]],
  ['token', [OF_TOKEN, () => import('./token.ts'), ['sub', 'ttl', 'scope']]],
  ['check', ['check', () => import('./check.ts')]],
  ['export', ['export FILE', () => import('./export.ts'), ['file']]],
  ['import', ['import FILE', () => import('./import.ts'), ['file']]],
  ['health', ['health', () => import('./health.ts')]],
  ['config', ['config', () => import('./config.ts')]],
  ['openapi', ['openapi', () => import('./openapi.ts')]],
])

const LINES = [...COMMANDS.values()].map(([usage]) => `plant-store ${usage}\n       `)

export const USAGE = `usage: ${LINES.join('')}plant-store --help | --version`
