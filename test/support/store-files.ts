import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { memoryFile } from '../../dist/cli/export.js'
import type { Row, StoredRow } from '../../dist/store/sqljs/database.js'
import { DatabaseFile } from '../../dist/store/sqljs/database-file.js'
import { type File, nodeFiles, writeWhole } from '../../dist/store/sqljs/files.js'
import { PageFile } from '../../dist/store/sqljs/page-file.js'
import { SNAPSHOT, type Snapshot } from '../../dist/store/sqljs/snapshot.js'
import { StoreDirectory } from '../../dist/store/sqljs/store-directory.js'

const INSERT_ROWS = 10_000

/** Inserts the plants of one batch. @throws Error if an id is taken. */
export function insertAs(
  database: { insert(rows: readonly StoredRow[]): void },
  rows: readonly Row[],
  sequence: number,
): void {
  database.insert(rows.map((row) => ({ row, sequence })))
}

/** A file in memory that has these bytes. */
export async function fileOf(bytes: Uint8Array): Promise<File> {
  const { memory } = memoryFile()
  await writeWhole(memory, bytes, 0)
  return memory
}

/** A database file without a trailer, as a store reads it. */
export async function sourceOf(bytes: Uint8Array, version = 2): Promise<Snapshot> {
  const pages = new PageFile('a.sqlite', await fileOf(bytes), bytes.length)
  return { version, pages, trailerAt: bytes.length, sequence: 1, complete: true }
}

/** The bytes of a snapshot with these plants, without its trailer. */
export async function databaseOf(
  rows: readonly Row[],
  meta = { sequence: 1, complete: true },
): Promise<Buffer> {
  const { memory, bytes } = memoryFile()
  const database = await DatabaseFile.begin('a.sqlite', memory)
  insertAs(database, rows, meta.sequence)
  await database.finish(meta)
  database.close()
  return Buffer.from(bytes.subarray(0, -64))
}

/** Writes the directory that a clean stop leaves of these plants. Returns the snapshot's path. */
export async function writeStore(directory: string, rows: Iterable<Row>): Promise<string> {
  mkdirSync(directory, { recursive: true })
  const place = new StoreDirectory(nodeFiles, directory)
  await place.writeTemporary(SNAPSHOT, async (file) => {
    const database = await DatabaseFile.begin('a.sqlite', file)
    let batch: Row[] = []
    for (const row of rows) {
      if (batch.push(row) < INSERT_ROWS) continue
      insertAs(database, batch, 1)
      batch = []
    }
    insertAs(database, batch, 1)
    await database.finish({ sequence: 1, complete: true })
    database.close()
  })
  await place.renameIntoPlace(SNAPSHOT)
  return join(directory, SNAPSHOT)
}

/** `count` rows, each made from its index. */
export function* rowsOf(count: number, row: (index: number) => Row): Generator<Row> {
  for (let index = 0; index < count; index++) yield row(index)
}
