/* `import`: the plants of a snapshot or an export, created in the configured store. */

import { resolve } from 'node:path'
import { counted, escaped, reasonOf } from '../errors.ts'
import { readWithoutKeys } from './settings.ts'
import { createCallbackLog, type Log } from '../telemetry/log.ts'
import type { PlantStore } from '../plants/store.ts'
import { openStore } from '../store/open.ts'
import { nodeFiles } from '../store/sqljs/disk/files.ts'
import { PageFile } from '../store/sqljs/disk/page-file.ts'
import { checkBeforeOpening, type ImportFile } from '../store/sqljs/import-file.ts'
import { type ImportRow, readImportFile } from '../store/sqljs/import-file.ts'
import { Progress } from './progress.ts'

/** Rows of a batch, and characters of their text: creates under way together, also to etcd. */
const BATCH_ROWS = 1000
const BATCH_CHARS = 8 * 1024 * 1024
/** How much of an owner a message repeats. */
const QUOTED_CHARS = 100

type OpenTarget = (log: Log) => Promise<PlantStore>

export async function run({ file }: { readonly file: string }): Promise<string> {
  const settings = readWithoutKeys(process.env, 'ignored')
  const config = { ...settings, maxOwnerBytes: undefined }
  // After a fatal error each create fails, and its row is told as not stored.
  const open: OpenTarget = (log) => openStore(config, { log, onFatal: () => {} })
  return escaped(await importStore(open, resolve(file)))
}

/**
 * Creates every plant of a file in a store. An identical plant that is there already is no
 * conflict. A row that cannot be stored is told in a line, and the import goes on.
 * @throws DirectoryLocked while a service holds the directory; Error if any row is not stored.
 */
export async function importStore(open: OpenTarget, file: string, progress = new Progress()) {
  const refuse = (error: unknown): never => {
    throw new Error(`${file} cannot be imported: ${reasonOf(error)}`)
  }
  await checkBeforeOpening(file).catch(refuse)
  const opened = await nodeFiles.open(file, 'existing')
  const pages = new PageFile(file, opened, await opened.lengthBytes())
  const imported = pages.opened(async (db) => {
    const source = await readImportFile(pages, db).catch(refuse)
    for (const note of source.notes) progress.tell(`${file} ${note}`)
    const store = await open(logTo(progress))
    const refused = await importAll(store, source, progress).finally(() => store.close())
    const plants = counted(source.total, 'plant')
    if (refused === 0) return `${plants} read from ${file}; all of them are in the store`
    throw new Error(`${source.total - refused} of ${plants} stored; the others are named above`)
  })
  return imported.finally(opened.close)
}

/** Returns how many rows were not stored. */
async function importAll(store: PlantStore, file: ImportFile, progress: Progress): Promise<number> {
  const unavailable = store.unavailableReason()
  if (unavailable !== undefined)
    throw new Error(`nothing can be kept at the moment: ${unavailable}`)
  let [read, refused, chars] = [0, 0, 0]
  const batch: ImportRow[] = []
  const storeBatch = async (): Promise<void> => {
    progress.at('importing', read, file.total, 'plants')
    const outcomes = await Promise.all(batch.map((row) => storeRow(store, row)))
    const problems = outcomes.filter((problem) => problem !== undefined)
    for (const problem of problems) progress.tell(`not imported: ${problem}`)
    refused += problems.length
    read += batch.length
    batch.length = chars = 0
  }
  for (const row of file.rows) {
    batch.push(row)
    chars += row.name.length + (row.tag?.length ?? 0)
    if (batch.length === BATCH_ROWS || chars > BATCH_CHARS) await storeBatch()
  }
  await storeBatch()
  return refused
}

/** Creates a plant. Returns which row was not stored and why, if it was not. */
async function storeRow(store: PlantStore, row: ImportRow): Promise<string | undefined> {
  const { owner, name, tag, problem } = row
  const place = `owner ${JSON.stringify(owner.slice(0, QUOTED_CHARS))}, id ${row.id}`
  if (problem !== undefined) return `${place}: ${problem}`
  try {
    const id = BigInt(row.id)
    const created = await store.create(owner, tag === undefined ? { id, name } : { id, name, tag })
    return created === 'stored' ? undefined : `${place}: the store has another plant with this id`
  } catch (error) {
    return `${place}: ${reasonOf(error)}`
  }
}

/** Tells errors, and how far the opening of the store is. */
function logTo(progress: Progress): Log {
  return createCallbackLog('info', ({ time: _, level, message, ...fields }) => {
    const { bytes, totalBytes } = fields
    const details = Object.entries(fields).map(([name, value]) => `${name}=${reasonOf(value)}`)
    if (level === 'error') progress.tell([message, ...details].join(' '))
    else if (typeof bytes === 'number' && typeof totalBytes === 'number')
      progress.at(message, bytes, totalBytes, 'MB')
  })
}
