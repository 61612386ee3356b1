import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { cp, mkdir, writeFile } from 'node:fs/promises'
import type { TestContext } from 'node:test'
import { errorCodeOf } from '../../../dist/errors.js'
import type { NewPlant, Plant } from '../../../dist/plants/plant.js'
import { type Compact, compact } from '../../../dist/store/sqljs/compaction.js'
import { type File, type Files } from '../../../dist/store/sqljs/disk/files.js'
import { type Mode, nodeFiles } from '../../../dist/store/sqljs/disk/files.js'
import { readWhole } from '../../../dist/store/sqljs/disk/files.js'
import { readHead, StoreCorrupt } from '../../../dist/store/sqljs/disk/journal-format.js'
import { SNAPSHOT } from '../../../dist/store/sqljs/disk/snapshot.js'
import { exportToFile } from '../../../dist/store/sqljs/inspect.js'
import { SqljsStore, type SqljsStoreOptions } from '../../../dist/store/sqljs/sqljs-store.js'
import { ALL, plant, readAll } from '../../contract/store.contract.ts'
import { SimulatedDisk, simulatedFiles, textLength } from '../../faults/simulated-disk.ts'
import { temporaryDirectory, temporaryDirectorySync } from '../../support/directories.ts'
import { ROOT } from '../../support/release.ts'
import { until } from '../../support/time.ts'
import { logOf } from '../../support/log.ts'

/** One bit low, high and in between, all bits, and a pair: what damage does to a byte. */
export const BIT_PATTERNS: readonly number[] = [0x01, 0x20, 0x80, 0xff, 0x0a]

/** Whether an error is a refusal that names the file and the byte. */
export function corruptAt(file: string, byte: number, what = /./): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof StoreCorrupt, String(error))
    assert.ok(error.message.startsWith(`${file} is damaged at byte ${byte}: `), error.message)
    assert.match(error.message, what)
    return true
  }
}

/** For a test that sees thousands of errors: their stacks would take most of its time. */
export function withoutStacks(t: TestContext): void {
  const { stackTraceLimit } = Error
  Error.stackTraceLimit = 0
  t.after(() => (Error.stackTraceLimit = stackTraceLimit))
}

/** No compaction succeeds while creates go on. */
export const notNow: Compact = () => Promise.reject(new Error('not now'))

export interface LogLine {
  readonly level: string
  readonly message: string
  readonly fields: Readonly<Record<string, unknown>> | undefined
}

/** A store without a lock, so that a kill can be simulated, and without a worker, which is slow. */
export function openStore(
  directory: string,
  options: Partial<SqljsStoreOptions> = {},
  lines: LogLine[] = [],
): Promise<SqljsStore> {
  return SqljsStore.open({
    directory,
    maxDataBytes: 2 ** 26,
    log: logOf((level, message, fields) => lines.push({ level, message, fields })),
    onFatal(error) {
      throw error
    },
    lock: async () => ({ release: async () => {} }),
    compact: (job) => compact(options.files ?? nodeFiles, job),
    // Without padding each byte of a file can be tried.
    paddingBytes: 0,
    // Also of a small store, whose snapshot has three pages, each write may be compacted.
    compactShare: 0,
    ...options,
  })
}

/** A start finds these plants of alice's, and stops. */
export async function holds(directory: string, plants: readonly Plant[]): Promise<void> {
  const store = await openStore(directory)
  assert.deepEqual(await list(store), plants)
  await store.close()
}

/** Compactions have succeeded so often. */
export function untilCompacted(lines: readonly LogLine[], times = 1): Promise<void> {
  const isCompacted = ({ message }: LogLine): boolean => message === 'compacted'
  return until('the journals are compacted', () => lines.filter(isCompacted).length >= times)
}

/** Files, by default real ones, some of whose calls are others. */
export function filesWith(
  others: (file: File, mode: Mode, path: string) => Partial<File>,
  files: Files = nodeFiles,
): Files {
  return {
    ...files,
    async open(path, mode) {
      const file = await files.open(path, mode)
      return { ...file, ...others(file, mode, path) }
    },
  }
}

/** Real files; before a journal is read as a whole, and not only its head, something is done. */
export function filesReading(before: (path: string) => unknown): Files {
  return filesWith((file, _, path) => {
    let beginnings = 0
    const read: File['read'] = async (bytes, at) => {
      if (path.endsWith('.log') && at === 0 && beginnings++ === 1) await before(path)
      return file.read(bytes, at)
    }
    return { read }
  })
}

/** All bytes of a file. */
export async function contentsOf(files: Files, path: string): Promise<Buffer> {
  const file = await files.open(path, 'existing')
  return readWhole(file).finally(file.close)
}

