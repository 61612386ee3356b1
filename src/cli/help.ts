/* The texts of usage and help. */

import { VARIABLES } from '../settings.ts'
import { type Command, COMMANDS, type CommandName, OPTIONS } from './commands.ts'

const STATUSES = `Exit status:
  0  done
  1  not done, and the message says why
  2  the command line or a setting is wrong`

export function usage(): string {
  const lines = [...Object.values(COMMANDS).map((each) => each.usage), '--help | --version']
  return `usage: ${lines.map((line) => `plant-store ${line}`).join('\n       ')}`
}

/** For `--help` alone. */
export function help(): string {
  const commands = Object.entries(COMMANDS).map(([name, { meaning }]) => [name, meaning])
  const variables = VARIABLES.map(({ name, fallback, meaning }) => {
    return [`  ${name}`, `${meaning}${fallback && ` (default ${fallback})`}`]
  })
  const more = '"plant-store COMMAND --help" says more of each.'
  const settings = `Environment variables:\n${columns(variables)}`
  return [usage(), `${columns(commands)}\n\n${more}`, settings].join('\n\n')
}

/** For `COMMAND --help`. */
export function helpOf(name: CommandName): string {
  const { usage, meaning, details, options = [], example }: Command = COMMANDS[name]
  const rows = [...options, 'help' as const].map((option) => {
    const { meaning: what, ...rest } = OPTIONS[option]
    return [`  --${option}${'value' in rest ? ` ${rest.value}` : ''}`, what]
  })
  return [
    `usage: plant-store ${usage}`,
    `${name} ${meaning}.`,
    details,
    `Options:\n${columns(rows)}`,
    STATUSES,
    `Example:\n  ${example}`,
  ].join('\n\n')
}

/** All columns but the last are as wide as their longest cell. */
export function columns(rows: readonly (readonly string[])[]): string {
  const widthOf = (column: number): number =>
    Math.max(...rows.map((row) => row[column]?.length ?? 0))
  const widths = rows[0]?.map((_, column) => widthOf(column)) ?? []
  const padded = rows.map((row) => row.map((cell, column) => cell.padEnd(widths[column] ?? 0)))
  return padded.map((row) => row.join('  ').trimEnd()).join('\n')
}
