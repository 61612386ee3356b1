import { isInt64, isText } from '../../plants/plant.ts'
import { access, readFile } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import { StoreUnavailable } from '../../plants/store.ts'
import { buildDatabase } from './compactor.ts'
import { readPlants } from './database.ts'
import { type Files, nodeFiles } from './files.ts'
import { StoreCorrupt } from './journal.ts'
import { isLocked } from './lock.ts'
import { type Replay, type Survey, survey } from './recovery.ts'
import { writeSnapshot } from './snapshot.ts'
import { SqljsStore } from './store.ts'

/** A compaction that passes by can remove a journal under a reader; so often in a row it does not. */
const READ_ATTEMPTS = 5
const IMPORT_AT_ONCE = 1000
const PROGRESS_MS = 1000

/**
 * Reads a whole directory without its lock, as often as a compaction passes by.
 * @throws StoreCorrupt, or Error when there is no store.
 */
async function readUnlocked<T>(files: Files, directory: string, read: (found: Survey) => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await read(await survey(files, directory))
    } catch (error) {
      if (attempt === READ_ATTEMPTS) throw error
    }
  }
}

/** Says in a few lines that a directory is sound. Changes nothing. @throws StoreCorrupt with what is wrong. */
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

/** A line that is still being written looks torn to whoever reads it meanwhile. */
async function refuseTorn(directory: string, { last }: Replay): Promise<void> {
  if (!last || last.tornBytes === 0 || (await isLocked(directory))) return
  throw new StoreCorrupt(
    `${directory}/journal ${last.number}`,
    last.goodBytes,
    `its last line is torn (${last.tornBytes} bytes). It was never acknowledged; the next start of the service cuts it off`,
  )
}

/** Writes everything that is durable to a new file, whose name must be free. */
export async function exportStore(directory: string, file: string, files: Files = nodeFiles): Promise<string> {
  if (await access(file).then(() => true, () => false)) throw new Error(`${file} exists already: name a file that does not`)
  return readUnlocked(files, directory, async (found) => {
    const { database, replayed } = await buildDatabase(files, found)
    try {
      const plants = database.check()
      const { sequence } = replayed
      await writeSnapshot(files, dirname(file), basename(file), database.toFile({ sequence, complete: true }), sequence)
      return `${plants} plants written to ${file}`
    } finally {
      database.close()
    }
  })
}

/**
 * Creates every plant of a SQLite file in the store. Those that are there already with the same content are no
 * conflict; any other is named, and the rest is created all the same.
 * @throws Error naming what could not be kept; everything else is in the store then.
 */
export async function importStore(
  options: { readonly dataDirectory: string; readonly maxDataBytes: number },
  file: string,
  progress: (line: string) => void,
): Promise<string> {
  const bytes = await readFile(file)
  const failed: string[] = []
  let fatal: unknown
  const store = await SqljsStore.open({
    directory: options.dataDirectory,
    maxDataBytes: options.maxDataBytes,
    log: (level, message, fields) => level === 'error' && progress(`${message}: ${String(fields?.['error'] ?? '')}`),
    onFatal: (error) => (fatal = error),
  })
  let read = 0
  let waiting: Promise<void>[] = []
  let toldAt = performance.now()
  try {
    await readPlants(bytes, async ([owner, id, name, tag]) => {
      read += 1
      const what = `owner ${JSON.stringify(owner)}, id ${String(id)}`
      if (!isText(owner) || owner === '' || !isInt64(id) || !isText(name) || !(tag === null || isText(tag))) {
        failed.push(`${what}: owner and name must be text, id an int64, tag text or null`)
        return
      }
      waiting.push(
        store.create(owner, tag === null ? { id, name } : { id, name, tag }).then(
          (created) => void (created === 'conflict' && failed.push(`${what}: the store has another plant with this id`)),
          (error: unknown) => void failed.push(`${what}: ${error instanceof StoreUnavailable ? 'it could not be stored for certain' : 'the store is full'}`),
        ),
      )
      if (waiting.length < IMPORT_AT_ONCE) return
      await Promise.all(waiting)
      waiting = []
      if (performance.now() - toldAt > PROGRESS_MS) {
        progress(`${read} plants read`)
        toldAt = performance.now()
      }
    })
    await Promise.all(waiting)
  } finally {
    await store.close()
  }
  if (fatal !== undefined) throw fatal
  if (failed.length > 0) throw new Error(`${read - failed.length} of ${read} plants are in the store; these are not:\n${failed.join('\n')}`)
  return `${read} plants read from ${file}; all of them are in the store`
}
