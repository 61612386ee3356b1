/** Every option of the command line, as `parseArgs` takes it. */
export const OPTIONS = {
  dev: { type: 'boolean' },
  sub: { type: 'string' },
  ttl: { type: 'string' },
  scope: { type: 'string' },
  help: { type: 'boolean', short: 'h' },
  version: { type: 'boolean' },
} as const

/** The options that were given. */
export interface Values {
  readonly dev?: boolean
  readonly sub?: string
  readonly ttl?: string
  readonly scope?: string
}

export interface Command {
  /** What follows `plant-store`. */
  readonly usage: string
  readonly meaning: string
  readonly options?: readonly (keyof Values)[]
  /** Whether it takes one argument, a file. */
  readonly takesFile?: boolean
  /** Returns what is to be printed, unless it goes on. The file's path is absolute. */
  readonly run: (values: Values, file: string) => Promise<string | undefined>
}

/** The command line is wrong, and the message says how. */
export class UsageError extends Error {}
