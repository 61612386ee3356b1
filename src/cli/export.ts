/* `export`: everything that is durable, as one SQLite file. */

import { resolve } from 'node:path'
import { errorCodeOf, escaped, UsageError } from '../errors.ts'
import { type Output, standardOutput } from '../ops/log-writer.ts'
import { type Files, nodeFiles } from '../store/sqljs/files.ts'
import { refuseTarget, writeNewFile } from '../store/sqljs/new-file.ts'
import { sealed } from '../store/sqljs/snapshot.ts'
import { embeddedStore, useStore } from './check.ts'
import { counted, Progress } from './progress.ts'

const PIECE_BYTES = 1024 * 1024

/** As a file name, this is standard output. */
const STDOUT = '-'

export async function run(file: string): Promise<string | undefined> {
  const directory = embeddedStore('export')
  if (file !== STDOUT) return escaped(await exportStore(directory, resolve(file)))
  if (process.stdout.isTTY)
    throw new UsageError('export - writes a database, and standard output is a terminal')
  const output = standardOutput()
  const plants = await exportTo(directory, nodeFiles, async (pieces) => {
    for (const piece of pieces) await write(output, piece)
  })
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
): Promise<string> {
  await refuseTarget(file, directory)
  const plants = await exportTo(directory, files, (pieces) => writeNewFile(file, pieces))
  return `${counted(plants, 'plant')} written to ${file}`
}

/** Passes on a whole SQLite file, in pieces. Returns how many plants it has. */
async function exportTo(
  directory: string,
  files: Files,
  write: (pieces: Iterable<Uint8Array>) => Promise<void>,
): Promise<number> {
  const progress = new Progress()
  const whole = await useStore(directory, files, progress, ({ plants, recovery }) => {
    const { database, sequence } = recovery
    return { plants, parts: sealed(database.toFile({ sequence, complete: true }), sequence) }
  })
  await write(piecesOf(whole.parts, progress)).finally(() => progress.end())
  return whole.plants
}

function* piecesOf(parts: readonly Uint8Array[], progress: Progress): Generator<Uint8Array> {
  const totalBytes = parts.reduce((sum, { length }) => sum + length, 0)
  let doneBytes = 0
  progress.step('writing')
  for (const part of parts)
    for (let at = 0; at < part.length; at += PIECE_BYTES) {
      const piece = part.subarray(at, at + PIECE_BYTES)
      yield piece
      doneBytes += piece.length
      progress.at(doneBytes, totalBytes, 'MB')
    }
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
