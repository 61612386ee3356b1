/* Reads a whole data directory without its lock, to check or to export what it holds. */

import { counted, errorCodeOf } from '../../errors.ts'
import { makeSnapshot } from './compaction.ts'
import { type File, nodeFiles } from './disk/files.ts'
import { StoreCorrupt, TORN } from './disk/journal-format.ts'
import { isLocked, lockNumber } from './disk/lock.ts'
import { refuseTarget, writeNewFile } from './disk/new-file.ts'
import { PAGE_BYTES, PageFile } from './disk/page-file.ts'
import { type DirectoryScan, isStoreFile, load, type OnProgress } from './recovery.ts'
import { type Replay, scanDirectory } from './recovery.ts'
import { StoreDirectory } from './disk/store-directory.ts'

/** A compaction may remove a journal while it is read, but not so often in a row. */
const READ_ATTEMPTS = 5

/** Is told how far the work is. */
interface Watcher {
  /** Names a step that cannot tell how far it is. */
  announce(what: string, bytes?: number): void
  at(what: string, done: number, total: number, unit: 'MB'): void
  tell(line: string): void
}
const SILENT: Watcher = { announce() {}, at() {}, tell() {} }

/**
 * Says in a line that a directory is sound. Takes no lock, and changes nothing.
 * @throws StoreCorrupt with what is wrong; Error if there is no store.
 */
export async function checkDirectory(path: string, files = nodeFiles, watcher = SILENT) {
  const directory = new StoreDirectory(files, path)
  const { found, torn } = await readStore(directory, watcher, async (scan, onProgress) => {
    // As a start does.
    const { database, ...found } = await load(scan, onProgress)
    try {
      watcher.announce('checking', database.usedPages * PAGE_BYTES)
      const plants = counted(database.countVerified(), 'plant')
      const journals = counted(scan.journals.length, 'journal')
      const from = `${scan.snapshot ? 'a' : 'no'} snapshot and ${journals}`
      return { ...found, what: `${plants} in ${from}, up to write ${found.end.sequence}` }
    } finally {
      database.close()
    }
  })
  if (torn) throw torn
  return `${path} is sound: ${found.what}`
}

/**
 * Writes everything that is durable to a new SQLite file. Takes no lock: a service may go on
 * writing. Returns how many plants it has.
 * @throws StoreCorrupt; Error if the file exists already or cannot be made, or there is no store.
 */
export async function exportToFile(dir: string, file: string, files = nodeFiles, watcher = SILENT) {
  await refuseTarget(file, dir)
  return writeNewFile(file, (to) => exportTo(to, file, new StoreDirectory(files, dir), watcher))
}

/** As `exportToFile`, to an open file. `name` is for messages. */
export async function exportTo(to: File, name: string, from: StoreDirectory, watcher: Watcher) {
  const { found, torn } = await readStore(from, watcher, async (scan, onProgress) => {
    // An earlier attempt may have written something.
    await to.truncate(0)
    watcher.announce('copying', scan.snapshot?.pages.lengthBytes)
    const made = await makeSnapshot(scan, new PageFile(name, to), undefined, onProgress)
    await to.sync()
    return made
  })
  if (torn) watcher.tell(`the export is without a line: ${torn.message}`)
  return found.plants
}

/**
 * Reads a directory without its lock. A running service may make it look damaged: then it is read
 * again. Also returns what a torn last line is, if no service can be about to write its end.
 */
async function readStore<T extends Replay>(
  from: StoreDirectory,
  watcher: Watcher,
  read: (scan: DirectoryScan, onProgress: OnProgress) => Promise<T>,
) {
  const onProgress: OnProgress = (name, bytes, totalBytes) =>
    watcher.at(`reading ${name}`, bytes, totalBytes, 'MB')
  for (let attempt = 1; ; attempt++) {
    const before = await from.list().catch((error: unknown): readonly string[] => {
      if (errorCodeOf(error) === 'ENOENT' || errorCodeOf(error) === 'ENOTDIR') return []
      throw error
    })
    // Only a service makes these. An empty store of 2.0.0 is only a lock.
    if (!before.some((name) => isStoreFile(name) || lockNumber(name) > 0n))
      throw new Error(`there is no store in ${from.path}: set PLANTS_DATA to its directory`)
    // Also true if it cannot be known.
    const wasServed = await isLocked(from.path).catch(() => true)
    try {
      const found = await scanDirectory(from, (scan) => read(scan, onProgress))
      const last = found.journals.at(-1)
      if (!last?.torn.length || wasServed || (await isLocked(from.path))) return { found }
      const what = `its last line is torn (${last.torn.length} bytes): ${TORN}`
      const advice = 'the next start of the service puts it aside'
      const torn = new StoreCorrupt(from.pathOf(last.name), last.goodBytes, what, advice)
      return { found, torn }
    } catch (error) {
      // What a service does meanwhile looks like damage, or a file vanishes.
      const mayPass = error instanceof StoreCorrupt || errorCodeOf(error) === 'ENOENT'
      if (attempt === READ_ATTEMPTS || !mayPass) throw error
      // A start of a service adds a lock's name.
      if (!wasServed && before.join() === (await from.list()).join()) throw error
    }
  }
}
