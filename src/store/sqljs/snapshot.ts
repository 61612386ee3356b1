import { createHash } from 'node:crypto'
import type { Database } from 'sql.js'
import { type File, writeWhole } from './files.ts'
import { OTHER_RELEASE, otherVersion, RESTORE, StoreCorrupt } from './journal-format.ts'
import { PageFile } from './page-file.ts'
import { valueOf } from './sqlite.ts'

/*
 * A snapshot is an ordinary SQLite file with a trailer of 64 bytes after its last page. SQLite
 * ignores the trailer; a start verifies it: magic (16 bytes), version (uint32), zero (uint32),
 * sequence (uint64), SHA-256 of all before it. Big-endian.
 */
export const SNAPSHOT = 'plants.sqlite'
/** Version 2 had a column `sequence` in its table of plants. The tables of 1 are those of 3. */
export const FORMAT_VERSION = 3
export const READABLE_VERSIONS: readonly number[] = [1, 2, FORMAT_VERSION]
const MAGIC = Buffer.from('plant-store snap')
const SHA_BYTES = 32
const TRAILER_BYTES = MAGIC.length + 16 + SHA_BYTES

/** `main` is a file, `mem` is in memory. */
export type Schema = 'main' | 'mem'

export interface Snapshot {
  /** The version of the snapshot's format. */
  readonly format: number
  /** The last batch that it holds. */
  readonly sequence: number
  /** Whether it needs no journal: `export` made it, or 2.0.0 when it stopped. */
  readonly complete: boolean
  /** The whole file, verified. It is open only while its directory is scanned. */
  readonly pages: PageFile
  /** Where the SQLite file ends. */
  readonly trailerAt: number
}

export function createTables(db: Database, schema: Schema): void {
  db.run(`
    CREATE TABLE ${schema}.plants (
      owner TEXT NOT NULL, id INTEGER NOT NULL, name TEXT NOT NULL, tag TEXT,
      PRIMARY KEY (owner, id)) WITHOUT ROWID;
    CREATE TABLE ${schema}.meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;`)
}

/** Makes the tables of an older version those of this one. */
export function upgradeTables(db: Database, schema: Schema, { format }: Snapshot): void {
  if (format === 2) db.run(`ALTER TABLE ${schema}.plants DROP COLUMN sequence`)
}

/** What the table `meta` of a file says. */
export function metaOf(db: Database): Omit<Snapshot, 'pages' | 'trailerAt'> {
  const value = (key: keyof Snapshot): number =>
    Number(valueOf(db, `SELECT value FROM main.meta WHERE key = '${key}'`))
  return { format: value('format'), sequence: value('sequence'), complete: value('complete') === 1 }
}

/** Ends the file of a database with its trailer. Returns the file's length in bytes. */
export async function seal(pages: PageFile, file: File, sequence: number): Promise<number> {
  const trailer = Buffer.alloc(TRAILER_BYTES - SHA_BYTES)
  MAGIC.copy(trailer)
  trailer.writeUInt32BE(FORMAT_VERSION, MAGIC.length)
  trailer.writeBigUInt64BE(BigInt(sequence), MAGIC.length + 8)
  const hash = createHash('sha256')
  for await (const block of pages.blocks()) hash.update(block)
  const sha = hash.update(trailer).digest()
  await writeWhole(file, Buffer.concat([trailer, sha]), pages.lengthBytes)
  return pages.lengthBytes + TRAILER_BYTES
}

/** What the trailer of a file says; `none` without one, as in a file that SQLite has made. */
export async function checksumOf(pages: PageFile): Promise<'none' | 'fits' | 'differs'> {
  const hash = createHash('sha256')
  for await (const block of pages.blocks(pages.lengthBytes - SHA_BYTES)) hash.update(block)
  const trailer = trailerOf(pages)
  if (!trailer.subarray(0, MAGIC.length).equals(MAGIC)) return 'none'
  return hash.digest().equals(trailer.subarray(-SHA_BYTES)) ? 'fits' : 'differs'
}

function trailerOf(pages: PageFile): Buffer {
  const { lengthBytes } = pages
  return Buffer.from(pages.read(Math.max(lengthBytes - TRAILER_BYTES, 0), lengthBytes))
}

/**
 * Reads and verifies a snapshot, of which no more than a block is in memory.
 * @throws StoreCorrupt if any byte is not as it was written, or the version is unknown.
 */
export async function readSnapshot(path: string, file: File): Promise<Snapshot> {
  const pages = new PageFile(path, file, await file.lengthBytes())
  const trailerAt = Math.max(pages.lengthBytes - TRAILER_BYTES, 0)
  if ((await checksumOf(pages)) !== 'fits') {
    const what = 'the checksum after the last page does not fit'
    const edited = 'Only if this file was edited on purpose, run "plant-store import" on it instead'
    throw new StoreCorrupt(path, trailerAt, what, `${RESTORE}. ${edited}`)
  }
  const trailer = trailerOf(pages)
  const version = trailer.readUInt32BE(MAGIC.length)
  if (!READABLE_VERSIONS.includes(version)) {
    const what = otherVersion(version, READABLE_VERSIONS.join(', '))
    throw new StoreCorrupt(path, trailerAt + MAGIC.length, what, OTHER_RELEASE)
  }
  const meta = await pages.opened(metaOf)
  const sequence = trailer.readBigUInt64BE(MAGIC.length + 8)
  if (meta.format !== version || BigInt(meta.sequence) !== sequence)
    throw new StoreCorrupt(path, trailerAt, 'its meta table and its trailer differ')
  return { ...meta, pages, trailerAt }
}
