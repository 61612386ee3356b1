/*
 * `import`: the plants of a SQLite file of any origin, created in the configured store. SQLite
 * trusts the pages of a file: 20 pages that refer to each other keep it reading the schema without
 * end, until an operator ends the process.
 */

import { constants } from 'node:fs'
import { type FileHandle, open, realpath } from 'node:fs/promises'
import { resolve } from 'node:path'
import { readConfig } from '../settings/read.ts'
import { errorCodeOf, escaped, reasonOf } from '../errors.ts'
import { createLog, type Log } from '../telemetry/log.ts'
import type { NewPlant } from '../plants/plant.ts'
import type { PlantStore } from '../plants/store.ts'
import { openStore } from '../store/open.ts'
import { fileOf, nodeFiles } from '../store/sqljs/files.ts'
import { SQLITE_LOGS } from '../store/sqljs/new-file.ts'
import { FILE_MAX_BYTES, PageFile } from '../store/sqljs/page-file.ts'
import { checksumOf } from '../store/sqljs/snapshot.ts'
import { type Cells, NULL, openRows, type SourceRows } from '../store/sqljs/source-rows.ts'
import { counted, Progress } from './progress.ts'

/** Rows of a batch, and characters of their text: creates under way together, also to etcd. */
const BATCH_ROWS = 1000
const BATCH_CHARS = 8 * 1024 * 1024
/** How much of an owner a message repeats. */
const QUOTED_CHARS = 100

type OwnedPlant = { readonly owner: string; readonly plant: NewPlant }

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
  openTarget: OpenStore,
  file: string,
  progress = new Progress(),
): Promise<string> {
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  const handle = await open(file, constants.O_RDONLY | constants.O_NONBLOCK)
  try {
    const pages = new PageFile(file, fileOf(handle), await lengthOf(file, handle))
    // Each page is read, and must be the same when SQLite reads it.
    const checksum = await checksumOf(pages)
    await refuseLogs(file)
    const rows = await openRows(pages).catch((error: unknown) => refuse(file, error))
    if (rows.isPartial) {
      const what = `${file} was made while a service ran, and may lack what its journals hold`
      progress.tell(`${what}: "plant-store export" makes a file that has everything`)
    }
    if (checksum === 'differs') {
      const what = `${file} was changed after plant-store wrote it, by an edit or by a failing disk`
      progress.tell(`${what}: the plants are imported as they are now`)
    }
    let fatal: unknown
    const log: Log = {
      ...createLog('silent'),
      error(message, fields = {}) {
        const details = Object.entries(fields).map(([name, value]) => `${name}=${reasonOf(value)}`)
        progress.tell([message, ...details].join(' '))
      },
      info(message, { bytes, totalBytes } = {}) {
        if (typeof bytes !== 'number' || typeof totalBytes !== 'number') return
        progress.step(message)
        progress.at(bytes, totalBytes, 'MB')
      },
    }
    const store = await openTarget(log, (error) => (fatal = error))
    const { read, refused } = await importRows(store, file, rows, progress).finally(() =>
      store.close(),
    )
    if (fatal !== undefined) throw fatal
    const plants = counted(read, 'plant')
    const stored = `${read - refused} of ${plants} stored`
    if (refused > 0) throw new Error(`${stored}; the others are named above`)
    return `${plants} read from ${file}; all of them are in the store`
  } finally {
    await handle.close()
  }
}

/** Counts the rows that were read, and those of them that were not stored. */
async function importRows(
  store: PlantStore,
  file: string,
  { rows, total }: SourceRows,
  progress: Progress,
): Promise<{ readonly read: number; readonly refused: number }> {
  const unavailable = store.unavailableReason()
  if (unavailable !== undefined)
    throw new Error(`nothing can be kept at the moment: ${unavailable}`)
  let [read, refused] = [0, 0]
  progress.step('importing')
  try {
    for (const batch of batchesOf(rows)) {
      const first = read + 1
      const stored = batch.map((cells, at) => storeRow(store, cells, first + at))
      const problems = (await Promise.all(stored)).filter((problem) => problem !== undefined)
      for (const problem of problems) progress.tell(`not imported: ${problem}`)
      read += batch.length
      refused += problems.length
      progress.at(read, total, 'plants')
    }
  } catch (error) {
    refuse(file, error, `; before that, ${read - refused} of ${counted(read, 'plant')} stored`)
  }
  return { read, refused }
}

