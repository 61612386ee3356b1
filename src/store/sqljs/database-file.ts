/* A new database file: a copy of a snapshot, to which the plants of journals are added. */

import type { Database, SqlJs } from 'sql.js'
import { attachMemory, copyOldRows, countVerified, FORMAT_VERSION } from './database.ts'
import { PlantDatabase, SAME_ID, type StoredRow, tablesIn } from './database.ts'
import type { File } from './files.ts'
import { type Meta, metaOf } from './meta.ts'
import { PAGE_BYTES, PageFile } from './page-file.ts'
import { seal, type Snapshot } from './snapshot.ts'
import { loadSqlite, valueOf } from './sqlite.ts'

/** Plants are added to the file when they take this much memory. */
const ADD_AT_BYTES = 32 * 1024 * 1024
/** In the order of the tree, so that each of its pages is read and written once. */
const ADD = 'INSERT OR IGNORE INTO main.plants SELECT * FROM mem.plants ORDER BY owner, id'

/** SQLite works on the disk. Only plants that are not in the file yet are in memory. */
export class DatabaseFile {
  readonly #library: SqlJs
  /** Its schema `main` is the file, and `mem` has the plants in memory. */
  readonly #db: Database
  readonly #pages: PageFile
  readonly #plants: PlantDatabase

  private constructor(library: SqlJs, db: Database, pages: PageFile) {
    this.#library = library
    this.#db = db
    this.#pages = pages
    this.#plants = new PlantDatabase(library, db)
  }

  /** Begins a file with the plants of a snapshot, if any. `path` is for messages. */
  static async begin(path: string, file: File, snapshot?: Snapshot): Promise<DatabaseFile> {
    const library = await loadSqlite()
    const isOld = snapshot !== undefined && snapshot.version !== FORMAT_VERSION
    const pages = new PageFile(path, file)
    if (!snapshot || isOld) pages.write(emptyFile(library), 0)
    else
      for await (const block of snapshot.pages.blocks(snapshot.trailerAt))
        pages.write(block, pages.lengthBytes)
    return pages.through(() => {
      const db = new library.Database(pages.bytes)
      try {
        db.run('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF')
        attachMemory(db)
        if (isOld) copyOldRows(library, snapshot, db)
        return new DatabaseFile(library, db, pages)
      } catch (error) {
        db.close()
        throw error
      }
    })
  }

  /** Inserts plants of several batches. @throws Error if an id is taken. */
  insert(rows: readonly StoredRow[]): void {
    this.#plants.insert(rows)
    if (this.#plants.usedPages() * PAGE_BYTES > ADD_AT_BYTES) this.#add()
  }

  /** Adds what is in memory, lets SQLite verify the file, and counts its plants. */
  check(): number {
    this.#add()
    return this.#pages.through(() => countVerified(this.#db, 'main'))
  }

  /**
   * Adds what is in memory, and makes the file a snapshot, durable. Returns its length in bytes.
   * @throws Error if not all of it is in the file.
   */
  async finish({ sequence, complete }: Meta): Promise<number> {
    this.#add()
    this.#pages.through(() => {
      this.#db.run(`REPLACE INTO main.meta VALUES ('format', ${FORMAT_VERSION}),
        ('sequence', ${sequence}), ('complete', ${complete ? 1 : 0})`)
      // It was written last. A sql.js that went on in a copy would have written it there.
      const written = metaOf(this.#library, this.#pages.bytes)
      const bytes = Number(valueOf(this.#db, 'PRAGMA main.page_count')) * PAGE_BYTES
      const isSame = written.sequence === sequence && written.complete === complete
      if (!isSame || bytes !== this.#pages.lengthBytes)
        throw new Error('SQLite has not written all of the snapshot to its file')
    })
    return seal(this.#pages, sequence)
  }

  close(): void {
    this.#plants.close()
  }

  #add(): void {
    const { count } = this.#plants
    this.#pages.through(() => this.#db.run(ADD))
    if (this.#db.getRowsModified() !== count) throw new Error(SAME_ID)
    this.#db.run('DELETE FROM mem.plants')
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
