import { randomBytes } from 'node:crypto'
import { rmSync } from 'node:fs'
import { link, lstat, open, stat, unlink } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { errorCodeOf } from '../../errors.ts'
import { type File, fileOf, nodeFiles } from './files.ts'

/* New files, in folders that other programs may use too: an export, and the development key. */

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const
/** Endings of files that SQLite reads as a part of the file beside them. */
export const SQLITE_LOGS = ['-wal', '-journal'] as const
/** The errors of link() on a file system without hard links (vfat: EPERM). */
const NO_LINKS: readonly unknown[] = ['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK']

/**
 * Checks a new file's name before any work is done for it.
 * @throws Error that says what to do, if the name is taken, or its folder does not exist or is
 * the store's own directory.
 */
export async function refuseTarget(file: string, storeDirectory: string): Promise<void> {
  if (file.endsWith('/') || basename(file) === '')
    throw new Error('FILE must name a file that does not exist')
  const folder = dirname(file)
  const found = await stat(folder, { bigint: true }).catch((error: unknown) => {
    const code = errorCodeOf(error)
    if (code === 'ENOENT') throw new Error(`the folder ${folder} does not exist`)
    if (code === 'ENOTDIR') return undefined
    throw error
  })
  if (!found?.isDirectory()) throw new Error(`${folder} is not a folder`)
  const own = await stat(storeDirectory, { bigint: true }).catch(() => undefined)
  // By inode: a link, or a second mount, is another path to the same folder.
  if (own?.ino === found.ino && own.dev === found.dev) {
    const what = `${folder} is the data directory, whose files are the store's own`
    throw new Error(`${what}: name a file elsewhere`)
  }
  if (await exists(file)) throw taken(file)
  for (const ending of SQLITE_LOGS) {
    if (!(await exists(file + ending))) continue
    const what = `SQLite would take ${file}${ending} for a part of the new file`
    throw new Error(`${what}: name another one`)
  }
}

/**
 * Writes a new file, durable when this resolves: `write` syncs it. It never overwrites another:
 * link() fails if the name was taken meanwhile. Until the file is whole it has a random name, which
 * no attacker can prepare.
 */
export async function writeNewFile<T>(file: string, write: (to: File) => Promise<T>): Promise<T> {
  const folder = dirname(file)
  const temporary = join(folder, `.plant-store-${randomBytes(8).toString('hex')}`)
  // Making the file may take long. A signal that ends the command must not leave a part of it.
  const stop = async (): Promise<void> => {
    await opening.catch(() => {})
    rmSync(temporary, { force: true })
    process.exit(1)
  }
  // Not once(): after the first signal, a second one would end the process by default.
  for (const signal of SIGNALS) process.on(signal, stop)
  // After the handlers: a signal in between would leave the file.
  const opening = open(temporary, 'wx+', 0o600)
  try {
    const handle = await opening
    try {
      // The umask may have taken away more.
      const result = await handle.chmod(0o600).then(() => write(fileOf(handle)))
      await handle.close()
      await linkNew(temporary, file)
      await nodeFiles.syncDirectory(folder)
      return result
    } finally {
      await unlink(temporary).catch(() => {})
      await handle.close().catch(() => {})
    }
  } finally {
    for (const signal of SIGNALS) process.off(signal, stop)
  }
}

async function linkNew(temporary: string, file: string): Promise<void> {
  try {
    await link(temporary, file)
  } catch (error) {
    const code = errorCodeOf(error)
    if (code === 'EEXIST') throw taken(file)
    if (!NO_LINKS.includes(code)) throw error
    const folder = dirname(file)
    const what = `the file system of ${folder} has no hard links, and a file may be overwritten`
    throw new Error(`${what}: name a file on another one, and copy it from there`, { cause: error })
  }
}

function taken(file: string): Error {
  return new Error(`${file} exists already: name a file that does not exist`)
}

/** A link counts too, even if its target does not exist. */
async function exists(path: string): Promise<boolean> {
  try {
    await lstat(path)
    return true
  } catch (error) {
    if (errorCodeOf(error) === 'ENOENT') return false
    throw error
  }
}
