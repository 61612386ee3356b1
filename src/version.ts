import { readFileSync } from 'node:fs'

interface Manifest {
  readonly version: string
}

/** One folder above this file, in the sources and in the package. */
const MANIFEST = new URL('../package.json', import.meta.url)
let manifest: Manifest | undefined

/** The version of this package. */
export function version(): string {
  // npm makes no package whose manifest has no version.
  manifest ??= JSON.parse(readFileSync(MANIFEST, 'utf8')) as Manifest
  return manifest.version
}
