import assert from 'node:assert/strict'
import { basename } from 'node:path'
import { test } from 'node:test'
import { headLines, journalName } from '../../../dist/store/sqljs/disk/journal-format.js'
import { batchLine, readHead, StoreCorrupt } from '../../../dist/store/sqljs/disk/journal-format.js'
import { SNAPSHOT } from '../../../dist/store/sqljs/disk/snapshot.js'
import { checkDirectory, exportToFile } from '../../../dist/store/sqljs/inspect.js'
import { simulatedFiles } from '../../faults/simulated-disk.ts'
import { oldHead } from '../../support/store-files.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { afterCreates, directoryOf, exportOf, filesOf, fixture, IN_MEMORY } from './fixtures.ts'
import { list, memoryDisk, openedOver } from './fixtures.ts'

/* What a refusal tells the operator to do is done here, and then the store starts. */

type Contents = ReadonlyMap<string, Buffer>

async function refusalOf(files: Contents): Promise<string> {
  const { disk, open } = openedOver(files)
  const messageOf = (error: unknown): string => {
    assert.ok(error instanceof StoreCorrupt, String(error))
    return error.message
  }
  const message = await checkDirectory(IN_MEMORY, disk).then(() => '', messageOf)
  if (message === '') return message
  assert.equal(await open().then(() => '', messageOf), message)
  const byName = [...files].toSorted(([a], [b]) => (a < b ? -1 : 1))
  assert.deepEqual(await filesOf(IN_MEMORY, disk), new Map(byName))
  return message
}

/** Moves the one file that each refusal names. Then a start lists these plants. */
async function movedUntilItStarts(files: Contents, moved: string[], names: readonly string[]) {
  const left = new Map(files)
  const done: string[] = []
  for (let refusal = await refusalOf(left); refusal !== ''; refusal = await refusalOf(left)) {
    const [, path = ''] = /^(\S+) is damaged/.exec(refusal) ?? []
    assert.match(refusal, /move this file elsewhere$/)
    assert.ok(left.delete(basename(path)), refusal)
    done.push(basename(path))
  }
  assert.deepEqual(done, moved)
  const store = await openedOver(left).open()
  const found = await list(store)
  assert.deepEqual(
    found.map(({ name }) => name),
    names,
  )
  await store.close()
}

const journalsOf = (files: Contents) => new Map([...files].filter(([name]) => name !== SNAPSHOT))

test('cures: a damaged journal that the snapshot covers may be moved elsewhere', async () => {
  const store = await afterCreates(await afterCreates(new Map(), ['p1', 'p2']), ['p3'], true)
  const [, journal = Buffer.of()] = [...store].find(([name]) => name === journalName(2)) ?? []
  const { id } = readHead('', journal).begin
  const head = headLines({ id, sequence: 0, checksum: 0 })
  for (const bytes of [[Buffer.from('no head')], [head, Buffer.from('no line\n')]]) {
    const damaged = Buffer.concat(bytes)
    const files = new Map(store).set(journalName(1), damaged)
    assert.match(await refusalOf(files), /the snapshot holds its plants/)
    await movedUntilItStarts(files, [journalName(1)], ['p1', 'p2', 'p3'])
  }
})

test('cures: of journals beside an export, only the one that does not fit is moved', async () => {
  const store = await afterCreates(new Map(), ['p1', 'p2'], true)
  const exported = await exportOf(await directoryOf(store))
  const own = await afterCreates(store, ['p3'], true)
  const [, journal = Buffer.of()] = [...own].find(([name]) => name === journalName(1)) ?? []
  const { id } = readHead('', journal).begin
  const late = headLines({ id, sequence: 7, checksum: 1 })
  const beside = new Map([...own, ...exported]).set(journalName(3), late)
  assert.match(await refusalOf(beside), /what is before it ends with write 3: a file is missing/)
  await movedUntilItStarts(beside, [journalName(3)], ['p1', 'p2', 'p3'])
})

