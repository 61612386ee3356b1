import assert from 'node:assert/strict'
import { test } from 'node:test'
import { memoryFile } from '../../../dist/cli/export.js'
import { compact, type Compact } from '../../../dist/store/sqljs/compaction.js'
import { PlantDatabase } from '../../../dist/store/sqljs/memory/database.js'
import type { Row } from '../../../dist/store/sqljs/disk/journal-format.js'
import { nodeFiles, type File } from '../../../dist/store/sqljs/disk/files.js'
import { PageFile } from '../../../dist/store/sqljs/disk/page-file.js'
import { trailerOf, type Snapshot } from '../../../dist/store/sqljs/disk/snapshot.js'
import { Gate, plant } from '../../contract/store.contract.ts'
import { seeded } from '../../support/random.ts'
import { someOf } from '../../support/scale.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { databaseOf, fileOf, sourceOf, writeSnapshot } from '../../support/store-files.ts'
import { holds, openStore } from './fixtures.ts'

/** Rows of several owners, with texts that need overflow pages among them, in any order. */
function someRows(count: number, random: () => number, first = 0): Row[] {
  return Array.from({ length: count }, (_, i): Row => {
    const name = `plant ${first + i}`.padEnd(random() < 0.1 ? 9000 : 10, 'x')
    const id = String(BigInt.asIntN(64, BigInt(first + i) * 0x9e3779b97f4a7c15n))
    return i % 3 === 0 ? [`owner ${i % 7}`, id, name] : [`owner ${i % 7}`, id, name, 'tag']
  })
}

/** Whether the checksum in its trailer fits; undefined without one. */
async function checksumFits(bytes: Uint8Array): Promise<boolean | undefined> {
  const pages = new PageFile('a.sqlite', await fileOf(bytes), bytes.length)
  const trailer = await trailerOf(pages)
  return trailer && trailer.sha !== undefined
}

/** What was written: a snapshot with these rows. */
async function has(bytes: Buffer, rows: readonly Row[]): Promise<void> {
  assert.equal(await checksumFits(bytes), true)
  const served = await PlantDatabase.serving(await sourceOf(bytes.subarray(0, -64)))
  assert.equal(served.countVerified(), rows.length)
  for (const row of rows) assert.equal(served.existing(row), 'same', row[2].slice(0, 20))
  served.close()
}

test('snapshot: plants that take much memory are moved to the file before the end', async (t) => {
  // As if each page were 32 pages.
  const rows = Array.from({ length: 38 }, (_, id): Row => {
    return ['a', String(id), `${id}`.padEnd(2 ** 15, 'x')]
  })
  const used = Object.getOwnPropertyDescriptor(PlantDatabase.prototype, 'usedPages')?.get
  const many = function (this: PlantDatabase): number {
    return 32 * Number(used?.call(this))
  }
  t.mock.getter(PlantDatabase.prototype, 'usedPages', many)
  const { memory, bytes } = memoryFile()
  const lengths = new Set<number>()
  const { insert } = PlantDatabase.prototype
  const counted = function (this: PlantDatabase, some: readonly Row[]): void {
    lengths.add(bytes.length)
    insert.call(this, some)
  }
  t.mock.method(PlantDatabase.prototype, 'insert', counted)
  await writeSnapshot(memory, rows)
  // At the start, and after more than 32 MiB.
  assert.equal(lengths.size, 2)
  await has(Buffer.from(bytes), rows)
})

/** Writing these rows fails, and leaves no snapshot. */
async function writesNone(rows: readonly Row[], why: RegExp, snapshot?: Snapshot) {
  const { memory, bytes } = memoryFile()
  await assert.rejects(writeSnapshot(memory, rows, snapshot), why)
  assert.equal(await checksumFits(bytes), undefined)
}

test('snapshot: two plants of one id are refused, wherever they are', async () => {
  const rows: Row[] = Array.from({ length: 600 }, (_, id) => ['a', String(id), `plant ${id}`])
  for (const [source, added] of [
    [rows.slice(0, 1), rows],
    [[], [...rows, ...rows.slice(-1)]],
    [rows.slice(-1), rows],
  ] as const)
    await writesNone(added, /UNIQUE constraint failed/, await sourceOf(await databaseOf(source)))
})

