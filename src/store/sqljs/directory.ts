import { dirname } from 'node:path'
import { errorCodeOf } from '../../errors.ts'
import type { Files } from './files.ts'
import type { StoreLog } from './keeper.ts'
import type { DirectoryScan } from './recovery.ts'

/* What a start does to a directory before it serves from it. */

/**
 * Failing to remove what is of no use is no reason not to serve. A start that was killed may have
 * put the snapshot in place and not come to making that durable: only then are the journals that it
 * covers of no use.
 */
export async function removeObsolete(
  files: Files,
  found: DirectoryScan,
  log: StoreLog,
): Promise<void> {
  try {
    if (found.obsoleteFiles.length > 0) await files.syncDirectory(found.directory)
    for (const name of found.obsoleteFiles) await files.remove(`${found.directory}/${name}`)
  } catch (error) {
    log('error', 'files of no use could not be removed', {
      directory: found.directory,
      files: found.obsoleteFiles,
      error,
    })
  }
}

/** Makes a directory, and those above it where they are missing too. */
export async function makeDirectories(files: Files, path: string): Promise<void> {
  try {
    await files.makeDirectory(path)
  } catch (error) {
    if (errorCodeOf(error) !== 'ENOENT') throw error
    await makeDirectories(files, dirname(path))
    await files.makeDirectory(path)
  }
}

/** Makes durable what a journal shows that only memory may hold. */
export async function syncJournal(files: Files, path: string): Promise<void> {
  const file = await files.open(path, 'durable')
  try {
    await file.sync()
  } finally {
    await file.close()
  }
}

/**
 * What a directory may say that is there to be used and not to be read, or on a file system that
 * syncs no directories: it was not made by a start.
 */
const NOT_OURS: ReadonlySet<string | undefined> = new Set(['EACCES', 'EPERM', 'EROFS', 'EINVAL'])

/**
 * Makes a directory's own name durable. It may have been made by a start that was killed before it
 * came to this, and so may any directory above it: all of them are synced.
 */
export async function syncAbove(files: Files, path: string): Promise<void> {
  const above = dirname(path)
  if (above === path) return
  try {
    await files.syncDirectory(above)
  } catch (error) {
    if (!NOT_OURS.has(errorCodeOf(error))) throw error
  }
  await syncAbove(files, above)
}
