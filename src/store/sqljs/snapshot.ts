import { createHash } from 'node:crypto'
import { FORMAT_VERSION, READABLE_VERSIONS } from './database.ts'
import type { File } from './files.ts'
import { OTHER_RELEASE, otherVersion, RESTORE, StoreCorrupt } from './journal-format.ts'
import { type Meta, metaOf } from './meta.ts'
import { PageFile } from './page-file.ts'
import { loadSqlite } from './sqlite.ts'

/*
 * A snapshot is an ordinary SQLite file with a trailer of 64 bytes after its last page. SQLite
 * ignores the trailer; a start verifies it: magic (16 bytes), version (uint32), zero (uint32),
 * sequence (uint64), SHA-256 of all before it. Big-endian.
 */
export const SNAPSHOT = 'plants.sqlite'
const MAGIC = Buffer.from('plant-store snap')
const SHA_BYTES = 32
const TRAILER_BYTES = MAGIC.length + 16 + SHA_BYTES

export interface Snapshot extends Meta {
  readonly version: number
  /** The whole file, verified. It is open only while its directory is scanned. */
  readonly pages: PageFile
  /** Where the SQLite file ends. */
  readonly trailerAt: number
}

/** Ends a database file with its trailer, durable. Returns the file's length in bytes. */
export async function seal(pages: PageFile, sequence: number): Promise<number> {
  const trailer = Buffer.alloc(TRAILER_BYTES - SHA_BYTES)
  MAGIC.copy(trailer)
  trailer.writeUInt32BE(FORMAT_VERSION, MAGIC.length)
  trailer.writeBigUInt64BE(BigInt(sequence), MAGIC.length + 8)
  const hash = createHash('sha256')
  for await (const block of pages.blocks()) hash.update(block)
  const sha = hash.update(trailer).digest()
  await pages.end(Buffer.concat([trailer, sha]))
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
  const at = Math.max(pages.lengthBytes - TRAILER_BYTES, 0)
  if ((await checksumOf(pages)) !== 'fits') {
    const what = 'the checksum after the last page does not fit'
    const edited = 'Only if this file was edited on purpose, run "plant-store import" on it instead'
    throw new StoreCorrupt(path, at, what, `${RESTORE}. ${edited}`)
  }
  const trailer = trailerOf(pages)
  const version = trailer.readUInt32BE(MAGIC.length)
  if (!READABLE_VERSIONS.includes(version)) {
    const what = otherVersion(version, READABLE_VERSIONS.join(' and '))
    throw new StoreCorrupt(path, at + MAGIC.length, what, OTHER_RELEASE)
  }
  const library = await loadSqlite()
  const { format, sequence, complete } = pages.through(() => metaOf(library, pages.bytes))
  if (format !== version || BigInt(sequence) !== trailer.readBigUInt64BE(MAGIC.length + 8))
    throw new StoreCorrupt(path, at, 'its meta table and its trailer differ')
  return { version, pages, trailerAt: at, sequence, complete }
}
