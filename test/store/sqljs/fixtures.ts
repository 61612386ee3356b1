import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises'
import { errorCodeOf } from '../../../dist/errors.js'
import type { NewPlant, Plant } from '../../../dist/plants/plant.js'
import { compact } from '../../../dist/store/sqljs/compaction.js'
import { nodeFiles } from '../../../dist/store/sqljs/files.js'
import { SqljsStore, type SqljsStoreOptions } from '../../../dist/store/sqljs/store.js'
import { plant, readAll } from '../../contract/store.contract.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { until } from '../../support/time.ts'

/**
 * One bit low, high and in between, all bits, and a pair: what a disk or a cable does to a byte.
 */
export const BIT_PATTERNS: readonly number[] = [0x01, 0x20, 0x80, 0xff, 0x0a]

export interface LogLine {
  readonly level: string
  readonly message: string
  readonly fields: Readonly<Record<string, unknown>> | undefined
}

/**
 * A store without a lock, so that it can be left as a killed process leaves it, and without worker
 * threads, which are slow to start.
 */
export function openStore(
  directory: string,
  options: Partial<SqljsStoreOptions> = {},
  lines: LogLine[] = [],
): Promise<SqljsStore> {
  return SqljsStore.open({
    directory,
    maxDataBytes: 2 ** 26,
    log: (level, message, fields) => lines.push({ level, message, fields }),
    onFatal(error) {
      throw error
    },
    lock: async () => ({ release: async () => {} }),
    compact: (job) => compact(nodeFiles, job),
    // So that each byte of a file can be tried.
    paddingBytes: 0,
    ...options,
  })
}

export function list(store: SqljsStore, owner = 'alice'): Promise<Plant[]> {
  return readAll(store.list(owner, { after: undefined, limit: undefined }))
}

/** The files of a directory, by name. */
export async function filesOf(directory: string): Promise<Map<string, Buffer>> {
  const files = new Map<string, Buffer>()
  for (const name of (await readdir(directory)).toSorted())
    files.set(name, await readFile(`${directory}/${name}`))
  return files
}

/** A new directory that holds such files. */
export async function directoryOf(files: ReadonlyMap<string, Uint8Array>): Promise<string> {
  const directory = `${await temporaryDirectory()}/data`
  await mkdir(directory)
  for (const [name, bytes] of files) await writeFile(`${directory}/${name}`, bytes)
  return directory
}

function journalsIn(directory: string): string[] {
  return readdirSync(directory)
    .filter((name) => /^journal-\d+\.log$/.test(name))
    .toSorted()
}

/** The last journal holds nothing but its header. */
function isTurned(directory: string): boolean {
  const text = readFileSync(`${directory}/${journalsIn(directory).at(-1)}`, 'latin1')
  return text.indexOf('\n') === text.replace(/\0+$/, '').length - 1
}

/**
 * What a killed process leaves that wrote these plants, one write each, and turned its journal
 * behind some of them.
 */
export async function killedAfter(
  plants: readonly NewPlant[],
  options: Partial<SqljsStoreOptions> = {},
): Promise<Map<string, Buffer>> {
  const directory = `${await temporaryDirectory()}/data`
  const store = await openStore(directory, options)
  for (const each of plants) {
    await store.create('alice', each)
    // What a write brings about with one byte allowed: a turn, or where it can come to pass, a
    // compaction.
    if (options.compactBytes !== 1) continue
    if (options.compact !== undefined)
      await until('the journal is turned', () => isTurned(directory))
    else
      await until(
        'the journals are compacted',
        () => journalsIn(directory).length === 1 && existsSync(`${directory}/plants.sqlite`),
      )
  }
  const left = await leftByKill(directory)
  await store.close()
  return filesOf(left)
}

/**
 * A copy of a directory as a kill would leave it, but for files half written beside. It is made at
 * once, so that the store begins nothing meanwhile; one call of it may be under way, as with a real
 * kill.
 */
export async function leftByKill(directory: string): Promise<string> {
  const left = `${await temporaryDirectory()}/data`
  mkdirSync(left)
  for (const name of readdirSync(directory)) {
    if (/^(lock|starting)-|\.tmp$/.test(name)) continue
    try {
      copyFileSync(`${directory}/${name}`, `${left}/${name}`)
    } catch (error) {
      if (errorCodeOf(error) !== 'ENOENT') throw error
    }
  }
  return left
}

export function plantsTo(last: bigint, from = 1n): NewPlant[] {
  return Array.from({ length: Number(last - from) + 1 }, (_, i) => plant(from + BigInt(i)))
}
