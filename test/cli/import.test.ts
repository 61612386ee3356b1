import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { crc32 } from 'node:zlib'
import initSqlJs from 'sql.js'
import type { PlantStore } from '../../dist/plants/store.js'
import { memoryFile } from '../../dist/cli/export.js'
import { exportToFile } from '../../dist/store/sqljs/inspect.js'
import { importStore } from '../../dist/cli/import.js'
import { Progress } from '../../dist/cli/progress.js'
import type { Log } from '../../dist/telemetry/log.js'
import { PageFile } from '../../dist/store/sqljs/disk/page-file.js'
import { readImportFile } from '../../dist/store/sqljs/import-file.js'
import { ROOT } from '../support/release.ts'
import { temporaryDirectory } from '../support/service.ts'
import { rowsOf, sqliteFile, writeStore } from '../support/store-files.ts'
import {
  afterCreates,
  directoryOf,
  killedAfter,
  list,
  openStore,
  plantsTo,
} from '../store/sqljs/fixtures.ts'

const TABLE = 'CREATE TABLE plants (owner, id, name, tag);'
const PAGE_BYTES = 1024
/** After the pages of a snapshot. */
const TRAILER_BYTES = 64

const SQL = await initSqlJs()

const PAGES = `PRAGMA page_size = ${PAGE_BYTES};`
const database = (sql: string): Promise<Buffer> => sqliteFile(PAGES + sql)

async function fileOf(bytes: Uint8Array): Promise<string> {
  const file = `${await temporaryDirectory()}/plants.db`
  writeFileSync(file, bytes)
  return file
}

/** A file that the statements make. */
const fileWith = async (sql: string): Promise<string> => fileOf(await database(sql))

/** The outcome is what the command prints, or the message that it fails with. */
async function importFrom(file: string, directory?: string) {
  const data = directory ?? `${await temporaryDirectory()}/data`
  const lines: string[] = []
  const outcome = await importStore(
    () => openStore(data),
    file,
    new Progress((line) => lines.push(line.trimEnd())),
  ).catch((error: unknown) => {
    assert.ok(error instanceof Error)
    return error.message
  })
  return {
    outcome,
    lines,
    async plantsOf(owner: string) {
      const store = await openStore(data)
      const plants = await list(store, owner)
      await store.close()
      return plants
    },
  }
}

const text = (hex: string): string => `CAST(x'${hex}' AS TEXT)`
const MARKED = 'char(0xfeff) || char(0xfeff)'
const LONG_OWNER = 'o'.repeat(1_000_000)

const OWNER = 'owner must be text, and not empty'
const TAG = 'tag must be text or NULL'
const UTF8 = 'a text is not valid UTF-8'

/** Rows, and how the message of each goes on that is not imported. */
const ROWS: readonly (readonly [values: string, refused?: string])[] = [
  [`'alice', 1, 'first', NULL`],
  [`7, 2, 'x', NULL`, `owner "7", id 2: ${OWNER}`],
  [`NULL, 3, 'x', NULL`, `owner "", id 3: ${OWNER}`],
  [`x'61', 4, 'x', NULL`, `owner "a", id 4: ${OWNER}`],
  [`'', 5, 'x', NULL`, `owner "", id 5: ${OWNER}`],
  [`'alice', '6', 'x', NULL`, 'owner "alice", id 6: id must be an integer'],
  [`'alice', NULL, 'x', NULL`, 'owner "alice", id null: id must be an integer'],
  [`'alice', 8.5, 'x', NULL`, 'owner "alice", id 8.5: id must be an integer'],
  [`'alice', 9, NULL, NULL`, 'owner "alice", id 9: name must be text'],
  [`'alice', 10, 11, NULL`, 'owner "alice", id 10: name must be text'],
  [`'alice', 12, 'x', 13`, `owner "alice", id 12: ${TAG}`],
  [`'alice', 14, 'x', x'00'`, `owner "alice", id 14: ${TAG}`],
  [`'alice', 15, 'last', ''`],
  [`'alice', 15, 'other', ''`, 'owner "alice", id 15: the store has another plant with this id'],
  // Text that is not valid UTF-8.
  [`${text('61ff')}, 1, 'x', NULL`, `owner "a\ufffd", id 1: ${UTF8}`],
  [`'bob', 1, ${text('c0af')}, NULL`, `owner "bob", id 1: ${UTF8}`],
  [`'bob', 2, 'x', ${text('eda080')}`, `owner "bob", id 2: ${UTF8}`],
  [`'bob', 3, ${text('c3a9')}, ${text('00')}`],
  [`${MARKED}, 1, ${MARKED} || char(0) || 'a', ${MARKED}`],
  [
    `'${LONG_OWNER}', 1, NULL, NULL`,
    `owner "${LONG_OWNER.slice(0, 100)}", id 1: name must be text`,
  ],
  // What could end the line, or hide in it.
  [
    `'a' || char(10, 27, 0x202e), 'b' || char(10), 'x', 1`,
    'owner "a\\n\\u001b\\u202e", id b\\u000a: id must be an integer',
  ],
]

