/* `check`, and the reading of a whole data directory without its lock. */

import { readWithoutKeys } from '../settings/read.ts'
import { errorCodeOf, escaped } from '../errors.ts'
import { PlantDatabase } from '../store/sqljs/database.ts'
import { type DirectoryScan, scanDirectory } from '../store/sqljs/directory-scan.ts'
import { nodeFiles } from '../store/sqljs/files.ts'
import { journalName, journalNumber, StoreCorrupt, TORN } from '../store/sqljs/journal-format.ts'
import { isLocked, lockNumber } from '../store/sqljs/lock.ts'
import { PAGE_BYTES } from '../store/sqljs/page-file.ts'
import { type OnProgress, type Replay, replay } from '../store/sqljs/recovery.ts'
import { counted, Progress } from './progress.ts'
import { SNAPSHOT } from '../store/sqljs/snapshot.ts'
import { StoreDirectory } from '../store/sqljs/store-directory.ts'

/** A compaction may remove a journal while it is read, but not so often in a row. */
const READ_ATTEMPTS = 5

export const run = async (): Promise<string> => escaped(await checkStore(embeddedStore('check')))

/** The data directory. @throws Error if plants are in etcd. */
export function embeddedStore(command: string): string {
  const { etcd, data } = readWithoutKeys(process.env, 'ignored')
  if (!etcd) return data
  const what = `${command} is for the embedded store`
  const look = 'look at what is in etcd with "etcdctl endpoint status"'
  throw new Error(`${what}: ${look}, and save it with "etcdctl snapshot save"`)
}

/**
 * Says in a line that a directory is sound. Takes no lock, and changes nothing.
 * @throws StoreCorrupt with what is wrong; Error if there is no store.
 */
export async function checkStore(path: string, files = nodeFiles, progress = new Progress()) {
  const directory = new StoreDirectory(files, path)
  return readStore(directory, progress, async (scan, wasServed, onProgress) => {
    // As a start does.
    const { snapshot, journals } = scan
    const database = await PlantDatabase.serving(snapshot)
    try {
      const replayed = await replay(scan, database, onProgress)
      progress.announce('checking', database.usedPages * PAGE_BYTES)
      const plants = counted(database.countVerified(), 'plant')
      const torn = await tornLine(scan, replayed, wasServed)
      if (torn) throw torn
      const found = `${snapshot ? 'a' : 'no'} snapshot and ${counted(journals.length, 'journal')}`
      return `${path} is sound: ${plants} in ${found}, up to write ${replayed.end.sequence}`
    } finally {
      database.close()
    }
  })
}

/** Reads what a scan found. `wasServed`: a service held the directory when the reading began. */
type ReadScan<T> = (scan: DirectoryScan, wasServed: boolean, onProgress: OnProgress) => Promise<T>

/**
 * Reads a directory without its lock. A running service may make it look damaged: then it is read
 * again.
 * @throws StoreCorrupt; Error if there is no store.
 */
export async function readStore<T>(from: StoreDirectory, progress: Progress, read: ReadScan<T>) {
  const tell: OnProgress = (name, bytes, totalBytes) =>
    progress.at(`reading ${name}`, bytes, totalBytes, 'MB')
  for (let attempt = 1; ; attempt++) {
    const before = await namesIn(from)
    if (!before.some(isOfStore))
      throw new Error(`there is no store in ${from.path}: set PLANTS_DATA to its directory`)
    // Also true if it cannot be known.
    const wasServed = await isLocked(from.path).catch(() => true)
    try {
      return await scanDirectory(from, (scan) => read(scan, wasServed, tell))
    } catch (error) {
      // What a service does meanwhile looks like damage, or a file vanishes.
      const mayPass = error instanceof StoreCorrupt || errorCodeOf(error) === 'ENOENT'
      if (attempt === READ_ATTEMPTS || !mayPass) throw error
      // A start of a service adds a lock's name.
      if (!wasServed && before.join() === (await namesIn(from)).join()) throw error
    }
  }
}

function namesIn(directory: StoreDirectory): Promise<readonly string[]> {
  return directory.list().catch((error: unknown) => {
    if (errorCodeOf(error) === 'ENOENT' || errorCodeOf(error) === 'ENOTDIR') return []
    throw error
  })
}

/** True for a file that only a service makes. An empty store of 2.0.0 is only a lock. */
function isOfStore(name: string): boolean {
  return name === SNAPSHOT || journalNumber(name) !== undefined || lockNumber(name) > 0n
}

/** What a torn last line is. While a service runs, it may only not be written to its end yet. */
export async function tornLine({ directory }: DirectoryScan, { last }: Replay, wasServed: boolean) {
  if (!last?.torn.length || wasServed || (await isLocked(directory.path))) return undefined
  const torn = `its last line is torn (${last.torn.length} bytes)`
  const file = directory.pathOf(journalName(last.number))
  const advice = 'the next start of the service puts it aside'
  return new StoreCorrupt(file, last.goodBytes, `${torn}: ${TORN}`, advice)
}
