/* Reads small files: secrets, certificates, key sets. */

import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs'
import { getSystemErrorMap } from 'node:util'
import { errorCodeOf } from '../errors.ts'

const { O_NOCTTY, O_NONBLOCK, O_RDONLY } = constants

/**
 * The bytes of a small file. It must be a regular file: reading a pipe may never begin, and reading
 * a device may never end. It is checked after it was opened: nothing can replace it between.
 * @throws Error that says why not; with the `code` of a system call that failed. It names only a
 * path that exists: another one may be a secret in the place of a path.
 */
export function readRegularFile(path: string, maxBytes: number): Buffer {
  const descriptor = openToRead(path)
  try {
    if (!fstatSync(descriptor).isFile()) throw new Error(`${path} is not a regular file`)
    // Read to the end, not by the size: in /proc and /sys the size is 0.
    const bytes = Buffer.alloc(maxBytes + 1)
    let length = 0
    for (let taken = -1; taken !== 0; length += taken) {
      taken = readSync(descriptor, bytes, length, bytes.length - length, null)
    }
    if (length > maxBytes) throw new Error(`${path} has more than ${maxBytes} bytes`)
    return Buffer.from(bytes.subarray(0, length))
  } finally {
    closeSync(descriptor)
  }
}

function openToRead(path: string): number {
  try {
    return openSync(path, O_RDONLY | O_NONBLOCK | O_NOCTTY)
  } catch (error) {
    // The message of Node quotes the path.
    const code = errorCodeOf(error) ?? 'an unknown error'
    const known = [...getSystemErrorMap().values()].find(([name]) => name === code)
    throw Object.assign(new Error(known?.join(': ') ?? code), { code })
  }
}
