/* A new file in a folder that other programs may use too: an export. */

import { rmSync } from 'node:fs'
import { link, lstat, open, rename, stat, unlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { errorCodeOf } from '../../../errors.ts'
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

/** What a file system says that has no hard links (exFAT, CIFS, buckets). */
const NO_LINKS: ReadonlySet<string | undefined> = new Set(['EPERM', 'ENOTSUP', 'ENOSYS'])

/**
 * Writes a new file, durable when this resolves: `write` syncs it. It never overwrites another:
 * link() fails if the name was taken meanwhile. Where there are no links, an empty file reserves
 * the name. Until the file is whole it has a random name, which no attacker can prepare. After a
 * failure, or an exit of the process meanwhile, nothing is left.
 */
export async function writeNewFile<T>(file: string, write: (to: File) => Promise<T>): Promise<T> {
  const folder = dirname(file)
  const temporary = join(folder, temporaryName('.plant-store'))
  const own = new Set([temporary])
  const removeOwn = (): void => own.forEach((path) => rmSync(path, { force: true }))
  process.once('exit', removeOwn)
  try {
    const handle = await open(temporary, 'wx+', 0o600)
    const to = fileOf(handle, temporary)
    const written = async (): Promise<T> => {
      // The umask may have taken away more.
      await handle.chmod(0o600)
      if (!(await hasLinks(temporary))) {
        await (await open(file, 'wx', 0o600).catch(refuseTaken(file))).close()
        own.add(file)
      }
      return write(to)
    }
    const result = await written().finally(to.close)
    if (!own.delete(file)) await link(temporary, file).catch(refuseTaken(file))
    // Not over what someone has written there.
    else if ((await lstat(file)).size > 0) throw taken(file)
    else await rename(temporary, file)
    await nodeFiles.syncDirectory(folder).catch((error: unknown) => {
      // Some file systems sync no directories.
      if (errorCodeOf(error) !== 'EINVAL') throw error
    })
    return result
  } finally {
    for (const path of own) await unlink(path).catch(() => {})
    process.off('exit', removeOwn)
  }
}

/** Tried before any work. */
async function hasLinks(file: string): Promise<boolean> {
  const other = `${file}.link`
  try {
    await link(file, other)
  } catch (error) {
    if (NO_LINKS.has(errorCodeOf(error))) return false
    throw error
  }
  await unlink(other)
  return true
}

function refuseTaken(file: string): (error: unknown) => never {
  return (error) => {
    throw errorCodeOf(error) === 'EEXIST' ? taken(file) : error
  }
}

function taken(file: string): Error {
  return new Error(`${file} exists already: name a file that does not exist`)
}
