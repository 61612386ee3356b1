/* New files, in folders that other programs may use too: an export, and the development key. */

import { link, lstat, open, stat, unlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { errorCodeOf } from '../../errors.ts'
import { type File, fileOf, nodeFiles } from './files.ts'
import { temporaryName } from './store-directory.ts'

/** Endings of files that SQLite reads as a part of the file beside them. */
export const SQLITE_LOGS = ['-wal', '-journal'] as const

/**
 * Checks a new file's name before any work is done for it.
 * @throws Error that says what to do, if the name is taken, or its folder is the store's own.
 */
export async function refuseTarget(file: string, storeDirectory: string): Promise<void> {
  const folder = dirname(file)
  // By inode: a link, or a second mount, is another path to the same folder.
  const [own, found] = await Promise.all(
    [storeDirectory, folder].map((path) => stat(path, { bigint: true }).catch(() => undefined)),
  )
  if (!found?.isDirectory()) throw new Error(`there is no folder ${folder}`)
  if (own?.ino === found.ino && own.dev === found.dev)
    throw new Error(`${folder} is the data directory, with the store's own files: name another one`)
  for (const path of [file, ...SQLITE_LOGS.map((ending) => file + ending)])
    if (await lstat(path).catch(() => undefined)) throw taken(path)
}

/**
 * Writes a new file, durable when this resolves: `write` syncs it. It never overwrites another:
 * link() fails if the name was taken meanwhile. Until the file is whole it has a random name, which
 * no attacker can prepare.
 */
export async function writeNewFile<T>(file: string, write: (to: File) => Promise<T>): Promise<T> {
  const folder = dirname(file)
  const temporary = join(folder, temporaryName('.plant-store'))
  const handle = await open(temporary, 'wx+', 0o600)
  const to = fileOf(handle)
  try {
    // The umask may have taken away more.
    const written = handle.chmod(0o600).then(() => write(to))
    const result = await written.finally(to.close)
    await link(temporary, file).catch((error: unknown) => {
      throw errorCodeOf(error) === 'EEXIST' ? taken(file) : error
    })
    await nodeFiles.syncDirectory(folder)
    return result
  } finally {
    await unlink(temporary).catch(() => {})
  }
}

function taken(file: string): Error {
  return new Error(`${file} exists already: name a file that does not exist`)
}
