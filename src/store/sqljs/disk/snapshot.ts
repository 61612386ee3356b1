import { createHash } from 'node:crypto'
import type { Database } from 'sql.js'
import type { File } from './files.ts'
import { checkVersion, RESTORE, StoreCorrupt } from './journal-format.ts'
import { PageFile } from './page-file.ts'
import { type Schema, valueOf } from '../sqlite/sqlite.ts'

/*
 * A snapshot is an ordinary SQLite file with a trailer of 64 bytes after its last page. SQLite
 * ignores the trailer; a start verifies it: magic (16 bytes), version (uint32), zero (uint32),
 * sequence (uint64), SHA-256 of all before it. Big-endian.
 */
export const SNAPSHOT = 'plants.sqlite'
/**
 * Version 2 had a column `sequence` in its table of plants. The tables of 1 are those of 3 and 4.
 * Only 4 has an id and a running checksum.
 */
export const FORMAT_VERSION = 4
export const READABLE_VERSIONS: readonly number[] = [1, 2, 3, FORMAT_VERSION]
const MAGIC = Buffer.from('plant-store snap')
const SHA_BYTES = 32
const SEQUENCE_AT = MAGIC.length + 8
const TRAILER_BYTES = SEQUENCE_AT + 8 + SHA_BYTES

export type Meta = Readonly<ReturnType<typeof metaOf>>
export type Snapshot = Readonly<Awaited<ReturnType<typeof readSnapshot>>>

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

/**
 * What the table `meta` of a snapshot says: the version of its format, the last batch that it
 * holds, and whether it needs no journal.
 */
export function metaOf(db: Database) {
  const value = (key: string): number =>
    Number(valueOf(db, `SELECT value FROM main.meta WHERE key = '${key}'`) ?? 0)
  return {
    format: value('format'),
    position: { id: value('id'), sequence: value('sequence'), checksum: value('checksum') },
    complete: value('complete') === 1,
  }
}

export function writeMeta(db: Database, { format, position, complete }: Meta): void {
  db.run(`REPLACE INTO main.meta VALUES ('format', ${format}), ('id', ${position.id}),
    ('sequence', ${position.sequence}), ('checksum', ${position.checksum}),
    ('complete', ${Number(complete)})`)
}

/** Hashes blocks, each after what is to be done with it. */
async function hashOf(blocks: AsyncIterable<Buffer>, use: (block: Buffer) => void = () => {}) {
  const hash = createHash('sha256')
  for await (const block of blocks) {
    use(block)
    hash.update(block)
  }
  return hash
}

/** Ends the file of a database with its trailer. Returns its length, and the SHA-256 in hex. */
export async function seal(pages: PageFile, sequence: number) {
  const trailer = Buffer.alloc(TRAILER_BYTES - SHA_BYTES)
  MAGIC.copy(trailer)
  trailer.writeUInt32BE(FORMAT_VERSION, MAGIC.length)
  trailer.writeBigUInt64BE(BigInt(sequence), SEQUENCE_AT)
  const hash = await hashOf(pages.blocks())
  const sha = hash.update(trailer).digest()
  pages.write(Buffer.concat([trailer, sha]), pages.lengthBytes)
  return { bytes: pages.lengthBytes, sha: sha.toString('hex') }
}

/**
 * What the trailer of a file says; undefined without one, as in a file that SQLite has made. It has
 * the SHA-256, in hex, if all bytes are as they were written.
 */
export async function trailerOf(pages: PageFile) {
  const { lengthBytes } = pages
  const hash = await hashOf(pages.blocks(lengthBytes - SHA_BYTES))
  const bytes = Buffer.from(pages.read(Math.max(lengthBytes - TRAILER_BYTES, 0), lengthBytes))
  if (!bytes.subarray(0, MAGIC.length).equals(MAGIC)) return undefined
  const sha = bytes.toString('hex', TRAILER_BYTES - SHA_BYTES)
  const fits = hash.digest('hex') === sha
  return { version: bytes.readUInt32BE(MAGIC.length), sha: fits ? sha : undefined }
}

/** The SHA-256 of an open file, if it is a snapshot whose bytes are as they were written. */
export async function shaOf(path: string, file: File): Promise<string | undefined> {
  return (await trailerOf(new PageFile(path, file, await file.lengthBytes())))?.sha
}

/**
 * Reads and verifies a snapshot, of which no more than a block is in memory. `pages` are the whole
 * file, which is open only while its directory is scanned; the SQLite file ends at `trailerAt`, and
 * `sha` is the SHA-256 in the trailer, in hex.
 * @throws StoreCorrupt if any byte is not as it was written, or the version is unknown.
 */
export async function readSnapshot(path: string, file: File) {
  const pages = new PageFile(path, file, await file.lengthBytes())
  const trailerAt = Math.max(pages.lengthBytes - TRAILER_BYTES, 0)
  const trailer = await trailerOf(pages)
  if (trailer?.sha === undefined) {
    const what = 'the checksum after the last page does not fit'
    const edited = 'Only if another program changed this file on purpose, run'
    const copy = '"plant-store import" on a copy, into another directory'
    const lost = 'it has no plants of its journals'
    throw new StoreCorrupt(path, trailerAt, what, `${RESTORE}. ${edited} ${copy}: ${lost}`)
  }
  const { version, sha } = trailer
  checkVersion(path, trailerAt + MAGIC.length, version, READABLE_VERSIONS)
  // The SHA-256 is of the meta table and of the version: they are of one writer.
  return { ...(await pages.opened(metaOf)), pages, trailerAt, sha }
}

/** Copies a snapshot's SQLite file. @throws Error if a byte is not as it was verified. */
export async function copySnapshot({ pages, trailerAt, sha }: Snapshot, to: PageFile) {
  const hash = await hashOf(pages.blocks(trailerAt), (block) => to.write(block, to.lengthBytes))
  hash.update(pages.read(trailerAt, pages.lengthBytes - SHA_BYTES))
  if (hash.digest('hex') === sha) return
  const what = `${SNAPSHOT} is not as it was when it was verified`
  throw new Error(`${what}: the disk fails, or something else writes to the file`)
}
