import type { Database, SqlJs } from 'sql.js'
import { attachMemory, countVerified, PlantDatabase } from './database.ts'
import { type DirectoryScan, scanDirectory } from './directory-scan.ts'
import type { File, Files } from './files.ts'
import type { Row } from './journal-format.ts'
import { PAGE_BYTES, PageFile } from './page-file.ts'
import { type OnProgress, replay, type Replay } from './recovery.ts'
import { createTables, FORMAT_VERSION, metaOf, seal, SNAPSHOT } from './snapshot.ts'
import { type Snapshot, upgradeTables, withPages } from './snapshot.ts'
import { loadSqlite, valueOf } from './sqlite.ts'
import { StoreDirectory, TEMPORARY } from './store-directory.ts'

export interface CompactionJob {
  readonly directory: string
  /** Journals up to this number are closed, and go into the snapshot. */
  readonly upToJournal: number
  /** The sequence that they must end with. */
  readonly sequence: number
  /** How many plants there must be then. */
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
  readonly plants: number
}

/** Makes the next snapshot. The signal abandons it where it is, as a crash would; it rejects. */
export type Compact = (job: CompactionJob, signal?: AbortSignal) => Promise<Compacted>

/**
 * Makes the next snapshot of the last one and the closed journals, in its temporary file. The
 * caller puts it in place, and then removes the journals. A crash before the rename leaves the old
 * snapshot and all journals; a crash after it leaves the new snapshot and journals that it covers.
 * Both recover to the same plants.
 */
export async function compact(files: Files, job: CompactionJob): Promise<Compacted> {
  const directory = new StoreDirectory(files, job.directory)
  const path = directory.pathOf(SNAPSHOT + TEMPORARY)
  return scanDirectory(directory, (scan) =>
    directory.writeTemporary(SNAPSHOT, async (file) => {
      const journals = scan.journals.filter((number) => number <= job.upToJournal)
      const { sequence, plants, bytes } = await makeSnapshot({ ...scan, journals }, path, file)
      if (sequence === job.sequence && plants === job.plants) return { bytes, plants }
      const wanted = `${job.plants} plants up to write ${job.sequence}`
      const found = `${plants} up to write ${sequence}`
      throw new Error(`snapshot and closed journals should have ${wanted}, and have ${found}`)
    }),
  )
}

/**
 * Makes a snapshot of all that a scan found. `path` is for messages.
 * @param complete whether it needs no journal, as an export
 */
export async function makeSnapshot(
  scan: DirectoryScan,
  path: string,
  file: File,
  complete = false,
  onProgress?: OnProgress,
): Promise<Replay & Compacted> {
  const library = await loadSqlite()
  const pages = new PageFile(path, file)
  if (scan.snapshot)
    for await (const block of scan.snapshot.pages.blocks(scan.snapshot.trailerAt))
      pages.write(block, pages.lengthBytes)
  else pages.write(emptyFile(library), 0)
  const db = pages.through(() => new library.Database(pages.bytes))
  try {
    const builder = pages.through(() => new SnapshotBuilder(db, pages, scan.snapshot))
    const replayed = await replay(scan, builder, onProgress)
    const { sequence } = replayed
    const plants = builder.finish(sequence, complete)
    // This was written last. A sql.js that worked on a copy would have written it there.
    const written = withPages(library, pages, metaOf)
    const isSame = written.sequence === sequence && written.complete === complete
    const isWhole = pages.lengthBytes === Number(valueOf(db, 'PRAGMA main.page_count')) * PAGE_BYTES
    if (!isSame || !isWhole || written.format !== FORMAT_VERSION)
      throw new Error('SQLite has not written all of the snapshot to its file')
    return { ...replayed, plants, bytes: await seal(pages, sequence) }
  } finally {
    db.close()
  }
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

/** Plants are moved to the file when they take this much memory. */
const MOVE_AT_BYTES = 32 * 1024 * 1024
/** In the order of the tree, so that each of its pages is read and written once. */
const MOVE = 'INSERT INTO main.plants SELECT * FROM mem.plants ORDER BY owner, id'

/** SQLite works on the disk. Only plants that are not in the file yet are in memory. */
class SnapshotBuilder {
  /** Its schema `main` is the file, and `mem` has the plants in memory. */
  readonly #db: Database
  readonly #pages: PageFile
  readonly #plants: PlantDatabase

  constructor(db: Database, pages: PageFile, snapshot: Snapshot | undefined) {
    db.run('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF')
    if (snapshot) upgradeTables(db, 'main', snapshot)
    attachMemory(db)
    createTables(db, 'mem')
    this.#db = db
    this.#pages = pages
    this.#plants = new PlantDatabase(db)
  }

  /** @throws Error if an id is taken. */
  insert(rows: readonly Row[]): void {
    this.#plants.insert(rows)
    if (this.#plants.usedPages * PAGE_BYTES > MOVE_AT_BYTES) this.#move()
  }

  /** Returns how many plants there are. SQLite verifies what it has written. */
  finish(sequence: number, complete: boolean): number {
    this.#move()
    return this.#pages.through(() => {
      this.#db.run(`REPLACE INTO main.meta VALUES ('format', ${FORMAT_VERSION}),
        ('sequence', ${sequence}), ('complete', ${complete ? 1 : 0})`)
      return countVerified(this.#db, 'main')
    })
  }

  #move(): void {
    this.#pages.through(() => this.#db.run(`${MOVE}; DELETE FROM mem.plants`))
  }
}
