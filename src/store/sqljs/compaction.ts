/* Makes a snapshot of the last one and the journals after it. */

import { isDeepStrictEqual } from 'node:util'
import type { Database, SqlJs } from 'sql.js'
import { ATTACH_MEMORY, countVerified, PlantDatabase } from './database.ts'
import { type DirectoryScan, scanDirectory } from './directory-scan.ts'
import type { File, Files } from './files.ts'
import type { Position, Row } from './journal-format.ts'
import type { LockPlace } from './lock.ts'
import { PAGE_BYTES, PageFile } from './page-file.ts'
import { type OnProgress, replay, type Replay } from './recovery.ts'
import { createTables, FORMAT_VERSION, type Meta, metaOf, type Replaced } from './snapshot.ts'
import { seal, upgradeTables, writeMeta } from './snapshot.ts'
import { loadSqlite, valueOf } from './sqlite.ts'
import { StoreDirectory } from './store-directory.ts'

/** Plants are moved to the file when they take this much memory. */
const MOVE_AT_BYTES = 32 * 1024 * 1024
/** In the order of the tree, so that each of its pages is read and written once. */
const MOVE = `INSERT INTO main.plants SELECT * FROM mem.plants ORDER BY owner, id;
  DELETE FROM mem.plants`

export interface CompactionJob {
  readonly directory: string
  /** The lock that must be held when the file is made. */
  readonly lock?: LockPlace | undefined
  /** The name of the file that is made. */
  readonly temporary: string
  /** Journals up to this number are closed, and go into the snapshot. */
  readonly upToJournal: number
  /** Where they end: with a new id, where the next journal begins. */
  readonly position: Position
  readonly replaced: Replaced
  /** How many plants there are then. */
  readonly plants: number
  /** Whether the store is being opened or closed, so that no request waits for this thread. */
  readonly isQuiet: boolean
  /** Length of the last snapshot; 0 without one. */
  readonly snapshotBytes: number
  /** Length of the journals. */
  readonly journalBytes: number
}

/** What a new snapshot has. */
export interface Compacted {
  readonly bytes: number
  /** Where the files end that it was made of. */
  readonly end: Position
  readonly plants: number
  /** The SHA-256 in its trailer, in hex. */
  readonly sha: string
}

/** Makes the next snapshot. The signal abandons it where it is, as a crash would; it rejects. */
export type Compact = (job: CompactionJob, signal?: AbortSignal) => Promise<Compacted>

/**
 * Makes the next snapshot of the last one and the closed journals, in its temporary file. The
 * caller puts it in place, and then removes the journals. A crash before the rename leaves the old
 * snapshot and all journals; a crash after it leaves the new snapshot and journals that it covers.
 * Both recover to the same plants.
 */
export function compact(files: Files, job: CompactionJob): Promise<Compacted> {
  const directory = new StoreDirectory(files, job.directory, job.lock)
  return scanDirectory(directory, (scan) => {
    const journals = scan.journals.filter(({ number }) => number <= job.upToJournal)
    const path = directory.pathOf(job.temporary)
    const { position, replaced } = job
    const meta = { format: FORMAT_VERSION, position, complete: false, replaced }
    const write = (file: File) => makeSnapshot({ ...scan, journals }, path, file, () => meta)
    return directory.writeTemporary(job.temporary, write)
  })
}

/** Makes a snapshot that needs no journal, of all that a scan found. It keeps the store's id. */
export function makeExport(scan: DirectoryScan, path: string, file: File, onProgress?: OnProgress) {
  const meta = { format: FORMAT_VERSION, complete: true, replaced: { id: 0, upToJournal: 0 } }
  return makeSnapshot(scan, path, file, (position) => ({ ...meta, position }), onProgress)
}

/**
 * Makes a snapshot of all that a scan found. `path` is for messages.
 * @param metaAt what it says, if the files end there
 */
async function makeSnapshot(
  scan: DirectoryScan,
  path: string,
  file: File,
  metaAt: (end: Position) => Meta,
  onProgress?: OnProgress,
): Promise<Replay & Compacted> {
  const pages = new PageFile(path, file)
  const { snapshot } = scan
  if (snapshot)
    for await (const block of snapshot.pages.blocks(snapshot.trailerAt))
      pages.write(block, pages.lengthBytes)
  else pages.write(emptyFile(await loadSqlite()), 0)
  return pages.opened(async (db) => {
    // SQLite works on the disk. Only plants that are not in the file yet are in memory.
    db.run(`PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; ${ATTACH_MEMORY}`)
    if (snapshot) upgradeTables(db, 'main', snapshot)
    createTables(db, 'mem')
    const added = new PlantDatabase(db)
    const insert = (rows: readonly Row[]): void => {
      added.insert(rows)
      if (added.usedPages * PAGE_BYTES > MOVE_AT_BYTES) db.run(MOVE)
    }
    const replayed = await replay(scan, { insert }, onProgress)
    db.run(MOVE)
    const meta = metaAt(replayed.end)
    writeMeta(db, meta)
    return { ...replayed, ...(await verified(db, pages, file, meta)) }
  })
}

/** Makes a snapshot of what memory holds. `path` is for messages. */
export async function saveMemory(
  database: PlantDatabase,
  path: string,
  file: File,
  position: Position,
  replaced: Replaced,
): Promise<Omit<Compacted, 'end'>> {
  const pages = new PageFile(path, file)
  const meta = { format: FORMAT_VERSION, position, complete: false, replaced }
  // Of an empty file sql.js would make a file of its own, in memory.
  pages.write(emptyFile(await loadSqlite()), 0)
  return database.copiedTo(pages, (db) => {
    writeMeta(db, meta)
    return verified(db, pages, file, meta)
  })
}

/** Ends a snapshot's file, if it holds what was written. `meta` was written last. */
async function verified(db: Database, pages: PageFile, file: File, meta: Meta) {
  // What the file holds, not what SQLite remembers of it.
  const [found, plants] = await pages.opened((written) => {
    return [metaOf(written), countVerified(written, 'main')] as const
  })
  const isSame = isDeepStrictEqual(found, meta)
  const isWhole = pages.lengthBytes === Number(valueOf(db, 'PRAGMA main.page_count')) * PAGE_BYTES
  if (!isSame || !isWhole)
    throw new Error('SQLite has not written all of the snapshot to its file')
  return { plants, ...(await seal(pages, file, meta.position.sequence)) }
}

/** Tables without plants. */
function emptyFile({ Database }: SqlJs): Uint8Array {
  const db = new Database()
  try {
    createTables(db, 'main')
    return db.export()
  } finally {
    db.close()
  }
}
