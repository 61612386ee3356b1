/* Makes a snapshot of the last one and the journals after it. */

import { isDeepStrictEqual } from 'node:util'
import type { Database, SqlJs } from 'sql.js'
import { ATTACH_MEMORY, countVerified, PlantDatabase } from './memory/database.ts'
import type { Files } from './disk/files.ts'
import type { Position, Row } from './disk/journal-format.ts'
import type { LockPlace } from './disk/lock.ts'
import { PAGE_BYTES, PageFile } from './disk/page-file.ts'
import { type DirectoryScan, type OnProgress, refusingTaken } from './recovery.ts'
import { replay, scanDirectory } from './recovery.ts'
import { copySnapshot, createTables, FORMAT_VERSION, type Meta } from './disk/snapshot.ts'
import { metaOf, seal, SNAPSHOT, upgradeTables, writeMeta } from './disk/snapshot.ts'
import { loadSqlite, valueOf } from './sqlite/sqlite.ts'
import { StoreDirectory } from './disk/store-directory.ts'

/** Plants are moved to the file when they take this much memory. */
const MOVE_AT_BYTES = 32 * 1024 * 1024
/** In the order of the tree, so that each of its pages is read and written once. */
const MOVE = `INSERT INTO main.plants SELECT * FROM mem.plants ORDER BY owner, id;
  DELETE FROM mem.plants`

/** Which snapshot is to be made. */
export interface CompactionJob {
  /** The name of its file until it is in place. */
  readonly temporary: string
  /** What it holds ends there: with a new id, where the next journal begins. */
  readonly position: Position
  readonly directory: string
  /** The lock that must be held when the file is made. */
  readonly lock?: LockPlace | undefined
  /** Journals up to this number are closed, and go into the snapshot. */
  readonly upToJournal: number
  /** Length of the journals. */
  readonly journalBytes: number
}

/** What a new snapshot has: its bytes, plants and SHA-256, and where that ends it was made of. */
export type Compacted = Readonly<Awaited<ReturnType<typeof saveMemory>>>

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
    return directory.writeTemporary(job.temporary, (file) => {
      const pages = new PageFile(directory.pathOf(job.temporary), file)
      return makeSnapshot({ ...scan, journals }, pages, job.position)
    })
  })
}

/**
 * Makes a snapshot of all that a scan found, in a new file.
 * @param begin where the next journal begins; without one it is an export, and needs no journal
 */
export async function makeSnapshot(
  scan: DirectoryScan,
  pages: PageFile,
  begin?: Position,
  onProgress?: OnProgress,
) {
  const { snapshot } = scan
  if (snapshot) await copySnapshot(snapshot, pages)
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
    const source = scan.directory.pathOf(SNAPSHOT)
    refusingTaken(source, snapshot?.trailerAt ?? 0, () => db.run(MOVE))
    return { ...replayed, ...(await finished(db, pages, begin ?? replayed.end, !begin)) }
  })
}

/** Makes a snapshot of what memory holds. */
export async function saveMemory(
  database: PlantDatabase,
  directory: StoreDirectory,
  temporary: string,
  position: Position,
  complete: boolean,
) {
  // Of an empty file sql.js would make a file of its own, in memory.
  const empty = emptyFile(await loadSqlite())
  return directory.writeTemporary(temporary, async (file) => {
    const pages = new PageFile(directory.pathOf(temporary), file)
    pages.write(empty, 0)
    const made = await database.copiedTo(pages, (db) => finished(db, pages, position, complete))
    return { ...made, end: position }
  })
}

/** Ends a snapshot's file, if it holds what was written. */
async function finished(db: Database, pages: PageFile, position: Position, complete: boolean) {
  const meta: Meta = { format: FORMAT_VERSION, position, complete }
  writeMeta(db, meta)
  // What the file holds, not what SQLite remembers of it.
  const [found, plants] = await pages.opened((written) => {
    return [metaOf(written), countVerified(written, 'main')] as const
  })
  const isSame = isDeepStrictEqual(found, meta)
  const isWhole = pages.lengthBytes === Number(valueOf(db, 'PRAGMA main.page_count')) * PAGE_BYTES
  if (!isSame || !isWhole)
    throw new Error('SQLite has not written all of the snapshot to its file')
  return { plants, ...(await seal(pages, position.sequence)) }
}

/** Tables without plants. */
function emptyFile({ Database }: SqlJs): Uint8Array {
  const db = new Database()
  createTables(db, 'main')
  const file = db.export()
  db.close()
  return file
}
