/* `completion`: the scripts in scripts/completion/. */

import { readFileSync } from 'node:fs'
import { UsageError } from '../errors.ts'

const SHELLS: readonly string[] = ['bash', 'zsh', 'fish']

/** A script that completes commands, options and arguments in a shell. */
export function run(shell: string): string {
  if (!SHELLS.includes(shell))
    throw new UsageError(`completion takes ${SHELLS.join(', ')}, and not ${JSON.stringify(shell)}`)
  // From dist/cli/, in the repository, the package and the archive.
  const script = new URL(`../../scripts/completion/${shell}`, import.meta.url)
  return readFileSync(script, 'utf8').trimEnd()
}
