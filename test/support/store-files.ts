import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { crc32 } from 'node:zlib'
import initSqlJs from 'sql.js'
import { memoryFile } from '../../dist/cli/export.js'
import { makeSnapshot } from '../../dist/store/sqljs/compaction.js'
import { type File, nodeFiles, writeWhole } from '../../dist/store/sqljs/disk/files.js'
import { batchLine, headLines } from '../../dist/store/sqljs/disk/journal-format.js'
import { NOWHERE, type Row } from '../../dist/store/sqljs/disk/journal-format.js'
import { PageFile } from '../../dist/store/sqljs/disk/page-file.js'
import { seal, SNAPSHOT, type Snapshot } from '../../dist/store/sqljs/disk/snapshot.js'
import { StoreDirectory, temporaryName } from '../../dist/store/sqljs/disk/store-directory.js'
import type { DirectoryScan } from '../../dist/store/sqljs/recovery.js'

const LINE_CHARS = 2 ** 16

/** The bytes of the SQLite file that these statements make. */
export async function sqliteFile(sql: string): Promise<Buffer> {
  const database = new (await initSqlJs()).Database()
  database.run(sql)
  const bytes = Buffer.from(database.export())
  database.close()
  return bytes
}

/** A file in memory that has these bytes. */
export async function fileOf(bytes: Uint8Array): Promise<File> {
  const { memory } = memoryFile()
  await writeWhole(memory, bytes, 0)
  return memory
}

/** A snapshot of a database file, as a store reads it. */
export async function sourceOf(bytes: Uint8Array, format = 4): Promise<Snapshot> {
  const pages = new PageFile('a.sqlite', await fileOf(bytes), bytes.length)
  const position = { id: 7, sequence: 1, checksum: 0 }
  const meta = { format, position, complete: true }
  const { sha } = await seal(pages, position.sequence)
  return { ...meta, pages, trailerAt: bytes.length, sha }
}

/** The first line of a journal of version 1, which is its whole head. */
export function oldHead(firstSequence: number): Buffer {
  const text = `plant-store-journal 1 ${firstSequence}`
  return Buffer.from(`${text} ${crc32(text).toString(16).padStart(8, '0')}\n`)
}

/** Writes an export of these plants after those of another one. */
export async function writeSnapshot(
  to: File,
  rows: Iterable<Row>,
  snapshot?: Snapshot,
): Promise<number> {
  const begin = snapshot?.position ?? NOWHERE
  const head = begin.id === 0 ? oldHead(1) : headLines(begin)
  const lines = [head]
  let [batch, chars]: [Row[], number] = [[], 0]
  const flush = (): void => {
    if (batch.length > 0) lines.push(batchLine(begin.sequence + lines.length, batch))
    batch = []
    chars = 0
  }
  for (const row of rows) {
    batch.push(row)
    chars += row.join('').length
    if (chars > LINE_CHARS) flush()
  }
  flush()
  const file = await fileOf(Buffer.concat(lines))
  const place = { name: 'a.log', number: 1, isEmpty: false, isCovered: false, isLast: true }
  const journal = { ...place, file, begin, headBytes: head.length }
  const scan: DirectoryScan = {
    directory: new StoreDirectory(nodeFiles, 'nowhere'),
    snapshot,
    journals: [journal],
  }
  return (await makeSnapshot(scan, new PageFile('a.sqlite', to))).bytes
}

/** The bytes of an export with these plants, without its trailer. */
export async function databaseOf(rows: Iterable<Row>, snapshot?: Snapshot): Promise<Buffer> {
  const { memory, bytes } = memoryFile()
  await writeSnapshot(memory, rows, snapshot)
  return Buffer.from(bytes.subarray(0, -64))
}

/** Writes the directory of an export that was put back. Returns the snapshot's path. */
export async function writeStore(directory: string, rows: Iterable<Row>): Promise<string> {
  mkdirSync(directory, { recursive: true })
  const place = new StoreDirectory(nodeFiles, directory)
  const temporary = temporaryName(SNAPSHOT)
  await place.writeTemporary(temporary, (file) => writeSnapshot(file, rows))
  await place.renameIntoPlace(temporary, SNAPSHOT)
  return join(directory, SNAPSHOT)
}

/** `count` rows, each made from its index. */
export function* rowsOf(count: number, row: (index: number) => Row): Generator<Row> {
  for (let index = 0; index < count; index++) yield row(index)
}
