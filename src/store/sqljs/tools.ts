import { access, readFile } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import { errorCodeOf } from '../../errors.ts'
import { isInt64, isText, type NewPlant } from '../../plants/plant.ts'
import type { PlantStore } from '../../plants/store.ts'
import type { StoreLog } from './keeper.ts'
import { buildDatabase } from './compactor.ts'
import { readPlants } from './database.ts'
import { type Files, nodeFiles } from './files.ts'
import { journalName, StoreCorrupt } from './journal.ts'
import { isLocked } from './lock.ts'
import { type Replay, type Survey, survey } from './recovery.ts'
import { writeSnapshot } from './snapshot.ts'

/** A compaction that passes by can remove a journal under a reader; so often in a row it does not. */
const READ_ATTEMPTS = 5
/** Creates under way at a time, and their characters: enough for large groups, few enough to stay small in memory, and to come through to etcd in time. */
const IMPORT_AT_ONCE = 1000
const IMPORT_CHARS = 8 * 1024 * 1024
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
 * Writes everything that is durable to a new SQLite file. Takes no lock: a service may go on writing.
 * @throws StoreCorrupt; Error when the file exists already, or there is no store.
 */
export async function exportStore(directory: string, file: string, files: Files = nodeFiles): Promise<string> {
  if (await access(file).then(() => true, () => false)) throw new Error(`${file} exists already: name a file that does not`)
  return readUnlocked(files, directory, async (found) => {
    const { database, replayed } = await buildDatabase(files, found)
    try {
      const plants = database.check()
      const meta = { sequence: replayed.sequence, complete: true }
      await writeSnapshot(files, dirname(file), basename(file), database.toFile(meta), meta.sequence)
      return `${plants} plants written to ${file}`
    } finally {
      database.close()
    }
  })
}

/**
 * Creates every plant of a SQLite file in the store that `open` opens. One that is there already with the same content is no conflict;
 * what cannot be kept is told in a line each, and the rest is created all the same.
 * @throws DirectoryLocked while a service holds the directory; Error when anything could not be kept.
 */
export async function importStore(
  open: (log: StoreLog, onFatal: (error: unknown) => void) => Promise<PlantStore>,
  file: string,
  tell: (line: string) => void,
): Promise<string> {
  const bytes = await readFile(file)
  let read = 0
  let lost = 0
  let fatal: unknown
  const store = await open(
    (level, message) => level === 'error' && tell(message),
    (error) => (fatal = error),
  )
  const trouble = store.trouble()
  if (trouble !== undefined) {
    await store.close()
    throw new Error(`nothing can be kept at the moment: ${trouble}`)
  }
  const lose = (what: string, why: string): void => {
    lost += 1
    tell(`not imported: ${what}: ${why}`)
  }
  let underWay: Promise<void>[] = []
  let chars = 0
  let toldAtMs = performance.now()
  try {
    await readPlants(bytes, async ([owner, id, name, tag]) => {
      read += 1
      const what = `owner ${JSON.stringify(owner)}, id ${String(id)}`
      if (!isText(owner) || owner === '' || !isInt64(id) || !isText(name) || !(tag === null || isText(tag))) {
        lose(what, 'owner and name must be text, id an int64, and tag text or NULL')
        return
      }
      const plant: NewPlant = tag === null ? { id, name } : { id, name, tag }
      underWay.push(
        store.create(owner, plant).then(
          (created) => {
            if (created === 'conflict') lose(what, 'the store has another plant with this id')
          },
          (error: unknown) => lose(what, error instanceof Error ? error.message : String(error)),
        ),
      )
      chars += name.length + (tag?.length ?? 0)
      if (underWay.length < IMPORT_AT_ONCE && chars < IMPORT_CHARS) return
      await Promise.all(underWay)
      underWay = []
      chars = 0
      if (performance.now() - toldAtMs < PROGRESS_MS) return
      tell(`${read} plants read`)
      toldAtMs = performance.now()
    }).catch((error: unknown) => {
      throw new Error(`${file} cannot be read as a SQLite file with a table of plants: ${error instanceof Error ? error.message : String(error)}`)
    })
    await Promise.all(underWay)
  } finally {
    await store.close()
  }
  if (fatal !== undefined) throw fatal
  if (lost > 0) throw new Error(`${read - lost} of ${read} plants are in the store; the others are named above`)
  return `${read} plants read from ${file}; all of them are in the store`
}

/** Reads a whole directory without its lock, once more whenever a compaction passed by. */
async function readUnlocked<T>(files: Files, directory: string, read: (found: Survey) => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await read(await survey(files, directory))
    } catch (error) {
      if (attempt === READ_ATTEMPTS) throw errorCodeOf(error) === 'ENOENT' ? new Error(`there is no store in ${directory}`, { cause: error }) : error
    }
  }
}

/** A line that is still being written looks torn to whoever reads it meanwhile. */
async function refuseTorn(directory: string, { last }: Replay): Promise<void> {
  if (!last || last.tornBytes === 0 || (await isLocked(directory))) return
  const what = `its last line is torn (${last.tornBytes} bytes). It was never acknowledged, and the next start of the service cuts it off`
  throw new StoreCorrupt(`${directory}/${journalName(last.number)}`, last.goodBytes, what)
}
