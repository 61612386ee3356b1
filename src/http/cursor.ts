import { createHash } from 'node:crypto'

/*
 * A cursor is base64url of: version (1 byte), id (int64, big-endian), and the first 8 bytes of
 * SHA-256(version, owner, id). The hash needs no secret: it keeps one owner's cursor from fitting another's list by
 * mistake, and says nothing that the owner does not know. The id has a fixed length, so the hash's input is unambiguous.
 */
const VERSION = 1
const ID_END = 9
const BYTES = ID_END + 8

export function writeCursor(owner: string, id: bigint): string {
  const bytes = Buffer.alloc(BYTES)
  bytes[0] = VERSION
  bytes.writeBigInt64BE(id, 1)
  createHash('sha256').update(bytes.subarray(0, 1)).update(owner).update(bytes.subarray(1, ID_END)).digest().copy(bytes, ID_END, 0, BYTES - ID_END)
  return bytes.toString('base64url')
}

/** The id in a cursor, or undefined for one that was not written for this owner. */
export function readCursor(owner: string, cursor: string): bigint | undefined {
  const bytes = Buffer.from(cursor, 'base64url')
  if (bytes.length !== BYTES) return undefined
  const id = bytes.readBigInt64BE(1)
  // Written again and compared, so that one cursor has one spelling.
  return writeCursor(owner, id) === cursor ? id : undefined
}
