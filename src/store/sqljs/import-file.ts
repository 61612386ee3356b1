/* The plants of a snapshot or an export, also of one that was edited with sqlite3. */

import { isUtf8 } from 'node:buffer'
import { readdir, stat } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import { types } from 'node:util'
import type { Database, Value } from 'sql.js'
import { countVerified } from './memory/database.ts'
import { journalNumber } from './disk/journal-format.ts'
import { SQLITE_LOGS } from './disk/new-file.ts'
import { FILE_MAX_BYTES, type PageFile } from './disk/page-file.ts'
import { SNAPSHOT, trailerOf } from './disk/snapshot.ts'
import { Query, valueOf } from './sqlite/sqlite.ts'

/** A row of the file: a plant, its id in decimal digits, and what is wrong with it. */
export type ImportRow = Readonly<ReturnType<typeof rowOf>>
export type ImportFile = Awaited<ReturnType<typeof readImportFile>>

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
 * Checks a file before it is opened: opening a FIFO waits for a writer. Journals beside a snapshot
 * are not read: a service may be writing to them.
 * @throws Error that says why it cannot be imported.
 */
export async function checkBeforeOpening(file: string): Promise<void> {
  const found = await stat(file)
  if (!found.isFile() || found.size > FILE_MAX_BYTES)
    throw new Error(`it is no regular file of at most ${FILE_MAX_BYTES} bytes`)
  for (const ending of SQLITE_LOGS) {
    const log = await stat(file + ending).catch(() => undefined)
    if (log && log.size > 0)
      throw new Error(`${file}${ending} holds changes: let sqlite3 write them to the file first`)
  }
  if (basename(file) !== SNAPSHOT) return
  const names = await readdir(dirname(file))
  if (names.every((name) => journalNumber(name) === undefined)) return
  const advice = 'export from that directory (it may be in use), or, if this file was edited on'
  const copy = 'purpose, import a copy in a folder of its own'
  throw new Error(`the journals beside it may hold more plants: ${advice} ${copy}`)
}

/**
 * Checks a file's database. `total` is how many rows it has, and `notes` are what the operator
 * should know of it.
 * @throws Error that says why it cannot be imported.
 */
export async function readImportFile(pages: PageFile, db: Database) {
  const trailer = await trailerOf(pages)
  // What sqlite.org/security.html asks for, as far as it is not the default here.
  db.run('PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON')
  const bytes = Number(valueOf(db, 'PRAGMA page_count')) * Number(valueOf(db, 'PRAGMA page_size'))
  // SQLite reads zeros after the end of a file.
  if (bytes > pages.lengthBytes)
    throw new Error(`it is cut off after ${pages.lengthBytes} of ${bytes} bytes`)
  if (valueOf(db, 'PRAGMA encoding') !== 'UTF-8') throw new Error('it is not in UTF-8')
  if (valueOf(db, IS_PLAIN) !== 1)
    throw new Error('it has no plain table "plants" with owner, id, name and tag')
  const total = countVerified(db, 'main')
  const notes: string[] = []
  if (trailer && trailer.sha === undefined)
    notes.push('was changed after plant-store wrote it, by an edit or by a failing disk')
  const hasMeta = valueOf(db, "SELECT 1 FROM sqlite_schema WHERE name = 'meta'") === 1
  if (hasMeta && valueOf(db, "SELECT value FROM meta WHERE key = 'complete'") === 0)
    notes.push('is no export: what its journals hold is not in it')
  return { total, notes, rows: rowsOf(db) }
}

function* rowsOf(db: Database): Generator<ImportRow, void> {
  for (const row of new Query(db, ROWS).rows()) yield rowOf(row)
}

function rowOf([id, problem, ...blobs]: readonly Value[]) {
  const texts = blobs.map((blob) => (types.isUint8Array(blob) ? Buffer.from(blob) : undefined))
  const isValid = texts.every((text) => text === undefined || isUtf8(text))
  const wrong = isValid ? undefined : 'a text is not valid UTF-8'
  const [owner = '', name = '', tag] = texts.map((text) => text?.toString())
  return { owner, id: String(id), name, tag, problem: problem ? String(problem) : wrong }
}
