import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { memoryFile } from '../../dist/cli/export.js'
import { makeSnapshot } from '../../dist/store/sqljs/compaction.js'
import type { Row } from '../../dist/store/sqljs/journal-format.js'
import { scanDirectory } from '../../dist/store/sqljs/directory-scan.js'
import { type File, type Files, nodeFiles, writeWhole } from '../../dist/store/sqljs/files.js'
import { batchLine, headerLine, journalName } from '../../dist/store/sqljs/journal-format.js'
import { PageFile } from '../../dist/store/sqljs/page-file.js'
import { SNAPSHOT, type Snapshot } from '../../dist/store/sqljs/snapshot.js'
import { StoreDirectory, temporaryName } from '../../dist/store/sqljs/store-directory.js'

const LINE_ROWS = 10_000
const LINE_CHARS = 10 * 2 ** 20

/** A file in memory that has these bytes. */
export async function fileOf(bytes: Uint8Array): Promise<File> {
  const { memory } = memoryFile()
  await writeWhole(memory, bytes, 0)
  return memory
}

/** A database file without a trailer, as a store reads it. */
export async function sourceOf(bytes: Uint8Array, format = 3): Promise<Snapshot> {
  const pages = new PageFile('a.sqlite', await fileOf(bytes), bytes.length)
  return { format, pages, trailerAt: bytes.length, sequence: 1, complete: true }
}

/** Writes a snapshot, by default an export, of these plants after those of another one. */
export async function writeSnapshot(
  to: File,
  rows: Iterable<Row>,
  snapshot?: Snapshot,
  complete = true,
): Promise<number> {
  const first = (snapshot?.sequence ?? 0) + 1
  const lines = [headerLine(first)]
  let [batch, chars]: [Row[], number] = [[], 0]
  const flush = (): void => {
    if (batch.length > 0) lines.push(batchLine(first + lines.length - 1, batch))
    batch = []
    chars = 0
  }
  for (const row of rows) {
    batch.push(row)
    chars += row.join('').length
    if (batch.length === LINE_ROWS || chars > LINE_CHARS) flush()
  }
  flush()
  const journal = Buffer.concat(lines)
  // The directory has no file but its only journal.
  const files: Files = {
    ...nodeFiles,
    list: async () => [journalName(1)],
    read: async (_, maxBytes) => journal.subarray(0, maxBytes),
    open: () => Promise.reject(Object.assign(new Error('there is none'), { code: 'ENOENT' })),
  }
  const scan = await scanDirectory(new StoreDirectory(files, 'nowhere'), async (it) => it)
  return (await makeSnapshot({ ...scan, snapshot }, 'a.sqlite', to, complete)).bytes
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
