import { createHash } from 'node:crypto'
import { FORMAT_VERSION, READABLE_VERSIONS } from './database.ts'
import { otherVersion, StoreCorrupt } from './journal-format.ts'
import { type Meta, readMeta } from './meta.ts'
import type { StoreDirectory } from './store-directory.ts'

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
  /** The SQLite file, and after its last page the trailer and any room, which SQLite ignores. */
  readonly database: Buffer
  /** Where the trailer begins. */
  readonly trailerAt: number
  /** The file's length, trailer included. */
  readonly fileBytes: number
}

/** A database file with its trailer, in parts. */
export function sealed(database: Uint8Array, sequence: number): readonly Uint8Array[] {
  const trailer = Buffer.alloc(TRAILER_BYTES - SHA_BYTES)
  MAGIC.copy(trailer)
  trailer.writeUInt32BE(FORMAT_VERSION, MAGIC.length)
  trailer.writeBigUInt64BE(BigInt(sequence), MAGIC.length + 8)
  const sha = createHash('sha256').update(database).update(trailer).digest()
  return [database, trailer, sha]
}

/** Makes a database file the snapshot, durable. Returns the snapshot's length in bytes. */
export async function writeSnapshot(
  directory: StoreDirectory,
  database: Uint8Array,
  sequence: number,
): Promise<number> {
  await directory.writeTemporary(SNAPSHOT, sealed(database, sequence))
  await directory.renameIntoPlace(SNAPSHOT)
  return database.length + TRAILER_BYTES
}

/** What the trailer of a file says; `none` without one, as in a file that SQLite has made. */
export function checksumOf(bytes: Buffer): 'none' | 'fits' | 'differs' {
  const at = bytes.length - TRAILER_BYTES
  if (at < 0 || !bytes.subarray(at, at + MAGIC.length).equals(MAGIC)) return 'none'
  const sha = createHash('sha256').update(bytes.subarray(0, -SHA_BYTES)).digest()
  return sha.equals(bytes.subarray(-SHA_BYTES)) ? 'fits' : 'differs'
}

/**
 * Reads and verifies a snapshot. After it, `database` has room for `roomBytes`.
 * @throws StoreCorrupt if any byte is not as it was written, or the version is unknown.
 */
export async function readSnapshot(
  file: string,
  database: Buffer,
  roomBytes = 0,
): Promise<Snapshot> {
  const bytes = database.subarray(0, database.length - roomBytes)
  const at = bytes.length - TRAILER_BYTES
  if (checksumOf(bytes) !== 'fits') {
    const edited = 'If it was edited with sqlite3 on purpose, run "plant-store import" on it'
    const what = 'the checksum after the last page does not fit: restore the last export'
    throw new StoreCorrupt(file, Math.max(at, 0), `${what}. ${edited}, after moving it away`)
  }
  const version = bytes.readUInt32BE(at + MAGIC.length)
  if (!READABLE_VERSIONS.includes(version)) {
    const what = otherVersion(version, READABLE_VERSIONS.join(' and '))
    throw new StoreCorrupt(file, at + MAGIC.length, what)
  }
  const { format, sequence, complete } = await readMeta(database)
  if (format !== version || BigInt(sequence) !== bytes.readBigUInt64BE(at + MAGIC.length + 8))
    throw new StoreCorrupt(file, at, 'its meta table and its trailer differ')
  return { database, trailerAt: at, fileBytes: bytes.length, sequence, complete }
}