test('cures: a fork that has other lines than the snapshot is moved elsewhere', async () => {
  const base = await afterCreates(new Map(), ['p1', 'p2'])
  const a = await afterCreates(base, ['a3'])
  const straddling = await afterCreates(base, ['b3', 'b4'], true)
  const files = new Map([...straddling, ...a])
  assert.match(await refusalOf(files), /other lines up to write 3 than the snapshot/)
  await movedUntilItStarts(files, [journalName(2)], ['p1', 'p2', 'a3'])
  // Beside an export too, which needs no journal.
  const exported = new Map([...straddling, ...(await exportOf(await directoryOf(a)))])
  await movedUntilItStarts(exported, [journalName(2)], ['p1', 'p2', 'a3'])
  // What is covered is moved, and not the journal that the snapshot needs.
  const shorter = await afterCreates(base, ['b3'], true)
  const covered = new Map([...shorter, ...(await afterCreates(base, ['a3', 'a4']))])
  const why = /2\.log is .* it ends with write 3, and journal-00000003\.log begins with write 5/
  assert.match(await refusalOf(covered), why)
  await movedUntilItStarts(covered, [journalName(2)], ['p1', 'p2', 'a3', 'a4'])
  // The last journal of b begins before the end of a's, which has acknowledged lines.
  let b = base
  for (const name of ['b3', 'b4', 'b5']) b = await afterCreates(b, [name])
  const stopped = await afterCreates(base, ['a3', 'a4', 'a5', 'a6', 'a7', 'a8'])
  const longer = new Map([...b, ...(await afterCreates(stopped, ['a9', 'a10'], true))])
  assert.match(await refusalOf(longer), /00005\.log is damaged at byte 0: it begins with write 6,/)
})

test('cures: of a journal and its older copy under a later number, the copy is moved', async () => {
  const older = await afterCreates(new Map(), [], true)
  const store = await afterCreates(older, ['p1', 'p2'], true)
  const [copy = Buffer.of()] = journalsOf(older).values()
  const files = new Map(store).set(journalName(5), copy)
  assert.match(await refusalOf(files), /it begins with write 1, .* a file of another store or time/)
  await movedUntilItStarts(files, [journalName(5)], ['p1', 'p2'])
})

test('cures: a journal of another store is moved elsewhere, if nothing is missing', async () => {
  const own = await afterCreates(new Map(), ['p1'])
  const stopped = await afterCreates(new Map(), ['q1', 'q2'])
  const killed = await afterCreates(new Map(), ['q1'], true)
  for (const other of [stopped, killed]) {
    const [head = Buffer.of()] = journalsOf(other).values()
    const files = new Map(own).set(journalName(7), head)
    const refusal = await refusalOf(files)
    assert.match(refusal, /it is of store \d+, beside the snapshot of store \d+/)
    await movedUntilItStarts(files, [journalName(7)], ['p1'])
  }
  const snapshot = own.get(SNAPSHOT) ?? assert.fail()
  const all = /missing; put the missing file back, or move all files of the directory elsewhere/
  assert.match(await refusalOf(new Map(journalsOf(stopped)).set(SNAPSHOT, snapshot)), all)
})

test('cures: an export of another store is refused over a new id without lines', async () => {
  const own = await directoryOf(await afterCreates(new Map(), ['p1', 'p2']))
  const restored = await afterCreates(await exportOf(own), [])
  const other = await exportOf(await directoryOf(await afterCreates(new Map(), ['q1', 'q2'])))
  const files = new Map([...restored, ...other])
  assert.match(await refusalOf(files), /it is of store \d+.*; put the files back/)
  await movedUntilItStarts(files, [...journalsOf(restored).keys()], ['q1', 'q2'])
  // Over a store that never had a plant too.
  const empty = new Map([...(await afterCreates(new Map(), [])), ...other])
  await movedUntilItStarts(empty, [journalName(1)], ['q1', 'q2'])
})

test('cures: files of two stores of 3.0.0 that have one plant are named', async () => {
  const files = await filesOf(await fixture('version-3'))
  const [name = '', journal = Buffer.of()] = [...journalsOf(files)][0] ?? []
  const first = readHead('', journal).begin.sequence + 1
  // The id is in the snapshot.
  const line = batchLine(first, [['alice', String(-(2n ** 63n)), 'another']])
  const disk = simulatedFiles(memoryDisk(files.set(name, Buffer.concat([oldHead(first), line]))))
  const file = `${await temporaryDirectory()}/export`
  const runs = [() => exportToFile(IN_MEMORY, file, disk), () => checkDirectory(IN_MEMORY, disk)]
  for (const run of runs)
    await assert.rejects(run(), (error) => {
      assert.ok(error instanceof StoreCorrupt, String(error))
      assert.match(error.message, /(plants\.sqlite|\.log) is damaged at byte .*UNIQUE constraint/)
      return true
    })
})
