import { readFileSync } from 'node:fs'

/** One folder above this file, in the sources and in the package. */
const MANIFEST = new URL('../package.json', import.meta.url)
let known: string | undefined

/** The version of this package. */
export function version(): string {
  if (known !== undefined) return known
  // npm makes no package whose manifest has no version.
  const manifest = JSON.parse(readFileSync(MANIFEST, 'utf8')) as { readonly version: string }
  return (known = manifest.version)
}
