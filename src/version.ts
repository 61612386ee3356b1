import { readFileSync } from 'node:fs'

let known: string | undefined

/**
 * The package's own, from its manifest, which stands one folder above this file in every layout
 * that is shipped.
 */
export function version(): string {
  // A manifest of ours has it; npm makes no package without.
  known ??= (
    JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as {
      readonly version: string
    }
  ).version
  return known
}