test('import: a row with a wrong value is refused by its place, and never shown', async () => {
  const values = ROWS.map(([row]) => `(${row})`)
  const file = await fileWith(`${TABLE} INSERT INTO plants VALUES ${values.join()}`)
  const { outcome, lines, plantsOf } = await importFrom(file)
  assert.equal(outcome, `4 of ${ROWS.length} plants stored; the others are named above`)
  const refused = ROWS.flatMap(([, why]) => (why === undefined ? [] : [`not imported: ${why}`]))
  assert.deepEqual(lines.toSorted(), refused.toSorted())
  assert.deepEqual(await plantsOf('alice'), [{ name: 'first' }, { name: 'last', tag: '' }])
  assert.deepEqual(await plantsOf('bob'), [{ name: 'é', tag: '\0' }])
  assert.deepEqual(await plantsOf('a\ufffd'), [], 'nothing is replaced')
  // A byte order mark at the start of a text, and U+0000 within, stay.
  const marked = { name: '\ufeff\ufeff\0a', tag: '\ufeff\ufeff' }
  assert.deepEqual(await plantsOf('\ufeff\ufeff'), [marked])
})

test('import: a file without a plain table of plants is refused in one sentence', async () => {
  const none = 'it has no plain table "plants" with owner, id, name and tag'
  for (const [sql, message] of [
    ['CREATE VIEW plants (owner, id, name, tag) AS SELECT 1, 1, 1, 1', none],
    ['CREATE VIRTUAL TABLE plants USING fts3(owner, id, name, tag)', none],
    ['CREATE TABLE plants (owner, id, tag, name AS (owner) STORED)', none],
    ['CREATE TABLE trees (owner, id, name, tag)', none],
    ['CREATE TABLE plants (owner, id, name)', none],
    [`PRAGMA encoding = 'UTF-16le'; ${TABLE}`, 'it is not in UTF-8'],
  ] as const) {
    const file = await fileWith(sql)
    const { outcome, lines } = await importFrom(file)
    assert.equal(outcome, `${file} cannot be imported: ${message}`)
    assert.deepEqual(lines, [])
  }
  const file = await fileOf(Buffer.from('no database'))
  const data = `${file}.data`
  assert.match((await importFrom(file, data)).outcome, /cannot be imported: file is not a database/)
  assert.ok(!existsSync(data), 'no store is opened for it')
})

test('import: snapshots of every version come in, edited with SQL or not', async () => {
  for (const [version, plants] of Object.entries({ 1: '5 plants', 2: '1 plant', 3: '1 plant' })) {
    const snapshot = readFileSync(join(ROOT, `test/fixtures/version-${version}/plants.sqlite`))
    const file = await fileOf(snapshot)
    const outcome = `${plants} read from ${file}; all of them are in the store`
    assert.equal((await importFrom(file)).outcome, outcome)
  }
  const origin = await directoryOf(await killedAfter(plantsTo(3n)))
  const exported = `${await temporaryDirectory()}/export.sqlite`
  await exportToFile(origin, exported)
  assert.deepEqual((await importFrom(exported)).lines, [])
  // As sqlite3 writes it: the trailer is lost if the file becomes shorter, and stays if not.
  const edited = new SQL.Database(readFileSync(exported).subarray(0, -TRAILER_BYTES))
  edited.run("UPDATE plants SET name = 'Elm' WHERE id = 2; DELETE FROM plants WHERE id = 3; VACUUM")
  const { outcome, plantsOf } = await importFrom(await fileOf(edited.export()))
  assert.match(outcome, /^2 plants read/)
  assert.deepEqual(await plantsOf('alice'), [{ name: 'plant 1' }, { name: 'Elm' }])
})

