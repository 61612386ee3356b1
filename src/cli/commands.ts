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

/** A command takes the options that its usage names, and one file if that ends in FILE. */
type Command = readonly [usage: string, load: () => Promise<{ readonly run: Run }>]

/** Each command has a file, which only this command loads. */
export const COMMANDS: ReadonlyMap<string, Command> = new Map<string, Command>([
  ['serve', ['[serve] [--dev]', () => import('./serve.ts')]],
  ['token', ['token --sub NAME [--ttl SECONDS] [--scope "SCOPE …"]', () => import('./token.ts')]],
  ['check', ['check', () => import('./check.ts')]],
  ['export', ['export FILE', () => import('./export.ts')]],
  ['import', ['import FILE', () => import('./import.ts')]],
  ['health', ['health', () => import('./health.ts')]],
  ['config', ['config', () => import('./config.ts')]],
  ['openapi', ['openapi', () => import('./openapi.ts')]],
])

const LINES = [...COMMANDS.values()].map(([usage]) => `plant-store ${usage}\n       `)

export const USAGE = `usage: ${LINES.join('')}plant-store --help | --version`
