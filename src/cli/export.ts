import { errorCodeOf } from '../errors.ts'
import { type Output, standardOutput } from '../ops/log-writer.ts'
import { type Files, nodeFiles } from '../store/sqljs/files.ts'
import { refuseTarget, writeNewFile } from '../store/sqljs/new-file.ts'
import { sealed } from '../store/sqljs/snapshot.ts'
import { check, readStore } from './check.ts'
import { Progress } from './progress.ts'

const PIECE_BYTES = 1024 * 1024

/** A whole SQLite file, in pieces. */
interface Export {
  readonly plants: number
  readonly pieces: Iterable<Uint8Array>
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
  const progress = new Progress()
  try {
    const { plants, pieces } = await readWhole(directory, files, progress)
    await writeNewFile(file, pieces)
    return `${plants} plants written to ${file}`
  } finally {
    progress.end()
  }
}

/**
 * Writes the same file to standard output, and nothing else.
 * @throws StoreCorrupt; Error if its reader leaves before the end, or there is no store.
 */
export async function exportToOutput(directory: string): Promise<string> {
  const progress = new Progress()
  try {
    const { plants, pieces } = await readWhole(directory, nodeFiles, progress)
    const output = standardOutput()
    for (const piece of pieces) await write(output, piece)
    return `${plants} plants written to standard output`
  } finally {
    progress.end()
  }
}

async function readWhole(directory: string, files: Files, progress: Progress): Promise<Export> {
  const { database, replayed } = await readStore(directory, files, progress)
  try {
    const plants = check(database, progress)
    const { sequence } = replayed
    const parts = sealed(database.toFile({ sequence, complete: true }), sequence)
    return { plants, pieces: piecesOf(parts, progress) }
  } finally {
    database.close()
  }
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
