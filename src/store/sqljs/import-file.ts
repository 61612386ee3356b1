/* The plants of a snapshot or an export, also of one that was edited with sqlite3. */

import { isUtf8 } from 'node:buffer'
import { basename, dirname } from 'node:path'
import { types } from 'node:util'
import type { Database } from 'sql.js'
import { countVerified } from './memory/database.ts'
import { scanDirectory } from './disk/directory-scan.ts'
import { nodeFiles } from './disk/files.ts'
import { journalNumber, type Row } from './disk/journal-format.ts'
import { PageFile } from './disk/page-file.ts'
import { replay } from './recovery.ts'
import { metaOf, SNAPSHOT, trailerOf } from './disk/snapshot.ts'
import { loadSqlite, Query, valueOf } from './sqlite/sqlite.ts'
import { StoreDirectory } from './disk/store-directory.ts'

/** A row of the file: a plant, or what is wrong with it. */
export interface ImportRow {
  readonly owner: string
  /** Decimal digits. */
  readonly id: string
  readonly name: string
  readonly tag: string | undefined
  readonly problem: string | undefined
}

export type ImportFile = Awaited<ReturnType<typeof openImportFile>>

/** Of a text, sql.js would drop a byte order mark, and replace what is not valid UTF-8. */
const ROWS = `
  SELECT CAST(id AS TEXT), CASE
    WHEN typeof(owner) <> 'text' OR owner = '' THEN 'owner must be text, and not empty'
    WHEN typeof(id) <> 'integer' THEN 'id must be an integer'
    WHEN typeof(name) <> 'text' THEN 'name must be text'
    WHEN typeof(tag) NOT IN ('text', 'null') THEN 'tag must be text or NULL' END,
    CAST(owner AS BLOB), CAST(name AS BLOB), CAST(tag AS BLOB)
  FROM main.plants NOT INDEXED`
/** True for a plain table with the four columns. A view or a generated column may run code. */
const IS_PLAIN = `
  SELECT (SELECT type FROM pragma_table_list('plants') WHERE schema = 'main') = 'table'
    AND (SELECT max(hidden) FROM pragma_table_xinfo('plants')) = 0
    AND (SELECT count(*) FROM pragma_table_xinfo('plants')
         WHERE name IN ('owner', 'id', 'name', 'tag')) = 4`

/**
 * The rows of the journals that go on from a snapshot in its directory. It may have been edited: it
 * is read as it is. A service may have put another one in its place since it was opened.
 * @throws StoreCorrupt if they do not go on from it.
 */
export async function rowsBeside(path: string, pages: PageFile): Promise<readonly ImportRow[]> {
  const directory = new StoreDirectory(nodeFiles, dirname(path))
  const names = await directory.list()
  const isSnapshot = basename(path) === SNAPSHOT
  if (!isSnapshot || names.every((name) => journalNumber(name) === undefined)) return []
  const found: ImportRow[] = []
  const insert = (rows: readonly Row[]): void => {
    for (const [owner, id, name, tag] of rows)
      found.push({ owner, id, name, tag, problem: undefined })
  }
  const asItIs = async () =>
    ({ ...(await pages.opened(metaOf)), pages, trailerAt: pages.lengthBytes, sha: '' })
  await scanDirectory(directory, (scan) => replay(scan, { insert }), asItIs)
  return found
}

/**
 * Reads and checks a file. `total` is how many rows it has, and `notes` are what the operator
 * should know of it. `rows` are to be read to their end.
 * @throws Error that says why it cannot be imported.
 */
export async function openImportFile(pages: PageFile, beside: readonly ImportRow[] = []) {
  const trailer = await trailerOf(pages)
  const { Database } = await loadSqlite()
  let db: Database | undefined
  try {
    db = new Database(pages.bytes)
    // What sqlite.org/security.html asks for, as far as it is not the default here.
    db.run('PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON')
    checkDatabase(db, pages.lengthBytes)
    const total = countVerified(db, 'main') + beside.length
    const notes: string[] = []
    if (trailer?.fits === false)
      notes.push('was changed after plant-store wrote it, by an edit or by a failing disk')
    const hasMeta = valueOf(db, "SELECT 1 FROM sqlite_schema WHERE name = 'meta'") === 1
    if (beside.length > 0)
      notes.push(`is no export: ${beside.length} plants of the journals beside it are read too`)
    else if (hasMeta && valueOf(db, "SELECT value FROM meta WHERE key = 'complete'") === 0)
      notes.push('is no export: what its journals hold is not in it, unless they are beside it')
    return { total, notes, rows: rowsOf(pages, db, beside) }
  } catch (error) {
    db?.close()
    throw pages.causeOf(error)
  }
}

function checkDatabase(db: Database, fileBytes: number): void {
  const bytes = Number(valueOf(db, 'PRAGMA page_count')) * Number(valueOf(db, 'PRAGMA page_size'))
  // SQLite reads zeros after the end of a file.
  if (bytes > fileBytes) throw new Error(`it is cut off after ${fileBytes} of ${bytes} bytes`)
  if (valueOf(db, 'PRAGMA encoding') !== 'UTF-8') throw new Error('it is not in UTF-8')
  if (valueOf(db, IS_PLAIN) !== 1)
    throw new Error('it has no plain table "plants" with owner, id, name and tag')
}

function* rowsOf(
  pages: PageFile,
  db: Database,
  beside: readonly ImportRow[],
): Generator<ImportRow, void> {
  try {
    for (const [id, problem, ...blobs] of new Query(db, ROWS).rows()) {
      const texts = blobs.map((blob) => (types.isUint8Array(blob) ? Buffer.from(blob) : undefined))
      const isValid = texts.every((text) => text === undefined || isUtf8(text))
      const wrong = isValid ? undefined : 'a text is not valid UTF-8'
      const [owner = '', name = '', tag] = texts.map((text) => text?.toString())
      yield { owner, id: String(id), name, tag, problem: problem ? String(problem) : wrong }
    }
    yield* beside
  } catch (error) {
    throw pages.causeOf(error)
  } finally {
    db.close()
  }
}
