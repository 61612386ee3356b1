import { hash } from 'node:crypto'

/*
 * A cursor is base64url of: version (1 byte), id (int64, big-endian), and the first 8 bytes of
 * SHA-256(version, owner, id). The hash makes one owner's cursor invalid for any other owner. It
 * needs no secret: its owner knows all of its input. The id has a fixed length, so the input is
 * unambiguous.
 */
const VERSION = 1
const ID_AT = 1
const ID_END = 9
const BYTES = ID_END + 8

export function writeCursor(owner: string, id: bigint): string {
  const bytes = Buffer.alloc(BYTES)
  bytes[0] = VERSION
  bytes.writeBigInt64BE(id, ID_AT)
  const [version, idBytes] = [bytes.subarray(0, ID_AT), bytes.subarray(ID_AT, ID_END)]
  const hashed = Buffer.concat([version, Buffer.from(owner), idBytes])
  bytes.write(hash('sha256', hashed, 'binary'), ID_END, 'latin1')
  return bytes.toString('base64url')
}

/** The id in a cursor, or undefined if it was not written for this owner. */
export function readCursor(owner: string, cursor: string): bigint | undefined {
  const bytes = Buffer.from(cursor, 'base64url')
  if (bytes.length !== BYTES) return undefined
  const id = bytes.readBigInt64BE(ID_AT)
  // Compared as text: base64url of 17 bytes has several spellings, and only one is valid.
  return writeCursor(owner, id) === cursor ? id : undefined
}
