/* The description of the interface. Users of the package import `plant-store/openapi.json`. */

import { readFileSync } from 'node:fs'

/** What `scripts/openapi.ts` has made from the table of operations. */
export function description(): string {
  // From dist/api/, in the repository, the package and the archive.
  return readFileSync(new URL('../../src/api/openapi.json', import.meta.url), 'utf8')
}
