import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs'

const { O_NOCTTY, O_NONBLOCK, O_RDONLY } = constants

/**
 * The bytes of a small file. It must be a regular file: reading a pipe may never begin, and reading
 * a device may never end. It is checked after it was opened: nothing can replace it between.
 * @throws Error that says why not; with the `code` of a system call that failed.
 */
export function readRegularFile(path: string, maxBytes: number): Buffer {
  const descriptor = openSync(path, O_RDONLY | O_NONBLOCK | O_NOCTTY)
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
