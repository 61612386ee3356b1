/* The installed package: it refuses to be bundled, and knows its version. */

import { existsSync, readFileSync } from 'node:fs'

/*
 * Loaded before any other file of the service. Some parts are files of their own: the thread that
 * compacts, SQLite, the manifest. In a bundle every file has the bundle's name, or none as
 * CommonJS, and the thread would run the application once more.
 */
const { url = '' } = import.meta
const [, ending] = /\/version(\.[jt]s)(?:$|\?)/.exec(url) ?? []
if (!ending || !existsSync(new URL(`store/sqljs/compaction-thread${ending}`, url))) {
  const why = 'because a thread of it runs a file of its own'
  const cure = 'leave it out of the bundle (esbuild: --packages=external)'
  throw new Error(`plant-store cannot run from a bundle, ${why}: ${cure}`)
}

// One folder above this file, in the sources and in the package.
const manifest = readFileSync(new URL('../package.json', url), 'utf8')

/** The version of this package. npm makes no package whose manifest has no version. */
export const VERSION = (JSON.parse(manifest) as { readonly version: string }).version
