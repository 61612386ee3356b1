/* `import`: the plants of a SQLite file, created in the configured store. */

import { resolve } from 'node:path'
import { readConfig } from '../config.ts'
import { escaped, reasonOf } from '../errors.ts'
import { createLog, type Log } from '../ops/log.ts'
import type { PlantStore } from '../plants/store.ts'
import { openStore } from '../store-opening.ts'
import { Progress } from './progress.ts'
import { openSource, type Source, type SourceRow, unreadable } from './source.ts'

/** Opens the store to import into. `onFatal` is told when its memory and disk may differ. */
type OpenStore = (log: Log, onFatal: (error: unknown) => void) => Promise<PlantStore>

export async function run(file: string): Promise<string> {
  const config = readConfig(process.env, 'storage')
  const open: OpenStore = (log, onFatal) => openStore(config, { log, onFatal })
  return escaped(await importStore(open, resolve(file)))
}

/**
 * Creates every plant of a SQLite file in a store. An identical plant that is there already is no
 * conflict. A row that cannot be stored is told in a line, and the import goes on.
 * @throws DirectoryLocked while a service holds the directory; Error if any row is not stored.
 */
export async function importStore(
  open: OpenStore,
  file: string,
  progress = new Progress(),
): Promise<string> {
  const source = await openSource(file)
  try {
    if (source.isPartial) {
      const what = `${file} was made while a service ran, and may lack what its journals hold`
      progress.tell(`${what}: "plant-store export" makes a file that has everything`)
    }
    let fatal: unknown
    const log: Log = {
      ...createLog('silent'),
      error: (message) => progress.tell(message),
      info(message, { bytes, totalBytes } = {}) {
        if (typeof bytes !== 'number' || typeof totalBytes !== 'number') return
        progress.step(message)
        progress.at(bytes, totalBytes, 'MB')
      },
    }
    const store = await open(log, (error) => (fatal = error))
    const { read, refused } = await importRows(store, file, source, progress).finally(() =>
      store.close(),
    )
    if (fatal !== undefined) throw fatal
    const stored = `${read - refused} of ${read} plants are in the store`
    if (refused > 0) throw new Error(`${stored}; the others are named above`)
    return `${read} plants read from ${file}; all of them are in the store`
  } finally {
    progress.end()
  }
}

/** Counts the rows that were read, and those of them that were not stored. */
async function importRows(
  store: PlantStore,
  file: string,
  source: Source,
  progress: Progress,
): Promise<{ readonly read: number; readonly refused: number }> {
  const unavailable = store.unavailableReason()
  if (unavailable !== undefined)
    throw new Error(`nothing can be kept at the moment: ${unavailable}`)
  let [read, refused] = [0, 0]
  progress.step('importing')
  try {
    for (const rows of source.batches) {
      const problems = await Promise.all(rows.map((row) => storeRow(store, row)))
      const lines = problems.filter((problem) => problem !== undefined)
      for (const line of lines) progress.tell(`not imported: ${line}`)
      read += rows.length
      refused += lines.length
      progress.at(read, source.total, 'plants')
    }
  } catch (error) {
    const stored = `${read - refused} of the ${read} plants before that are in the store`
    throw new Error(`${unreadable(file, error)}; ${stored}`)
  }
  return { read, refused }
}

/** Creates a plant. Returns which row was not stored and why, if it was not. */
async function storeRow(
  store: PlantStore,
  { place, content }: SourceRow,
): Promise<string | undefined> {
  if (typeof content === 'string') return `${place}: ${content}`
  try {
    const created = await store.create(content.owner, content.plant)
    if (created !== 'conflict') return undefined
    return `${place}: the store has another plant with this id`
  } catch (error) {
    return `${place}: ${reasonOf(error)}`
  }
}