test('import: of a damaged file nothing is stored, and the message says what to do', async () => {
  const rows = Array.from({ length: 2500 }, (_, i) => `('alice', ${i}, '${'x'.repeat(100)}', NULL)`)
  const bytes = await database(`${TABLE} INSERT INTO plants VALUES ${rows.join()}`)
  const withZeros = Buffer.from(bytes).fill(0, bytes.length / 2)
  const withoutRows = Buffer.from(bytes)
  const leaf = bytes.length / 2 - ((bytes.length / 2) % PAGE_BYTES)
  assert.equal(bytes[leaf], 13, 'a page with rows')
  withoutRows.writeUInt16BE(1, leaf + 3)
  for (const damaged of [withZeros, withoutRows]) {
    const file = await fileOf(damaged)
    const { outcome, plantsOf } = await importFrom(file)
    assert.match(outcome, /SQLite finds damage: .* page /s)
    assert.deepEqual(await plantsOf('alice'), [])
  }
})

test('import: a file without its last bytes is refused', async () => {
  const rows = rowsOf(100, (id) => ['alice', String(id), `name ${id}`])
  const whole = readFileSync(await writeStore(await temporaryDirectory(), rows))
  const pagesBytes = whole.length - TRAILER_BYTES
  for (const cutBytes of [1, 13, 4095, 4096]) {
    const bytes = pagesBytes - cutBytes
    const { outcome, plantsOf } = await importFrom(await fileOf(whole.subarray(0, bytes)))
    // SQLite itself sees that a whole page is missing.
    const isSeen = cutBytes === 4096
    const what = isSeen ? 'database disk image is malformed' : `it is cut off after ${bytes} of `
    assert.ok(outcome.includes(what), outcome)
    for (const owner of ['alice', 'ali\0\0']) assert.deepEqual(await plantsOf(owner), [])
  }
  const { outcome, plantsOf } = await importFrom(await fileOf(whole.subarray(0, pagesBytes)))
  assert.match(outcome, /^100 plants read from /)
  assert.equal((await plantsOf('alice')).length, 100)
})

test('import: what the store reports is told with its details', async () => {
  const files = await killedAfter(plantsTo(2n))
  const lines = files.get('journal-00000001.log') ?? assert.fail()
  const torn = Buffer.concat([lines, Buffer.from('torn')])
  const data = await directoryOf(new Map(files).set('journal-00000001.log', torn))
  const told: string[] = []
  const progress = new Progress((line) => told.push(line))
  const target = (log: Log): Promise<PlantStore> => openStore(data, { log })
  assert.match(await importStore(target, await fileWith(TABLE), progress), /^0 plants read/)
  const kept = `kept=${data}/torn-3-${crc32('torn').toString(16)}.bin`
  const details = `file=${data}/journal-00000001.log byte=${lines.length} bytes=4 ${kept}\n`
  assert.equal(told.length, 1)
  assert.ok(told[0]?.endsWith(details), told[0])
})

test('import: a log with more changes is refused, with what to do', async () => {
  const file = await fileWith(TABLE)
  for (const ending of ['-wal', '-journal']) {
    writeFileSync(`${file}${ending}`, '')
    assert.match((await importFrom(file)).outcome, /^0 plants read/, 'an empty one has none')
    writeFileSync(`${file}${ending}`, 'x')
    const what = `${file}${ending} holds changes: let sqlite3 write them to the file first`
    assert.equal((await importFrom(file)).outcome, `${file} cannot be imported: ${what}`)
    rmSync(`${file}${ending}`)
  }
})

