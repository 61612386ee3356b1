/* A new database file: a copy of a snapshot, to which the plants of journals are added. */

import type { Database, SqlJs } from 'sql.js'
import { attachMemory, copyOldRows, damageOf, FORMAT_VERSION, PlantDatabase } from './database.ts'
import { SAME_ID, type StoredRow, tablesIn } from './database.ts'
import type { File } from './files.ts'
import { type Meta, metaOf } from './meta.ts'
import { PAGE_BYTES, PageFile } from './page-file.ts'
import { seal, type Snapshot } from './snapshot.ts'
import { loadSqlite, valueOf } from './sqlite.ts'

/** Plants are added to the file when they take this much memory. */
const ADD_AT_BYTES = 32 * 1024 * 1024
/** Rows that are added at a time. Each may need a page of its own, and the file is synced often. */
const ADD_ROWS = 256
// In the order of the tree, so that each of its pages is read and written once.
const FIRST = (columns: string): string =>
  `SELECT ${columns} FROM mem.plants ORDER BY owner, id LIMIT ${ADD_ROWS}`
const ADD = `INSERT OR IGNORE INTO main.plants ${FIRST('*')}`
const REMOVE = `DELETE FROM mem.plants WHERE (owner, id) IN (${FIRST('owner, id')})`

/** SQLite works on the disk. Only plants that are not in the file yet are in memory. */
export class DatabaseFile {
  readonly #library: SqlJs
  /** Its schema `main` is the file, and `mem` has the plants in memory. */
  readonly #db: Database
  readonly #file: File
  readonly #pages: PageFile
  readonly #plants: PlantDatabase

  private constructor(library: SqlJs, db: Database, file: File, pages: PageFile) {
    this.#library = library
    this.#db = db
    this.#file = file
    this.#pages = pages
    this.#plants = new PlantDatabase(library, db)
  }

  /** Begins a file with the plants of a snapshot, if any. */
  static async begin(file: File, snapshot: Snapshot | undefined): Promise<DatabaseFile> {
    const library = await loadSqlite()
    const isOld = snapshot !== undefined && snapshot.version !== FORMAT_VERSION
    const pages = new PageFile(file)
    if (!snapshot || isOld) pages.write(emptyFile(library), 0)
    else
      for await (const piece of snapshot.pages.pieces(snapshot.trailerAt)) {
        pages.write(piece, pages.lengthBytes)
        await pages.syncIfDue()
      }
    return pages.through(async () => {
      const db = new library.Database(pages.bytes)
      try {
        db.run('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF')
        db.run('PRAGMA locking_mode = EXCLUSIVE')
        if (isOld) await copyOldRows(library, snapshot, db, 'main')
        attachMemory(db)
        db.run(tablesIn('mem'))
        return new DatabaseFile(library, db, file, pages)
      } catch (error) {
        db.close()
        throw error
      }
    })
  }

  /** Inserts plants of several batches. @throws Error if an id is taken. */
  async insert(rows: readonly StoredRow[]): Promise<void> {
    this.#plants.insert(rows)
    if (this.#plants.usedPages() * PAGE_BYTES > ADD_AT_BYTES) await this.#add()
  }

  /** Adds what is in memory, lets SQLite verify the file, and counts its plants. */
  async check(): Promise<number> {
    await this.#add()
    return this.#pages.through(() => {
      const verdict = valueOf(this.#db, 'PRAGMA main.integrity_check')
      if (verdict !== 'ok') throw new Error(damageOf(verdict))
      return Number(valueOf(this.#db, 'SELECT count(*) FROM main.plants'))
    })
  }

  /**
   * Adds what is in memory, and makes the file a snapshot, durable. Returns its length in bytes.
   * @throws Error if not all of it is in the file.
   */
  async finish({ sequence, complete }: Meta): Promise<number> {
    await this.#add()
    await this.#pages.through(() => {
      this.#db.run(`REPLACE INTO main.meta VALUES ('format', ${FORMAT_VERSION}),
        ('sequence', ${sequence}), ('complete', ${complete ? 1 : 0})`)
      // It was written last. A sql.js that went on in a copy would have written it there.
      const written = metaOf(this.#library, this.#pages.bytes)
      const bytes = Number(valueOf(this.#db, 'PRAGMA main.page_count')) * PAGE_BYTES
      const isSame = written.sequence === sequence && written.complete === complete
      if (!isSame || bytes !== this.#pages.lengthBytes)
        throw new Error('SQLite has not written all of the snapshot to its file')
    })
    return seal(this.#pages, this.#file, sequence)
  }

  close(): void {
    this.#plants.close()
  }

  async #add(): Promise<void> {
    let added = 0
    do {
      await this.#pages.through(() => this.#db.run(ADD))
      added = this.#db.getRowsModified()
      this.#db.run(REMOVE)
      if (this.#db.getRowsModified() !== added) throw new Error(SAME_ID)
      await this.#pages.syncIfDue()
    } while (added > 0)
  }
}

/** Tables without plants. */
function emptyFile({ Database }: SqlJs): Uint8Array {
  const db = new Database()
  try {
    db.run(tablesIn('main'))
    return db.export()
  } finally {
    db.close()
  }
}