/** Builds a file. The call that is counted as `failing` fails. Returns how many there were. */
async function buildWith(failing: number, snapshot: Snapshot, rows: readonly Row[]) {
  let calls = 0
  const { memory, bytes } = memoryFile()
  const fail = (): void => {
    if (++calls === failing) throw new Error('EIO')
  }
  const file: File = {
    ...memory,
    writeNow: (from, at) => (fail(), memory.writeNow(from, at)),
    readNow: (to, at) => (fail(), memory.readNow(to, at)),
    write: async (from, at) => (fail(), memory.write(from, at)),
    sync: async () => (fail(), memory.sync()),
    syncNow: () => fail(),
  }
  const written = writeSnapshot(file, rows, snapshot)
  const error: unknown = await written.then(() => undefined).catch((thrown: unknown) => thrown)
  return { calls, bytes: Buffer.from(bytes), error }
}

test('snapshot: it has all plants; a failure of any call leaves none', async (t) => {
  const { random } = seeded(t)
  const before = someRows(300, random)
  const after = someRows(600, random, 300)
  const bytes = await databaseOf(before)
  const source = (): Promise<Snapshot> => sourceOf(bytes)
  const { calls, error, bytes: whole } = await buildWith(0, await source(), after)
  assert.equal(error, undefined)
  assert.ok(calls > 100, `${calls} calls`)
  for (const at of someOf(random, Array(calls).keys(), 160)) {
    const call = at + 1
    const failed = await buildWith(call, await source(), after)
    assert.ok(failed.error instanceof Error && failed.error.message === 'EIO', `call ${call}`)
    // Only the last sync comes after the trailer.
    if (call < calls) assert.notEqual(await checksumFits(failed.bytes), true, `call ${call}`)
  }
  await has(whole, [...before, ...after])
})

test('snapshot: one that SQLite did not write to is never a snapshot', async (t) => {
  const rows: Row[] = [['a', '1', 'Oak']]
  for (const written of [
    await databaseOf([]),
    // Of the same sequence and length.
    await databaseOf(rows).then((bytes) => bytes.fill(0, bytes.indexOf('format') + 6)),
  ]) {
    // As if sql.js took a copy.
    const copy = t.mock.getter(PageFile.prototype, 'bytes', () => Buffer.from(written))
    await writesNone([['b', '2', 'Elm']], /./).finally(() => copy.mock.restore())
  }
})

test('snapshot: one that is longer than SQLite says is never a snapshot', async () => {
  const snapshot = await databaseOf([['a', '1', 'Oak']])
  const longer = await sourceOf(Buffer.concat([snapshot, Buffer.alloc(4096)]))
  await writesNone([], /has not written all of the snapshot to its file/, longer)
})

test('snapshot: with damage that SQLite finds, none is made of an old one', async () => {
  const rows = Array.from({ length: 300 }, (_, id): Row => ['a', String(id), `plant ${id}`])
  const snapshot = await databaseOf(rows)
  // The number of cells of the last page.
  snapshot.writeUInt16BE(0, snapshot.length - 4096 + 3)
  const why = /SQLite finds damage|malformed/
  await writesNone([], why, await sourceOf(snapshot))
})

test('snapshot: one is made at a time, however much is created meanwhile', async () => {
  const [path, gate] = [await temporaryDirectory(), new Gate()]
  let [running, most] = [0, 0]
  gate.hold()
  const waiting: Compact = async (job) => {
    most = Math.max(most, ++running)
    await gate.passed
    return compact(nodeFiles, job).finally(() => running--)
  }
  const store = await openStore(path, { compact: waiting, compactBytes: 1 })
  for (const id of [1n, 2n, 3n]) await store.create('alice', plant(id, 'Oak'))
  assert.equal(running, 1)
  gate.release()
  await store.close()
  assert.equal(most, 1)
  await holds(path, [{ name: 'Oak' }, { name: 'Oak' }, { name: 'Oak' }])
})
