import { type Files, nodeFiles } from '../store/sqljs/files.ts'
import { refuseTarget, writeNewFile } from '../store/sqljs/new-file.ts'
import { sealed } from '../store/sqljs/snapshot.ts'
import { readStore } from './check.ts'

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
  const { database, replayed } = await readStore(directory, files)
  try {
    const plants = database.check()
    const { sequence } = replayed
    await writeNewFile(file, sealed(database.toFile({ sequence, complete: true }), sequence))
    return `${plants} plants written to ${file}`
  } finally {
    database.close()
  }
}
