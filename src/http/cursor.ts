import { hash } from 'node:crypto'

/*
 * A cursor is base64url of: version (1 byte), id (int64, big-endian), and the first 8 bytes of
 * SHA-256(version, owner, id). The hash needs no secret: it keeps one owner's cursor from fitting
 * another's list by mistake, and says nothing that the owner does not know. The id has a fixed
 * length, so the hash's input is unambiguous.
 */
const VERSION = 1
const ID_END = 9
const BYTES = ID_END + 8

export function writeCursor(owner: string, id: bigint): string {
  const ownerBytes = Buffer.byteLength(owner)
  const hashed = Buffer.allocUnsafe(ID_END + ownerBytes)
  hashed[0] = VERSION
  hashed.write(owner, 1)
  hashed.writeBigInt64BE(id, 1 + ownerBytes)
  const bytes = Buffer.allocUnsafe(BYTES)
  bytes[0] = VERSION
  bytes.writeBigInt64BE(id, 1)
  bytes.write(hash('sha256', hashed, 'binary'), ID_END, 'latin1')
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
