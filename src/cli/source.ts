import { once } from 'node:events'
import { constants } from 'node:fs'
import { type FileHandle, open, realpath } from 'node:fs/promises'
import { types } from 'node:util'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { errorCodeOf, reasonOf } from '../errors.ts'
import type { NewPlant } from '../plants/plant.ts'
import { FILE_MAX_BYTES, readMeta } from '../store/sqljs/database.ts'
import { nodeFiles } from '../store/sqljs/files.ts'
import { SQLITE_LOGS } from '../store/sqljs/new-file.ts'
import { type Cells, NULL, openRows } from '../store/sqljs/source-rows.ts'

/*
 * A SQLite file of any origin, read in its own thread. SQLite trusts the pages of a file: 20 pages
 * that refer to each other keep it reading the schema without end. The thread is ended if it takes
 * too long, and a file that exhausts memory exhausts only the thread's.
 */

interface SourcePlant {
  readonly owner: string
  readonly plant: NewPlant
}

/** A row of the file. */
export interface SourceRow {
  /** Where it is in the file, in words. */
  readonly place: string
  /** The plant, or why the row holds none. */
  readonly content: SourcePlant | string
}

export interface Source {
  /** Whether it is a snapshot that needs journals: a service ran when it was made. */
  readonly isPartial: boolean
  /** How many rows there are, if they could be counted. */
  readonly total: number | undefined
  /** The next rows; none after the last. */
  next(): Promise<readonly SourceRow[]>
  close(): Promise<void>
}

const READ_BYTES = 64 * 1024 * 1024
/** How long SQLite may take to open a file, or to read a batch of rows. */
const PATIENCE_MS = 30_000
/** Rows of a batch, and characters of their text: creates under way together, also to etcd. */
const BATCH_ROWS = 1000
const BATCH_CHARS = 8 * 1024 * 1024
/** How much of an owner a message repeats. */
const QUOTED_CHARS = 100

/**
 * Opens a SQLite file that has a table of plants.
 * @throws Error that says what is wrong with the file.
 */
export async function openSource(file: string, patienceMs = PATIENCE_MS): Promise<Source> {
  const bytes = await readWhole(file)
  const options = { workerData: { source: bytes }, transferList: [bytes.buffer] }
  const worker = new Worker(new URL(import.meta.url), options)
  // `once` below listens for the first error only.
  worker.on('error', () => {})
  const close = async (): Promise<void> => void (await worker.terminate())
  const ask = async (): Promise<unknown> => {
    try {
      const answered = once(worker, 'message', { signal: AbortSignal.timeout(patienceMs) })
      worker.postMessage('next')
      const [answer]: unknown[] = await answered
      return answer
    } catch (error) {
      await close()
      const late = `SQLite came to no end with it within ${patienceMs / 1000} s`
      const why = errorCodeOf(error) === 'ABORT_ERR' ? late : reasonOf(error)
      const what = `${file} cannot be read as a SQLite file with a table of plants`
      throw new Error(`${what}: ${why}`, { cause: error })
    }
  }
  // The thread runs `read` below: it answers first with this, and then with rows.
  const first = (await ask()) as Pick<Source, 'isPartial' | 'total'>
  return { ...first, close, next: async () => (await ask()) as readonly SourceRow[] }
}

/**
 * Reads a file that nothing writes to meanwhile.
 * @throws Error if it is no regular file, is too large, changes, or has a log with more changes.
 */
async function readWhole(file: string): Promise<Uint8Array<ArrayBuffer>> {
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  const handle = await open(file, constants.O_RDONLY | constants.O_NONBLOCK)
  try {
    const before = await handle.stat({ bigint: true })
    if (!before.isFile()) throw new Error(`${file} is not a regular file`)
    if (before.size > FILE_MAX_BYTES) {
      const what = `${file} is ${before.size} bytes long`
      throw new Error(`${what}, and at most ${FILE_MAX_BYTES} can be read`)
    }
    const bytes = await readBytes(handle, Number(before.size))
    await refuseLogs(file)
    const after = await handle.stat({ bigint: true })
    const isSame = before.mtimeNs === after.mtimeNs && before.size === after.size
    if (bytes && isSame) return bytes
    throw new Error(`${file} changed while it was read: stop what writes to it first`)
  } finally {
    await handle.close()
  }
}

/** Undefined if the file became shorter. */
async function readBytes(
  handle: FileHandle,
  length: number,
): Promise<Uint8Array<ArrayBuffer> | undefined> {
  const bytes = new Uint8Array(length)
  for (let at = 0; at < length; ) {
    const { bytesRead } = await handle.read(bytes, at, Math.min(length - at, READ_BYTES), at)
    if (bytesRead === 0) return undefined
    at += bytesRead
  }
  return bytes
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

// In the thread: one answer to each message. An error ends the thread, and `ask` throws it.
if (!isMainThread && parentPort && isJob(workerData)) {
  const port = parentPort
  const answers = read(workerData.source)
  port.on('message', () => void answers.next().then(({ value = [] }) => port.postMessage(value)))
}

function isJob(data: unknown): data is { readonly source: Uint8Array } {
  if (typeof data !== 'object' || data === null || !('source' in data)) return false
  return types.isUint8Array(data.source)
}

/** First what is known of all rows, then the rows. */
async function* read(
  bytes: Uint8Array,
): AsyncGenerator<Pick<Source, 'isPartial' | 'total'> | readonly SourceRow[]> {
  const { rows, total } = await openRows(bytes)
  const meta = await readMeta(bytes).catch(() => undefined)
  const isPartial = meta !== undefined && Number.isInteger(meta.format) && !meta.complete
  yield { isPartial, total }
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
