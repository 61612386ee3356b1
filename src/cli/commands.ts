/* Every command and option. The text of `--help` is in help.ts. */

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

export interface Command {
  readonly options?: readonly (keyof typeof OPTIONS)[]
  /** Whether it takes one argument, a file. */
  readonly takesFile?: true
  /** The command's file, which only this command loads. */
  readonly load: () => Promise<{ readonly run: Run }>
}

export const COMMANDS: ReadonlyMap<string, Command> = new Map<string, Command>([
  ['serve', { options: ['dev'], load: () => import('./serve.ts') }],
  ['token', { options: ['sub', 'ttl', 'scope'], load: () => import('./token.ts') }],
  ['check', { load: () => import('./check.ts') }],
  ['export', { takesFile: true, load: () => import('./export.ts') }],
  ['import', { takesFile: true, load: () => import('./import.ts') }],
  ['health', { load: () => import('./health.ts') }],
  ['config', { load: () => import('./config.ts') }],
  ['openapi', { load: () => import('./openapi.ts') }],
])
