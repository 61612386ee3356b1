import { closeSync, constants, fstatSync, openSync, readFileSync } from 'node:fs'

/**
 * The bytes of a file.
 * @throws Error with a code when it cannot be read, and without one when it is no regular file or
 * is too large.
 */
export function readRegularFile(path: string, maxBytes: number): Buffer {
  // Without O_NONBLOCK, opening a FIFO waits for its writer.
  const descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  try {
    const stats = fstatSync(descriptor)
    if (!stats.isFile()) throw new Error('it is not a file')
    if (stats.size > maxBytes) throw new Error(`it is larger than ${maxBytes} bytes`)
    return readFileSync(descriptor)
  } finally {
    closeSync(descriptor)
  }
}