/** Creates a plant. Returns which row was not stored and why, if it was not. */
async function storeRow(
  store: PlantStore,
  cells: Cells,
  number: number,
): Promise<string | undefined> {
  const given = ownedPlant(cells)
  const place = placeOf(cells, number)
  if (typeof given === 'string') return `${place}: ${given}`
  try {
    const created = await store.create(given.owner, given.plant)
    if (created !== 'conflict') return undefined
    return `${place}: the store has another plant with this id`
  } catch (error) {
    return `${place}: ${reasonOf(error)}`
  }
}

function refuse(file: string, error: unknown, more = ''): never {
  const what = `${file} cannot be read as a SQLite file with a table of plants`
  throw new Error(`${what}: ${reasonOf(error)}${more}`)
}

/** The length of a regular file. @throws Error if it is another file, or is too large. */
async function lengthOf(file: string, handle: FileHandle): Promise<number> {
  const found = await handle.stat()
  if (!found.isFile()) throw new Error(`${file} is not a regular file`)
  if (found.size <= FILE_MAX_BYTES) return found.size
  const what = `${file} is ${found.size} bytes long`
  throw new Error(`${what}, and at most ${FILE_MAX_BYTES} can be read`)
}

/** SQLite applies a log when it opens the file. A log that begins with a zero byte is cleared. */
async function refuseLogs(file: string): Promise<void> {
  // SQLite keeps logs in the folder of the file itself, not of a link to it.
  const path = await realpath(file)
  for (const ending of SQLITE_LOGS) {
    const [first = 0] = await nodeFiles.readStart(path + ending, 1).catch((error: unknown) => {
      if (errorCodeOf(error) === 'ENOENT') return []
      throw error
    })
    if (first === 0) continue
    const reading = 'SELECT count(*) FROM plants'
    const sql = ending === '-wal' ? 'PRAGMA wal_checkpoint(TRUNCATE)' : reading
    const what = `${path}${ending} holds changes that are not in ${file} yet`
    throw new Error(`${what}: with what writes to it stopped, run sqlite3 ${file} '${sql}'`)
  }
}

function* batchesOf(rows: Iterable<Cells>): Generator<readonly Cells[]> {
  let batch: Cells[] = []
  let chars = 0
  for (const cells of rows) {
    batch.push(cells)
    for (const text of [cells.name, cells.tag]) if (typeof text === 'string') chars += text.length
    if (batch.length < BATCH_ROWS && chars < BATCH_CHARS) continue
    yield batch
    batch = []
    chars = 0
  }
  yield batch
}

/** The plant of a row, or why the row holds none. */
function ownedPlant({ owner, id, name, tag }: Cells): OwnedPlant | string {
  if (typeof owner !== 'string') return `owner must be text, and is ${owner.kind}`
  if (owner === '') return 'owner must be text, and is empty'
  if (typeof id !== 'bigint') return `id must be an integer, and is ${id.kind}`
  if (typeof name !== 'string') return `name must be text, and is ${name.kind}`
  if (typeof tag === 'string') return { owner, plant: { id, name, tag } }
  if (tag.kind === NULL) return { owner, plant: { id, name } }
  return `tag must be text or NULL, and is ${tag.kind}`
}

/** Where a row is in the file: owner and id; also its number if these do not identify it. */
function placeOf({ owner, id }: Cells, number: number): string {
  const isShort = typeof owner === 'string' && owner.length <= QUOTED_CHARS
  const parts: string[] = []
  if (typeof owner === 'string' && owner !== '')
    parts.push(`owner ${JSON.stringify(owner.slice(0, QUOTED_CHARS))}${isShort ? '' : '…'}`)
  if (typeof id === 'bigint') parts.push(`id ${id}`)
  return (parts.length === 2 && isShort ? parts : [`row ${number}`, ...parts]).join(', ')
}
