/*
 * The rows of a SQLite file of any origin. SQLite trusts the pages of a file: 20 pages that refer
 * to each other keep it reading the schema without end, until an operator ends the process.
 */

import { constants } from 'node:fs'
import { open, realpath } from 'node:fs/promises'
import { errorCodeOf, reasonOf } from '../errors.ts'
import type { NewPlant } from '../plants/plant.ts'
import { FILE_MAX_BYTES } from '../store/sqljs/database.ts'
import { nodeFiles } from '../store/sqljs/files.ts'
import { SQLITE_LOGS } from '../store/sqljs/new-file.ts'
import { type Cells, NULL, openRows } from '../store/sqljs/source-rows.ts'

/** A row of the file. */
export interface SourceRow {
  /** Where it is in the file, in words. */
  readonly place: string
  /** The plant, or why the row holds none. */
  readonly content: { readonly owner: string; readonly plant: NewPlant } | string
}

export interface Source {
  readonly isPartial: boolean
  /** How many rows there are, if they could be counted. */
  readonly total: number | undefined
  /** @throws Error when the file is damaged. */
  readonly batches: Generator<readonly SourceRow[]>
}

/** Rows of a batch, and characters of their text: creates under way together, also to etcd. */
const BATCH_ROWS = 1000
const BATCH_CHARS = 8 * 1024 * 1024
/** How much of an owner a message repeats. */
const QUOTED_CHARS = 100

/**
 * Opens a SQLite file that has a table of plants.
 * @throws Error that says what is wrong with the file.
 */
export async function openSource(file: string): Promise<Source> {
  const bytes = await readWhole(file)
  try {
    const { rows, ...source } = await openRows(bytes)
    return { ...source, batches: batchesOf(rows) }
  } catch (error) {
    throw new Error(unreadable(file, error))
  }
}

export function unreadable(file: string, error: unknown): string {
  return `${file} cannot be read as a SQLite file with a table of plants: ${reasonOf(error)}`
}

/**
 * Reads a file that nothing writes to meanwhile.
 * @throws Error if it is no regular file, is too large, changes, or has a log with more changes.
 */
async function readWhole(file: string): Promise<Uint8Array> {
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  const handle = await open(file, constants.O_RDONLY | constants.O_NONBLOCK)
  try {
    const before = await handle.stat({ bigint: true })
    if (!before.isFile()) throw new Error(`${file} is not a regular file`)
    if (before.size > FILE_MAX_BYTES) {
      const what = `${file} is ${before.size} bytes long`
      throw new Error(`${what}, and at most ${FILE_MAX_BYTES} can be read`)
    }
    const bytes = await handle.readFile()
    await refuseLogs(file)
    const after = await handle.stat({ bigint: true })
    const isWhole = BigInt(bytes.length) === before.size && before.size === after.size
    if (isWhole && before.mtimeNs === after.mtimeNs) return bytes
    throw new Error(`${file} changed while it was read: stop what writes to it first`)
  } finally {
    await handle.close()
  }
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

function* batchesOf(rows: Iterable<Cells>): Generator<readonly SourceRow[]> {
  let batch: SourceRow[] = []
  let [chars, number] = [0, 0]
  for (const cells of rows) {
    const content = contentOf(cells)
    batch.push({ place: placeOf(cells, ++number), content })
    if (typeof content !== 'string')
      chars += content.plant.name.length + (content.plant.tag?.length ?? 0)
    if (batch.length < BATCH_ROWS && chars < BATCH_CHARS) continue
    yield batch
    batch = []
    chars = 0
  }
  yield batch
}

function contentOf({ owner, id, name, tag }: Cells): SourceRow['content'] {
  if (typeof owner !== 'string') return `owner must be text, and is ${owner.is}`
  if (owner === '') return 'owner must be text, and is empty'
  if (typeof id !== 'bigint') return `id must be an integer, and is ${id.is}`
  if (typeof name !== 'string') return `name must be text, and is ${name.is}`
  if (typeof tag === 'string') return { owner, plant: { id, name, tag } }
  if (tag.is === NULL) return { owner, plant: { id, name } }
  return `tag must be text or NULL, and is ${tag.is}`
}

/** Owner and id; also the row's number if these do not identify it. */
function placeOf({ owner, id }: Cells, number: number): string {
  const isShort = typeof owner === 'string' && owner.length <= QUOTED_CHARS
  const parts: string[] = []
  if (typeof owner === 'string' && owner !== '')
    parts.push(`owner ${JSON.stringify(owner.slice(0, QUOTED_CHARS))}${isShort ? '' : '…'}`)
  if (typeof id === 'bigint') parts.push(`id ${id}`)
  return (parts.length === 2 && isShort ? parts : [`row ${number}`, ...parts]).join(', ')
}