export function list(store: SqljsStore, owner = 'alice'): Promise<Plant[]> {
  return readAll(store.list(owner, ALL))
}

/** The files of a directory, by name. */
export async function filesOf(
  directory: string,
  files: Files = nodeFiles,
): Promise<Map<string, Buffer>> {
  const contents = new Map<string, Buffer>()
  for (const name of (await files.list(directory)).toSorted())
    contents.set(name, await contentsOf(files, `${directory}/${name}`))
  return contents
}

/** A new directory that holds such files. */
export async function directoryOf(files: ReadonlyMap<string, Uint8Array>): Promise<string> {
  const directory = `${await temporaryDirectory()}/data`
  await mkdir(directory)
  for (const [name, bytes] of files) await writeFile(`${directory}/${name}`, bytes)
  return directory
}

/** On the real disk this directory is empty: a check finds that no service holds it. */
export const IN_MEMORY = temporaryDirectorySync()

/** The directory `IN_MEMORY` with such files, for tests that open it hundreds of times. */
export function memoryDisk(contents: ReadonlyMap<string, Uint8Array>): SimulatedDisk {
  const disk = SimulatedDisk.empty()
  disk.makeDirectory(IN_MEMORY)
  for (const [name, bytes] of contents) {
    const file = disk.createOrEmpty(`${IN_MEMORY}/${name}`)
    disk.write(file, bytes, 0)
    disk.sync(file)
  }
  return disk
}

/** A store over such files in memory. */
export function openedOver(files: ReadonlyMap<string, Uint8Array>) {
  const disk = simulatedFiles(memoryDisk(files))
  const open = (): Promise<SqljsStore> => openStore(IN_MEMORY, { files: disk, retryMs: 1 })
  return { disk, open }
}

/** Files after creates, each of them answered, and a stop or a kill. An id is a name's digits. */
export async function afterCreates(
  files: ReadonlyMap<string, Uint8Array>,
  names: readonly string[],
  isKilled = false,
): Promise<Map<string, Buffer>> {
  const { disk, open } = openedOver(files)
  const store = await open()
  for (const name of names)
    assert.equal(await store.create('alice', plant(BigInt(name.slice(1)), name)), 'stored')
  const left = await filesOf(IN_MEMORY, disk)
  await store.close()
  return isKilled ? left : filesOf(IN_MEMORY, disk)
}

/** The file that an export of such a directory is, as a snapshot. */
export async function exportOf(directory: string, files?: Files): Promise<Map<string, Buffer>> {
  const file = `${await temporaryDirectory()}/export`
  await exportToFile(directory, file, files)
  return new Map([[SNAPSHOT, readFileSync(file)]])
}

/** A copy of a folder of test/fixtures/. */
export async function fixture(name: string): Promise<string> {
  const directory = await temporaryDirectory()
  await cp(`${ROOT}/test/fixtures/${name}`, directory, { recursive: true })
  return directory
}

/** The last journal holds only its head; without `closed`, it is the only one. */
function isRotated(directory: string, closed: boolean): boolean {
  const journals = readdirSync(directory).filter((name) => /^journal-\d+\.log$/.test(name))
  const last = readFileSync(`${directory}/${journals.toSorted().at(-1)}`)
  const isEmpty = readHead('', last).headBytes === textLength(last)
  return isEmpty && (closed || journals.length === 1)
}

/**
 * What a killed process leaves after one write for each of these plants, with rotations between.
 */
export async function killedAfter(
  plants: readonly NewPlant[],
  options: Partial<SqljsStoreOptions> = {},
): Promise<Map<string, Buffer>> {
  const directory = `${await temporaryDirectory()}/data`
  const store = await openStore(directory, options)
  for (const each of plants) {
    await store.create('alice', each)
    // With one byte allowed, each write leads to a rotation, and to a compaction if that works.
    if (options.compactBytes === 1)
      await until('the journal is rotated', () =>
        isRotated(directory, options.compact !== undefined),
      )
  }
  const left = filesLeftByKill(directory)
  await store.close()
  return left
}

/**
 * The files of a directory as a kill would leave them, without temporary ones. It is synchronous,
 * so that the store begins nothing meanwhile. One call may be under way, as with a real kill.
 */
export function filesLeftByKill(directory: string): Map<string, Buffer> {
  const left = new Map<string, Buffer>()
  for (const name of readdirSync(directory)) {
    if (/^(lock|starting)-|\.tmp$/.test(name)) continue
    try {
      left.set(name, readFileSync(`${directory}/${name}`))
    } catch (error) {
      if (errorCodeOf(error) !== 'ENOENT') throw error
    }
  }
  return left
}

export function plantsTo(last: bigint, from = 1n): NewPlant[] {
  return Array.from({ length: Number(last - from) + 1 }, (_, i) => plant(from + BigInt(i)))
}