test('import: no regular file, or one that is too large, is refused unread', async () => {
  const folder = await temporaryDirectory()
  execFileSync('mkfifo', [`${folder}/fifo`])
  writeFileSync(`${folder}/large`, '')
  truncateSync(`${folder}/large`, 2 ** 31)
  for (const path of [folder, `${folder}/fifo`, '/dev/zero', `${folder}/large`]) {
    const what = 'it is no regular file of at most 2147483647 bytes'
    assert.equal((await importFrom(path)).outcome, `${path} cannot be imported: ${what}`)
  }
  assert.match((await importFrom(`${folder}/gone`)).outcome, /no such file .*\/gone/)
})

test('import: a snapshot that was changed comes in, and a line says that it was', async () => {
  const left = await afterCreates(new Map(), ['n1'])
  const bytes = left.get('plants.sqlite') ?? assert.fail()
  bytes.write('m1', bytes.indexOf('n1'))
  const file = await fileOf(bytes)
  const { lines, outcome, plantsOf } = await importFrom(file)
  assert.equal(outcome, `1 plant read from ${file}; all of them are in the store`)
  assert.deepEqual(lines, [
    `${file} was changed after plant-store wrote it, by an edit or by a failing disk`,
    `${file} is no export: what its journals hold is not in it`,
  ])
  assert.deepEqual(await plantsOf('alice'), [{ name: 'm1' }])
})

test('import: a disk that fails while the file is opened is named as that', async () => {
  const bytes = await database(`${TABLE} INSERT INTO plants VALUES ('a', 1, 'Oak', NULL)`)
  const { memory } = memoryFile()
  memory.writeNow(bytes, 0)
  const file = { ...memory, readNow: () => assert.fail('EIO') }
  const pages = new PageFile('a.db', file, bytes.length)
  await assert.rejects(
    pages.opened((db) => readImportFile(pages, db)),
    { message: 'EIO' },
  )
})

test('import: a snapshot beside journals is refused; a copy of it comes in', async () => {
  const data = await directoryOf(await killedAfter(plantsTo(3n)))
  await (await openStore(data)).close()
  const snapshot = readFileSync(`${data}/plants.sqlite`)
  // As `PRAGMA journal_mode=wal` and an UPDATE leave it.
  const edited = new SQL.Database(snapshot.subarray(0, -TRAILER_BYTES))
  edited.run("UPDATE plants SET name = 'Elm' WHERE id = 2")
  const bytes = Buffer.from(edited.export()).fill(2, 18, 20)
  writeFileSync(`${data}/plants.sqlite`, bytes)
  await assert.rejects(openStore(data), /run "plant-store import" on a copy, into another/)
  const refused = await importFrom(`${data}/plants.sqlite`)
  const advice = 'export from that directory (it may be in use), or, if this file was edited on'
  const what = `the journals beside it may hold more plants: ${advice} purpose, import a copy in a`
  const message = `${data}/plants.sqlite cannot be imported: ${what} folder of its own`
  assert.equal(refused.outcome, message)
  assert.deepEqual([refused.lines, await refused.plantsOf('alice')], [[], []])
  const copy = await directoryOf(new Map([['plants.sqlite', bytes]]))
  for (const file of [await fileOf(bytes), `${copy}/plants.sqlite`]) {
    const { lines, plantsOf } = await importFrom(file)
    assert.match(lines.join(), /is no export: what its journals hold is not in it$/)
    const names = (await plantsOf('alice')).map(({ name }) => name)
    assert.deepEqual(names, ['plant 1', 'Elm', 'plant 3'])
  }
})

test('import: a plant that no list could send is named as not imported', async () => {
  const bytes = await database(`${TABLE} INSERT INTO plants VALUES ('alice', 1, 'Oak', NULL),
    ('alice', 2, replace(hex(zeroblob(1500000)), '0', char(1)), NULL)`)
  const { outcome, lines, plantsOf } = await importFrom(await fileOf(bytes))
  assert.equal(outcome, '1 of 2 plants stored; the others are named above')
  const why = 'the plant is too large for the store'
  assert.deepEqual(lines, [`not imported: owner "alice", id 2: ${why}`])
  assert.deepEqual(await plantsOf('alice'), [{ name: 'Oak' }])
})
