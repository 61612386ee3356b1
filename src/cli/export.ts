/* `export`: everything that is durable, as one SQLite file. */

import { resolve } from 'node:path'
import { counted, errorCodeOf, escaped, UsageError } from '../errors.ts'
import { standardOutput } from '../telemetry/log-writer.ts'
import { type File, nodeFiles } from '../store/sqljs/disk/files.ts'
import { exportTo, exportToFile } from '../store/sqljs/inspect.ts'
import { FILE_MAX_BYTES } from '../store/sqljs/disk/page-file.ts'
import { StoreDirectory } from '../store/sqljs/disk/store-directory.ts'
import { embeddedStore } from './check.ts'
import { Progress } from './progress.ts'

const WRITE_BYTES = 1024 * 1024

export async function run({ file }: { readonly file: string }): Promise<string | undefined> {
  const directory = embeddedStore('export')
  const progress = new Progress()
  // `-` is standard output.
  if (file !== '-') {
    const path = resolve(file)
    const plants = await exportToFile(directory, path, nodeFiles, progress)
    return escaped(`${counted(plants, 'plant')} written to ${path}`)
  }
  if (process.stdout.isTTY)
    throw new UsageError('export - writes a database, and standard output is a terminal')
  const { memory, bytes } = memoryFile()
  const from = new StoreDirectory(nodeFiles, directory)
  const plants = await exportTo(memory, 'the file in memory', from, progress)
  await writeOut(bytes, progress)
  progress.tell(`${counted(plants, 'plant')} written to standard output`)
  return undefined
}

/** A file in memory. `bytes` are all that it holds. */
export function memoryFile(): { readonly memory: File; readonly bytes: Uint8Array } {
  const contents = new ArrayBuffer(0, { maxByteLength: FILE_MAX_BYTES })
  // It grows with `contents`.
  const bytes = new Uint8Array(contents)
  const writeNow: File['writeNow'] = (from, at) => {
    contents.resize(Math.max(contents.byteLength, at + from.length))
    bytes.set(from, at)
    return from.length
  }
  const memory: File = {
    writeNow,
    write: async (from, at) => writeNow(from, at),
    read: async (to, at) => Buffer.from(contents, at).copy(to),
    readNow: (to, at) => Buffer.from(contents, at).copy(to),
    lengthBytes: async () => bytes.length,
    sync: async () => {},
    syncNow() {},
    truncate: async (lengthBytes) => contents.resize(lengthBytes),
    close: async () => {},
  }
  return { memory, bytes }
}

/** Writes to standard output. @throws Error if not all is written. */
async function writeOut(bytes: Uint8Array, progress: Progress): Promise<void> {
  const write = standardOutput()
  for (let at = 0; at < bytes.length; at += WRITE_BYTES) {
    progress.at('writing', at, bytes.length, 'MB')
    // A copy: streams do not take memory that can be resized.
    const chunk = Buffer.from(bytes.subarray(at, at + WRITE_BYTES))
    const error = await new Promise<unknown>((written) => write(chunk, written))
    if (errorCodeOf(error) === 'EPIPE' || errorCodeOf(error) === 'ECONNRESET')
      throw new Error('the reader of standard output has left, and what it has is no whole file')
    if (error) throw error
  }
}
