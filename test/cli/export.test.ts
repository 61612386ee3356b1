import assert from 'node:assert/strict'
import { copyFileSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import promises from 'node:fs/promises'
import { syncBuiltinESMExports } from 'node:module'
import { dirname } from 'node:path'
import { test, type TestContext } from 'node:test'
import { type Row, StoreCorrupt } from '../../dist/store/sqljs/disk/journal-format.js'
import { nodeFiles } from '../../dist/store/sqljs/disk/files.js'
import { batchLine, journalName } from '../../dist/store/sqljs/disk/journal-format.js'
import { type DirectoryLock, lockDirectory } from '../../dist/store/sqljs/disk/lock.js'
import { checkDirectory, exportToFile } from '../../dist/store/sqljs/inspect.js'
import { Progress } from '../../dist/cli/progress.js'
import { systemError } from '../faults/simulated-disk.ts'
import { launch } from '../support/launch.ts'
import { preload } from '../support/process.ts'
import { sampled } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { oldHead, writeStore } from '../support/store-files.ts'
import { until } from '../support/time.ts'
import { directoryOf, filesReading, killedAfter } from '../store/sqljs/fixtures.ts'
import { openStore, plantsTo } from '../store/sqljs/fixtures.ts'

const TWO = await killedAfter(plantsTo(2n))
const storeOfTwo = (): Promise<string> => directoryOf(TWO)

test('export: with any umask it has mode 0600, and leaves FILE.tmp as it is', async (t) => {
  const data = await storeOfTwo()
  const folder = await temporaryDirectory()
  const victim = `${await temporaryDirectory()}/victim`
  writeFileSync(victim, 'mine', { mode: 0o644 })
  writeFileSync(`${folder}/a.tmp`, 'mine too', { mode: 0o666 })
  symlinkSync(victim, `${folder}/b.tmp`)
  const before = process.umask()
  t.after(() => process.umask(before))
  for (const [name, mask] of Object.entries({ a: 0, b: 0o777 })) {
    const file = `${folder}/${name}`
    process.umask(mask)
    assert.equal(await exportToFile(data, file), 2)
    assert.equal(lstatSync(file).mode & 0o777, 0o600)
  }
  assert.equal(readFileSync(`${folder}/a.tmp`, 'utf8'), 'mine too')
  assert.equal(readFileSync(victim, 'utf8'), 'mine')
  assert.deepEqual(readdirSync(folder).toSorted(), ['a', 'a.tmp', 'b', 'b.tmp'])
})

const TAKEN = 'exists already: name a file that does not exist'
const IS_STORE = "is the data directory, with the store's own files: name another one"

/** Names in a folder, and what refuses each; where the folder's path comes, an `@`. */
const REFUSED: readonly (readonly [name: string, message: string])[] = [
  ['@/file', `@/file ${TAKEN}`],
  ['@/folder', `@/folder ${TAKEN}`],
  ['@/link', `@/link ${TAKEN}`],
  ['@/dangling', `@/dangling ${TAKEN}`],
  ['@', `@ ${TAKEN}`],
  // SQLite would read these with it.
  ['@/a', `@/a-wal ${TAKEN}`],
  ['@/b', `@/b-journal ${TAKEN}`],
  ['@/missing/plants.db', 'there is no folder @/missing'],
  ['@/file/plants.db', 'there is no folder @/file'],
  ['@/data/plants.db', `@/data ${IS_STORE}`],
  ['@/linked/plants.db', `@/linked ${IS_STORE}`],
  ['@/data/../data/a.tmp', `@/data/../data ${IS_STORE}`],
]

test('export: a name that is taken or among the files of the store is refused', async () => {
  const folder = await temporaryDirectory()
  renameSync(await storeOfTwo(), `${folder}/data`)
  for (const file of ['file', 'a-wal', 'b-journal']) writeFileSync(`${folder}/${file}`, 'mine')
  mkdirSync(`${folder}/folder`)
  const links = { link: 'file', dangling: 'nowhere', linked: 'data' }
  for (const [link, target] of Object.entries(links)) symlinkSync(target, `${folder}/${link}`)
  const before = readdirSync(folder, { recursive: true })
  for (const [name, what] of REFUSED)
    for (const data of ['data', 'linked']) {
      const message = what.replace('@', folder)
      const file = name.replace('@', folder)
      await assert.rejects(exportToFile(`${folder}/${data}`, file), { message })
      assert.deepEqual(readdirSync(folder, { recursive: true }), before, name)
    }
  assert.equal(readFileSync(`${folder}/file`, 'utf8'), 'mine')
})

test('export: a file that appears while the store is read is kept', async () => {
  const data = await storeOfTwo()
  const file = `${await temporaryDirectory()}/plants.db`
  const files = filesReading(() => writeFileSync(file, 'mine'))
  await assert.rejects(exportToFile(data, file, files), { message: `${file} ${TAKEN}` })
  assert.equal(readFileSync(file, 'utf8'), 'mine')
  assert.deepEqual(readdirSync(dirname(file)), ['plants.db'])
})

/** What `check` says of an export that was put back. */
async function checkExport(file: string): Promise<string> {
  const restored = await temporaryDirectory()
  copyFileSync(file, `${restored}/plants.sqlite`)
  return checkDirectory(restored)
}

test('export: a second attempt leaves nothing of a longer first one', async () => {
  const rows = Array.from({ length: 500 }, (_, id): Row => ['a', String(id), 'x'.repeat(1000)])
  const data = `${await temporaryDirectory()}/data`
  await writeStore(data, rows)
  const journal = `${data}/journal-00000001.log`
  writeFileSync(journal, Buffer.concat([oldHead(2), batchLine(2, [['b', '1', 'Oak']])]))
  const file = `${await temporaryDirectory()}/plants.db`
  const files = filesReading(async () => {
    // What is put back meanwhile has a shorter snapshot.
    await writeStore(data, [['b', '1', 'Oak']])
    rmSync(journal)
    throw new StoreCorrupt(journal, 0, 'damaged')
  })
  assert.equal(await exportToFile(data, file, files), 1)
  assert.match(await checkExport(file), /1 plant in a snapshot/)
})

test('export: a folder that cannot be synced is no failure; one that fails is', async (t) => {
  const data = await storeOfTwo()
  const folder = await temporaryDirectory()
  let code = 'EINVAL'
  const { mock } = t.mock.method(nodeFiles, 'syncDirectory', async () => {
    throw systemError(code, 'fsync')
  })
  assert.equal(await exportToFile(data, `${folder}/a`), 2)
  assert.deepEqual(mock.calls[0]?.arguments, [folder])
  code = 'EIO'
  await assert.rejects(exportToFile(data, `${folder}/b`), /EIO/)
  mock.restore()
  assert.match(await checkExport(`${folder}/a`), /2 plants in a snapshot/)
})

test('export: an error of the store is not taken for one of the new file', async () => {
  const data = await storeOfTwo()
  const folder = await temporaryDirectory()
  const error = Object.assign(new Error('EEXIST: the store'), { code: 'EEXIST' })
  const files = filesReading(() => Promise.reject(error))
  await assert.rejects(exportToFile(data, `${folder}/a`, files), { message: error.message })
  assert.deepEqual(readdirSync(folder), [])
})

test('check and export: a directory where no service ran holds no store', async () => {
  const empty = await temporaryDirectory()
  const foreign = await temporaryDirectory()
  for (const name of ['notes.txt', 'lock', 'lock-0', 'dev.key', 'journal-00000001.log.tmp'])
    writeFileSync(`${foreign}/${name}`, '')
  const target = `${await temporaryDirectory()}/plants.db`
  for (const directory of [empty, foreign, `${empty}/missing`, `${foreign}/notes.txt`]) {
    const message = `there is no store in ${directory}: set PLANTS_DATA to its directory`
    await assert.rejects(checkDirectory(directory), { message })
    await assert.rejects(exportToFile(directory, target), { message })
  }
  assert.ok(!existsSync(target))
})

test('check and export: a torn last line is told, unless a service runs', async () => {
  const data = await storeOfTwo()
  const journal = `${data}/${journalName(1)}`
  const line = batchLine(3, [['alice', '3', 'never acknowledged']])
  writeFileSync(journal, Buffer.concat([readFileSync(journal), line.subarray(0, -9)]))
  const lines: string[] = []
  const progress = new Progress((text) => lines.push(text.trimEnd()))
  const file = `${await temporaryDirectory()}/file`
  assert.equal(await exportToFile(data, file, nodeFiles, progress), 2)
  const torn = /damaged at byte \d+: its last line is torn \(\d+ bytes\): it was not acknowl/
  assert.equal(lines.length, 1)
  assert.match(lines[0] ?? '', /^the export is without a line: /)
  assert.match(lines[0] ?? '', torn)
  await assert.rejects(checkDirectory(data), { message: torn })
  const lock = await lockDirectory(data)
  await exportToFile(data, `${file}-2`, nodeFiles, progress)
  assert.match(await checkDirectory(data), /is sound: 2 plants/)
  assert.equal(lines.length, 1)
  // Nor if it stops, or starts, while the journal is read.
  const stopping = filesReading(() => lock.release())
  assert.match(await checkDirectory(data, stopping), /is sound: 2 plants/)
  const started: DirectoryLock[] = []
  const starting = filesReading(async () => started.push(await lockDirectory(data)))
  assert.match(await checkDirectory(data, starting), /is sound: 2 plants/)
  await started[0]?.release()
})

test('check and export: an empty store that was served has 0 plants', async () => {
  const served = `${await temporaryDirectory()}/data`
  const store = await openStore(served, { lock: lockDirectory })
  assert.match(await checkDirectory(served), /is sound: 0 plants in a snapshot and 1 journal/)
  await store.close()
  const left = ['journal-00000001.log', 'lock-1', 'plants.sqlite']
  assert.deepEqual(readdirSync(served).toSorted(), left)
  assert.match(await checkDirectory(served), /is sound: 0 plants in a snapshot and 1 journal/)
  const target = `${await temporaryDirectory()}/plants.db`
  assert.equal(await exportToFile(served, target), 0)
  // As a stop of 2.0.0 left it.
  for (const name of left) if (name !== 'lock-1') rmSync(`${served}/${name}`)
  assert.match(await checkDirectory(served), /is sound: 0 plants in no snapshot and 0 journals/)
})

/** Lets a call of the file system fail in this process. */
function failing(t: TestContext, call: 'link' | 'rename', code: string): void {
  t.mock.method(promises, call, () => Promise.reject(systemError(code, call)))
  syncBuiltinESMExports()
  t.after(() => {
    t.mock.restoreAll()
    syncBuiltinESMExports()
  })
}

for (const code of sampled(['EPERM', 'ENOTSUP', 'ENOSYS'], 3))
  test(`export: without hard links (${code}) the name is reserved, then replaced`, async (t) => {
    failing(t, 'link', code)
    const data = await storeOfTwo()
    const folder = await temporaryDirectory()
    const file = `${folder}/plants.db`
    assert.equal(await exportToFile(data, file), 2)
    assert.equal(lstatSync(file).mode & 0o777, 0o600)
    assert.match(await checkExport(file), /2 plants in a snapshot/)
    // What failed leaves no name, and what someone writes there stays.
    const broken = filesReading(() => Promise.reject(new Error('EIO')))
    await assert.rejects(exportToFile(data, `${folder}/b`, broken), { message: 'EIO' })
    const taking = filesReading(() => writeFileSync(`${folder}/c`, 'mine'))
    const message = `${folder}/c ${TAKEN}`
    await assert.rejects(exportToFile(data, `${folder}/c`, taking), { message })
    assert.equal(readFileSync(`${folder}/c`, 'utf8'), 'mine')
    failing(t, 'rename', 'EIO')
    await assert.rejects(exportToFile(data, `${folder}/d`), /EIO/)
    assert.deepEqual(readdirSync(folder).toSorted(), ['c', 'plants.db'])
  })

const SIGNALS = [
  ['SIGTERM', 15],
  ['SIGINT', 2],
  ['SIGHUP', 1],
] as const
for (const [signal, number] of sampled(SIGNALS, 3))
  test(`export: ${signal} leaves no file`, async () => {
    const data = await storeOfTwo()
    const folder = await temporaryDirectory()
    const files = JSON.stringify(import.meta.resolve('../../dist/store/sqljs/disk/files.js'))
    const env = await preload(`
      const { nodeFiles } = await import(${files})
      const { open } = nodeFiles
      setInterval(() => {}, 1000)
      nodeFiles.open = async (path, mode) => {
        const file = await open(path, mode)
        const lengthBytes = () => (process.stdout.write('reading'), new Promise(() => {}))
        return { ...file, lengthBytes }
      }`)
    const args = ['export', `${folder}/a`]
    const { kill, output } = launch({ PLANTS_DATA: data, ...env }, { args })
    await until('it reads', () => output() !== '')
    assert.equal(readdirSync(folder).length, 1)
    assert.equal(await kill(signal), 128 + number)
    assert.deepEqual(readdirSync(folder), [])
  })
