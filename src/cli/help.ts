/* The text of `--help`. */

import { VARIABLES } from '../settings/table.ts'
import { USAGE } from './commands.ts'
import { columns } from './config.ts'

const COMMANDS = `serve    serves plants until SIGTERM, SIGINT or SIGHUP (twice: at once);
         --dev makes a key in the data directory and prints curl lines
token    prints a token for that key: of the owner --sub, for --ttl seconds (default 28800)
check    says whether the data directory is sound; changes nothing
export   writes everything to a new SQLite file (- is standard output); a service may run
import   creates every plant of such a file in etcd, or in the store of a stopped service
health   says whether the service with these settings answers, for health checks
config   prints the settings in force and where each comes from, or every problem
openapi  prints the OpenAPI description of the interface

Exit status: 0 if it is done, 1 if not, 2 if the command line or a setting is wrong.`

export function help(): string {
  const variables = VARIABLES.map(({ name, fallback, meaning }) => {
    return [`  ${name}`, `${meaning}${fallback && ` (default ${fallback})`}`]
  })
  return [USAGE, COMMANDS, `Environment variables:\n${columns(variables)}`].join('\n\n')
}
