import { errorCodeOf, reasonOf } from '../../errors.ts'
import type { PlantStore } from '../../plants/store.ts'
import type { StoreLog } from './settings.ts'
import { buildDatabase } from './compaction.ts'
import { type Files, nodeFiles } from './files.ts'
import { journalName, journalNumber, StoreCorrupt } from './journal-format.ts'
import { isLocked, lockNumber } from './lock.ts'
import { refuseTarget, writeNewFile } from './new-file.ts'
import { type DirectoryScan, scanDirectory } from './directory-scan.ts'
import type { Replay } from './replay.ts'
import { sealed, SNAPSHOT } from './snapshot.ts'
import { openSource, type Source, type SourcePlant, type SourceRow } from './source.ts'

/**
 * A compaction that passes by can remove a journal under a reader; so often in a row it does not.
 */
const READ_ATTEMPTS = 5
const PROGRESS_MS = 1000

/**
 * Says in a line that a directory is sound. Takes no lock, and changes nothing.
 * @throws StoreCorrupt with what is wrong; Error when there is no store.
 */
export async function checkStore(directory: string, files: Files = nodeFiles): Promise<string> {
  const { plants, replayed, found } = await readUnlocked(files, directory, async (found) => {
    const { database, replayed } = await buildDatabase(files, found)
    const plants = database.check()
    database.close()
    return { plants, replayed, found }
  })
  await refuseTorn(directory, replayed)
  const journals = `${found.journals.length} journal${found.journals.length === 1 ? '' : 's'}`
  return `${directory} is sound: ${plants} plants in ${found.snapshot ? 'a snapshot' : 'no snapshot'} and ${journals}, up to write ${replayed.sequence}`
}

/**
 * Writes everything that is durable to a new SQLite file. Takes no lock: a service may go on
 * writing.
 * @throws StoreCorrupt; Error when the file exists already or cannot be made, or there is no store.
 */
export async function exportStore(
  directory: string,
  file: string,
  files: Files = nodeFiles,
): Promise<string> {
  await refuseTarget(file, directory)
  const { database, replayed } = await readUnlocked(files, directory, (found) =>
    buildDatabase(files, found),
  )
  try {
    const plants = database.check()
    const { sequence } = replayed
    await writeNewFile(file, sealed(database.toFile({ sequence, complete: true }), sequence))
    return `${plants} plants written to ${file}`
  } finally {
    database.close()
  }
}

/**
 * Creates every plant of a SQLite file in the store that `open` opens. One that is there already
 * with the same content is no conflict; what cannot be kept is told in a line each, and the rest is
 * created all the same.
 * @throws DirectoryLocked while a service holds the directory; Error when anything could not be
 * kept.
 */
export async function importStore(
  open: (log: StoreLog, onFatal: (error: unknown) => void) => Promise<PlantStore>,
  file: string,
  tell: (line: string) => void,
): Promise<string> {
  const source = await openSource(file)
  try {
    if (source.isPartial) {
      const what = `${file} was made while a service ran, and may lack what its journals hold`
      tell(`${what}: "plant-store export" makes a file that has everything`)
    }
    return await importSource(open, file, source, tell)
  } finally {
    await source.close()
  }
}

async function importSource(
  open: (log: StoreLog, onFatal: (error: unknown) => void) => Promise<PlantStore>,
  file: string,
  source: Source,
  tell: (line: string) => void,
): Promise<string> {
  let fatal: unknown
  const store = await open(
    (level, message) => level === 'error' && tell(message),
    (error) => (fatal = error),
  )
  let [read, lost, toldAtMs] = [0, 0, performance.now()]
  const keep = async ({ place, content }: SourceRow): Promise<void> => {
    const flaw = 'flaw' in content ? content.flaw : await flawOf(store, content)
    if (flaw === undefined) return
    lost += 1
    tell(`not imported: ${place}: ${flaw}`)
  }
  const next = (): Promise<readonly SourceRow[]> =>
    source.next().catch((error: unknown) => {
      const before = `${read - lost} of the ${read} plants before that are in the store`
      throw new Error(`${textOf(error)}; ${before}`, { cause: error })
    })
  try {
    const unavailableReason = store.unavailableReason()
    if (unavailableReason !== undefined)
      throw new Error(`nothing can be kept at the moment: ${unavailableReason}`)
    for (let rows = await next(); rows.length > 0; rows = await next()) {
      read += rows.length
      await Promise.all(rows.map(keep))
      if (performance.now() - toldAtMs < PROGRESS_MS) continue
      tell(`${read} plants read`)
      toldAtMs = performance.now()
    }
  } finally {
    await store.close()
  }
  if (fatal !== undefined) throw fatal
  if (lost > 0)
    throw new Error(`${read - lost} of ${read} plants are in the store; the others are named above`)
  return `${read} plants read from ${file}; all of them are in the store`
}

/** Creates a plant; why it could not be kept, or undefined. */
async function flawOf(
  store: PlantStore,
  { owner, plant }: SourcePlant,
): Promise<string | undefined> {
  try {
    const created = await store.create(owner, plant)
    return created === 'conflict' ? 'the store has another plant with this id' : undefined
  } catch (error) {
    return textOf(error)
  }
}

/** A file that only a service makes. A store of no plants is a lock alone, after a clean stop. */
const isOurs = (name: string): boolean =>
  name === SNAPSHOT || journalNumber(name) !== undefined || lockNumber(name) > 0n

/**
 * Reads a whole directory without its lock, and again after a compaction came between.
 * @throws Error where there is no store.
 */
async function readUnlocked<T>(
  files: Files,
  directory: string,
  read: (found: DirectoryScan) => Promise<T>,
): Promise<T> {
  const names = await files.list(directory).catch((error: unknown) => {
    if (errorCodeOf(error) === 'ENOENT' || errorCodeOf(error) === 'ENOTDIR') return []
    throw error
  })
  if (!names.some(isOurs)) throw new Error(`there is no store in ${directory}`)
  for (let attempt = 1; ; attempt++) {
    try {
      return await read(await scanDirectory(files, directory))
    } catch (error) {
      if (attempt === READ_ATTEMPTS) throw error
    }
  }
}

/** A line that is still being written looks torn to whoever reads it meanwhile. */
async function refuseTorn(directory: string, { last }: Replay): Promise<void> {
  if (!last || last.tornBytes === 0 || (await isLocked(directory))) return
  const what = `its last line is torn (${last.tornBytes} bytes). It was never acknowledged, and the next start of the service cuts it off`
  throw new StoreCorrupt(`${directory}/${journalName(last.number)}`, last.goodBytes, what)
}

function textOf(error: unknown): string {
  return reasonOf(error)
}
