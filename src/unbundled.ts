import { existsSync } from 'node:fs'

/*
 * Refuses to be part of a bundle, before any other file of the service is loaded. Some parts are
 * files of their own: the thread that compacts, SQLite, the manifest. In a bundle every file has
 * the bundle's name, or none as CommonJS, and the thread would run the application once more.
 */

const { url = '' } = import.meta
const [, ending] = /\/unbundled(\.[jt]s)(?:$|\?)/.exec(url) ?? []
if (!ending || !existsSync(new URL(`store/sqljs/compaction-thread${ending}`, url))) {
  const why = 'because a thread of it runs a file of its own'
  const cure = 'leave it out of the bundle (esbuild: --packages=external)'
  throw new Error(`plant-store cannot run from a bundle, ${why}: ${cure}`)
}
