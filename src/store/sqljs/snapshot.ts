import { createHash, type Hash } from 'node:crypto'
import { FORMAT_VERSION, READABLE_VERSIONS } from './database.ts'
import { type File, writeWhole } from './files.ts'
import { otherVersion, StoreCorrupt } from './journal-format.ts'
import { type Meta, readMeta } from './meta.ts'
import { PageFile } from './page-file.ts'

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
  /** The SQLite file without its trailer, verified. It is open only while it was scanned for. */
  readonly pages: PageFile
  /** The file's length, trailer included. */
  readonly fileBytes: number
}

/** Ends a database file with its trailer, durable. Returns the file's length in bytes. */
export async function seal(pages: PageFile, file: File, sequence: number): Promise<number> {
  const trailer = Buffer.alloc(TRAILER_BYTES - SHA_BYTES)
  MAGIC.copy(trailer)
  trailer.writeUInt32BE(FORMAT_VERSION, MAGIC.length)
  trailer.writeBigUInt64BE(BigInt(sequence), MAGIC.length + 8)
  const sha = (await hashOf(pages)).update(trailer).digest()
  await writeWhole(file, Buffer.concat([trailer, sha]), pages.lengthBytes)
  await file.sync()
  return pages.lengthBytes + TRAILER_BYTES
}

async function hashOf(pages: PageFile): Promise<Hash> {
  const hash = createHash('sha256')
  for await (const piece of pages.pieces()) hash.update(piece)
  return hash
}

/** What the trailer of a file says; `none` without one, as in a file that SQLite has made. */
export function checksumOf(bytes: Buffer): 'none' | 'fits' | 'differs' {
  const trailer = bytes.subarray(-TRAILER_BYTES)
  const hash = createHash('sha256').update(bytes.subarray(0, -trailer.length))
  return isTrailer(trailer) ? verdictOf(hash, trailer) : 'none'
}

function isTrailer(bytes: Buffer): boolean {
  return bytes.length === TRAILER_BYTES && bytes.subarray(0, MAGIC.length).equals(MAGIC)
}

/** `hash`: of all before the trailer. */
function verdictOf(hash: Hash, trailer: Buffer): 'fits' | 'differs' {
  const sha = hash.update(trailer.subarray(0, -SHA_BYTES)).digest()
  return sha.equals(trailer.subarray(-SHA_BYTES)) ? 'fits' : 'differs'
}

/**
 * Reads and verifies a snapshot, of which no more than a piece is in memory.
 * @throws StoreCorrupt if any byte is not as it was written, or the version is unknown.
 */
export async function readSnapshot(path: string, file: File): Promise<Snapshot> {
  const fileBytes = await file.lengthBytes()
  const at = Math.max(fileBytes - TRAILER_BYTES, 0)
  const trailer = Buffer.from(new PageFile(file, fileBytes).read(at, fileBytes))
  const pages = new PageFile(file, at)
  if (!isTrailer(trailer) || verdictOf(await hashOf(pages), trailer) !== 'fits') {
    const edited = 'If it was edited with sqlite3 on purpose, run "plant-store import" on it'
    const what = 'the checksum after the last page does not fit: restore the last export'
    throw new StoreCorrupt(path, at, `${what}. ${edited}, after moving it away`)
  }
  const version = trailer.readUInt32BE(MAGIC.length)
  if (!READABLE_VERSIONS.includes(version)) {
    const what = otherVersion(version, READABLE_VERSIONS.join(' and '))
    throw new StoreCorrupt(path, at + MAGIC.length, what)
  }
  const { format, sequence, complete } = await pages.through(() => readMeta(pages.bytes))
  if (format !== version || BigInt(sequence) !== trailer.readBigUInt64BE(MAGIC.length + 8))
    throw new StoreCorrupt(path, at, 'its meta table and its trailer differ')
  return { version, pages, fileBytes, sequence, complete }
}
