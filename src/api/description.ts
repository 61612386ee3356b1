/* The description of the interface: `openapi.json` of the package. */

import { readFileSync } from 'node:fs'

/** What `scripts/openapi.ts` has made from the table of operations. */
export function description(): string {
  // From dist/api/, in the repository, the package and the archive.
  return readFileSync(new URL('../../openapi.json', import.meta.url), 'utf8')
}
