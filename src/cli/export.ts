/* `export`: everything that is durable, as one SQLite file. */

import { resolve } from 'node:path'
import { errorCodeOf, escaped, UsageError } from '../errors.ts'
import { type Output, standardOutput } from '../telemetry/log-writer.ts'
import { makeSnapshot } from '../store/sqljs/compaction.ts'
import { type File, type Files, nodeFiles } from '../store/sqljs/files.ts'
import { refuseTarget, writeNewFile } from '../store/sqljs/new-file.ts'
import { FILE_MAX_BYTES } from '../store/sqljs/page-file.ts'
import { embeddedStore, readStore, tornLine } from './check.ts'
import { counted, Progress } from './progress.ts'

const WRITE_BYTES = 1024 * 1024

export async function run({ file }: { readonly file: string }): Promise<string | undefined> {
  const directory = embeddedStore('export')
  // `-` is standard output.
  if (file !== '-') return escaped(await exportStore(directory, resolve(file)))
  if (process.stdout.isTTY)
    throw new UsageError('export - writes a database, and standard output is a terminal')
  const output = standardOutput()
  const progress = new Progress()
  const { memory, bytes } = memoryFile()
  const plants = await exportTo(directory, nodeFiles, 'the file in memory', memory, progress)
  progress.step('writing')
  for (let at = 0; at < bytes.length; at += WRITE_BYTES) {
    progress.at(at, bytes.length, 'MB')
    // A copy: streams do not take memory that can be resized.
    await write(output, Buffer.from(bytes.subarray(at, at + WRITE_BYTES)))
  }
  process.stderr.write(`${counted(plants, 'plant')} written to standard output\n`)
  return undefined
}

/**
 * Writes everything that is durable to a new SQLite file. Takes no lock: a service may go on
 * writing.
 * @throws StoreCorrupt; Error if the file exists already or cannot be made, or there is no store.
 */
export async function exportStore(
  directory: string,
  file: string,
  files: Files = nodeFiles,
  progress = new Progress(),
): Promise<string> {
  await refuseTarget(file, directory)
  const make = (to: File): Promise<number> => exportTo(directory, files, file, to, progress)
  const plants = await writeNewFile(file, make)
  return `${counted(plants, 'plant')} written to ${file}`
}

/** Makes a file that holds everything. Returns how many plants it has. */
function exportTo(
  directory: string,
  files: Files,
  path: string,
  to: File,
  progress: Progress,
): Promise<number> {
  return readStore(directory, files, progress, async (scan, wasServed, onProgress) => {
    // An earlier attempt may have written something.
    await to.truncate(0)
    progress.step('copying', scan.snapshot?.pages.lengthBytes)
    const made = await makeSnapshot(scan, path, to, true, onProgress)
    await to.sync()
    const torn = await tornLine(directory, wasServed, made)
    if (torn) progress.tell(`the export is without a line: ${torn.message}`)
    return made.plants
  })
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
  const nothing = async (): Promise<void> => {}
  const memory: File = {
    writeNow,
    write: async (from, at) => writeNow(from, at),
    readNow(to, at) {
      const found = bytes.subarray(at, at + to.length)
      to.set(found)
      return found.length
    },
    lengthBytes: async () => bytes.length,
    sync: nothing,
    syncNow() {},
    truncate: async (lengthBytes) => contents.resize(lengthBytes),
    close: nothing,
  }
  return { memory, bytes }
}

function write(output: Output, piece: Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    output.write(piece, (error) => {
      if (!error) return resolve()
      const isLeft = errorCodeOf(error) === 'EPIPE' || errorCodeOf(error) === 'ECONNRESET'
      const what = 'the reader of standard output has left, and what it has is no whole file'
      reject(isLeft ? new Error(what) : error)
    })
  })
}
