import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import initSqlJs from 'sql.js'
import type { Plant } from '../../dist/plants/plant.js'
import type { PlantStore } from '../../dist/plants/store.js'
import { memoryFile } from '../../dist/cli/export.js'
import { importStore } from '../../dist/cli/import.js'
import { Progress } from '../../dist/cli/progress.js'
import type { Log } from '../../dist/telemetry/log.js'
import { PageFile } from '../../dist/store/sqljs/page-file.js'
import { loadSqlite, ownSqlite } from '../../dist/store/sqljs/sqlite.js'
import { openRows } from '../../dist/store/sqljs/source-rows.js'
import { MAIN } from '../support/process.ts'
import { temporaryDirectory } from '../support/service.ts'
import { sourceOf } from '../support/store-files.ts'
import {
  directoryOf,
  filesLeftByKill,
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

/** The bytes of the SQLite file that the statements make. */
function database(sql: string, encoding = 'UTF-8'): Buffer {
  const db = new SQL.Database()
  db.run(`PRAGMA page_size = ${PAGE_BYTES}; PRAGMA encoding = '${encoding}'; ${sql}`)
  const bytes = Buffer.from(db.export())
  db.close()
  return bytes
}

async function fileOf(bytes: Uint8Array): Promise<string> {
  const file = `${await temporaryDirectory()}/plants.db`
  writeFileSync(file, bytes)
  return file
}

interface Imported {
  /** What the command prints, or the message that it fails with. */
  readonly outcome: string
  readonly lines: readonly string[]
  plantsOf(owner: string): Promise<Plant[]>
}

async function importFrom(file: string, directory?: string): Promise<Imported> {
  const data = directory ?? `${await temporaryDirectory()}/data`
  const lines: string[] = []
  const outcome = await importStore(
    () => openStore(data),
    file,
    new Progress({ write: (line) => lines.push(line.trimEnd()) }),
  ).catch((error: unknown) => {
    assert.ok(error instanceof Error)
    return error.message
  })
  return {
    outcome,
    lines,
    async plantsOf(owner) {
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

/** Rows, and how the message of each goes on that is not imported. */
const ROWS: readonly (readonly [values: string, refused?: string])[] = [
  [`'alice', 1, 'first', NULL`],
  [`7, 2, 'x', NULL`, 'row 2, id 2: owner must be text, and is an integer'],
  [`NULL, 3, 'x', NULL`, 'row 3, id 3: owner must be text, and is NULL'],
  [`x'61', 4, 'x', NULL`, 'row 4, id 4: owner must be text, and is a blob'],
  [`'', 5, 'x', NULL`, 'row 5, id 5: owner must be text, and is empty'],
  [`'alice', '6', 'x', NULL`, 'row 6, owner "alice": id must be an integer, and is text'],
  [`'alice', NULL, 'x', NULL`, 'row 7, owner "alice": id must be an integer, and is NULL'],
  [`'alice', 8.5, 'x', NULL`, 'row 8, owner "alice": id must be an integer, and is a real number'],
  [`'alice', 9, NULL, NULL`, 'owner "alice", id 9: name must be text, and is NULL'],
  [`'alice', 10, 11, NULL`, 'owner "alice", id 10: name must be text, and is an integer'],
  [`'alice', 12, 'x', 13`, 'owner "alice", id 12: tag must be text or NULL, and is an integer'],
  [`'alice', 14, 'x', x'00'`, 'owner "alice", id 14: tag must be text or NULL, and is a blob'],
  [`1e300, x'00', 'x', 'x'`, 'row 13: owner must be text, and is a real number'],
  [`'alice', 15, 'last', ''`],
  // Text that is not valid UTF-8.
  [`${text('61ff')}, 1, 'x', NULL`, 'row 15, id 1: owner must be text, and is not valid UTF-8'],
  [`${text('61fe')}, 1, 'y', NULL`, 'row 16, id 1: owner must be text, and is not valid UTF-8'],
  [
    `'bob', 1, ${text('c0af')}, NULL`,
    'owner "bob", id 1: name must be text, and is not valid UTF-8',
  ],
  [
    `'bob', 2, 'x', ${text('eda080')}`,
    'owner "bob", id 2: tag must be text or NULL, and is not valid UTF-8',
  ],
  [`'bob', 3, ${text('c3a9')}, ${text('00')}`],
  [`${MARKED}, 1, ${MARKED} || char(0) || 'a', ${MARKED}`],
  [
    `'${LONG_OWNER}', 1, NULL, NULL`,
    `row 21, owner "${LONG_OWNER.slice(0, 100)}"…, id 1: name must be text, and is NULL`,
  ],
]

test('import: a row with a wrong value is refused by its place, and never shown', async () => {
  const values = ROWS.map(([row]) => `(${row})`)
  const bytes = database(`${TABLE} INSERT INTO plants VALUES ${values.join()}`)
  const { outcome, lines, plantsOf } = await importFrom(await fileOf(bytes))
  assert.equal(outcome, '4 of 21 plants stored; the others are named above')
  const refused = ROWS.flatMap(([, why]) => (why === undefined ? [] : [`not imported: ${why}`]))
  assert.deepEqual(lines, refused)
  assert.deepEqual(await plantsOf('alice'), [{ name: 'first' }, { name: 'last', tag: '' }])
  assert.deepEqual(await plantsOf('bob'), [{ name: 'é', tag: '\0' }])
  assert.deepEqual(await plantsOf('a\ufffd'), [], 'nothing is replaced')
  // A byte order mark at the start of a text, and U+0000 within, stay.
  const marked = { name: '\ufeff\ufeff\0a', tag: '\ufeff\ufeff' }
  assert.deepEqual(await plantsOf('\ufeff\ufeff'), [marked])
})

test('import: a file in UTF-16 comes in, and its broken texts are refused', async () => {
  for (const encoding of ['UTF-16le', 'UTF-16be']) {
    const broken = encoding === 'UTF-16le' ? '00d8' : 'd800'
    const bytes = database(
      `${TABLE} INSERT INTO plants VALUES
        ('é🌱', 1, 'x', char(0xfeff)), ('é🌱', 2, CAST(x'${broken}' AS TEXT), NULL)`,
      encoding,
    )
    const { lines, plantsOf } = await importFrom(await fileOf(bytes))
    assert.deepEqual(lines, [
      'not imported: owner "é🌱", id 2: name must be text, ' +
        `and is not valid ${encoding.toUpperCase()}`,
    ])
    assert.deepEqual(await plantsOf('é🌱'), [{ name: 'x', tag: '\ufeff' }])
  }
})

test('import: plants that are a view, a virtual table or computed are refused', async () => {
  const unending =
    'WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i FROM n) SELECT i, i, i, i FROM n'
  const cases: readonly (readonly [sql: string, what: string])[] = [
    [
      `CREATE VIEW plants (owner, id, name, tag) AS ${unending}`,
      'plants must be a plain table, and is a view',
    ],
    [
      'CREATE VIRTUAL TABLE plants USING fts3(owner, id, name, tag)',
      'plants must be a plain table, and is a virtual table',
    ],
    [
      "CREATE TABLE plants (owner, id, tag, name AS (printf('%.*c', 1e9, 'x')))",
      'plants must be a plain table, and has a generated column',
    ],
    [
      'CREATE TABLE plants (owner, id, tag, name AS (owner) STORED)',
      'plants must be a plain table, and has a generated column',
    ],
    ['CREATE TABLE trees (owner, id, name, tag)', 'there is no table named plants'],
    ['CREATE TABLE plants (owner, id, name)', 'no such column: tag'],
  ]
  for (const [sql, message] of cases) {
    const { pages } = await sourceOf(database(sql))
    await assert.rejects(openRows(pages), { message })
  }
  const [[sql, what] = assert.fail()] = cases
  const file = await fileOf(database(sql))
  const { outcome } = await importFrom(file)
  assert.equal(outcome, `${file} cannot be read as a SQLite file with a table of plants: ${what}`)
})

test('import: a table of other columns, a trigger, an index and a check comes in', async () => {
  const bytes =
    database(`CREATE TABLE Plants (tag, name, more DEFAULT (random()), id, owner, CHECK (id > 0));
    CREATE INDEX computed ON plants (hex(name)) WHERE id > 5;
    CREATE TRIGGER more AFTER INSERT ON plants BEGIN SELECT 1; END;
    INSERT INTO plants (owner, id, name) VALUES ('alice', 9, 'nine'), ('alice', 3, 'three')`)
  const { outcome, plantsOf } = await importFrom(await fileOf(bytes))
  assert.match(outcome, /^2 plants read from .*; all of them are in the store$/)
  assert.deepEqual(await plantsOf('alice'), [{ name: 'three' }, { name: 'nine' }])
})

/** Fills an interior page of a table's tree, all of whose children are the same page. */
function repeat(page: Buffer, from: number, child: number): void {
  const children = 50
  const cellBytes = 5
  const cells = PAGE_BYTES - children * cellBytes
  page.fill(0, from)
  page[from] = 5
  page.writeUInt16BE(children, from + 3)
  page.writeUInt16BE(cells, from + 5)
  page.writeUInt32BE(child, from + 8)
  for (let i = 0; i < children; i++) {
    page.writeUInt32BE(child, cells + i * cellBytes)
    page[cells + i * cellBytes + 4] = i + 1
    page.writeUInt16BE(cells + i * cellBytes, from + 12 + 2 * i)
  }
}

/** Puts 15 levels of 50 times the same page above the root of a tree: its rows have no end. */
function withoutEnd(bytes: Buffer, root: number): Buffer {
  const header = root === 1 ? 100 : 0
  const pages = Array.from({ length: bytes.length / PAGE_BYTES }, (_, i) =>
    Buffer.from(bytes.subarray(i * PAGE_BYTES, (i + 1) * PAGE_BYTES)),
  )
  const top = pages[root - 1] ?? Buffer.alloc(0)
  const leaf = Buffer.from(top)
  // A leaf's header and its cell pointers come first; the cells keep their places.
  const headBytes = 8 + 2 * top.readUInt16BE(header + 3)
  leaf.fill(0, 0, header + headBytes)
  top.copy(leaf, 0, header, header + headBytes)
  pages.push(leaf)
  for (let level = 0; level < 15; level++) {
    const page = Buffer.alloc(PAGE_BYTES)
    repeat(page, 0, pages.length)
    pages.push(page)
  }
  repeat(top, header, pages.length)
  pages[0]?.writeUInt32BE(pages.length, 28)
  return Buffer.concat(pages)
}

test('import: endless rows, from pages that refer to each other, are refused', async () => {
  const bytes = withoutEnd(
    database(`${TABLE} INSERT INTO plants VALUES ('alice', 1, 'Fern', NULL)`),
    2,
  )
  const file = await fileOf(bytes)
  const { outcome, plantsOf } = await importFrom(file)
  assert.match(outcome, /cannot be read .*: SQLite finds damage \(Tree 2 page 4 .*\)/)
  assert.deepEqual(await plantsOf('alice'), [])
})

test('import: an endless schema keeps it busy until a signal, and opens no store', async (t) => {
  const file = await fileOf(withoutEnd(database(TABLE), 1))
  const data = `${file}.data`
  const env = { PATH: process.env['PATH'], PLANTS_DATA: data }
  const child = spawn(process.execPath, [MAIN, 'import', file], { env, stdio: 'ignore' })
  t.after(() => child.kill('SIGKILL'))
  const exited = once(child, 'exit')
  // Longer than it takes to import a sound file.
  await sleep(1500)
  assert.equal(child.exitCode, null)
  child.kill('SIGINT')
  assert.deepEqual(await exited, [null, 'SIGINT'])
  assert.equal(existsSync(data), false)
})

test('import: each file has memory of its own, which another instance never sees', async () => {
  const [one, other] = [await ownSqlite(), await ownSqlite()]
  assert.notEqual(one, other)
  for (const each of [one, other]) assert.notEqual(each, await loadSqlite())
  assert.equal(await loadSqlite(), await loadSqlite())
})

test('import: of a damaged file nothing is stored, and the message says what to do', async () => {
  const rows = Array.from({ length: 2500 }, (_, i) => `('alice', ${i}, '${'x'.repeat(100)}', NULL)`)
  const bytes = database(`${TABLE} INSERT INTO plants VALUES ${rows.join()}`)
  const withZeros = Buffer.from(bytes).fill(0, bytes.length / 2)
  const withoutRows = Buffer.from(bytes)
  const leaf = bytes.length / 2 - ((bytes.length / 2) % PAGE_BYTES)
  assert.equal(bytes[leaf], 13, 'a page with rows')
  withoutRows.writeUInt16BE(1, leaf + 3)
  for (const damaged of [withZeros, withoutRows]) {
    const file = await fileOf(damaged)
    const { outcome, plantsOf } = await importFrom(file)
    const cure = 'the command .recover of sqlite3 makes a file of what can be read'
    assert.match(outcome, new RegExp(`SQLite finds damage \\(.* page .*\\): ${cure}$`))
    assert.deepEqual(await plantsOf('alice'), [])
  }
})

test('import: a file without its last bytes is refused', async () => {
  const data = `${await temporaryDirectory()}/data`
  const store = await openStore(data)
  for (let id = 1n; id <= 100n; id++) await store.create('carol', { id, name: `name ${id}` })
  await store.close()
  const whole = filesLeftByKill(data).get('plants.sqlite') ?? assert.fail()
  const pagesBytes = whole.length - TRAILER_BYTES
  for (const cutBytes of [1, 13, 4095, 4096]) {
    const bytes = pagesBytes - cutBytes
    const { outcome, plantsOf } = await importFrom(await fileOf(whole.subarray(0, bytes)))
    // SQLite itself sees that a whole page is missing.
    const isSeen = cutBytes === 4096
    const what = isSeen ? 'database disk image is malformed' : `it is cut off after ${bytes} of `
    assert.ok(outcome.includes(what), outcome)
    for (const owner of ['carol', 'car\0\0']) assert.deepEqual(await plantsOf(owner), [])
  }
  const { outcome, plantsOf } = await importFrom(await fileOf(whole.subarray(0, pagesBytes)))
  assert.match(outcome, /^100 plants read from /)
  assert.equal((await plantsOf('carol')).length, 100)
})

test('import: what the store reports is told with its details', async () => {
  const files = await killedAfter(plantsTo(2n))
  const lines = files.get('journal-00000001.log') ?? assert.fail()
  const torn = Buffer.concat([lines, Buffer.from('torn')])
  const data = await directoryOf(new Map(files).set('journal-00000001.log', torn))
  const told: string[] = []
  const progress = new Progress({ write: (line) => told.push(line) })
  const target = (log: Log): Promise<PlantStore> => openStore(data, { log })
  assert.match(await importStore(target, await fileOf(database(TABLE)), progress), /^0 plants read/)
  const details = `file=${data}/journal-00000001.log byte=${lines.length} bytes=4\n`
  assert.equal(told.length, 1)
  assert.ok(told[0]?.endsWith(details), told[0])
})

test('import: a log with more changes is refused, with what to do', async () => {
  const file = await fileOf(database(TABLE))
  const link = `${await temporaryDirectory()}/link.db`
  symlinkSync(file, link)
  writeFileSync(`${file}-wal`, '')
  writeFileSync(`${file}-journal`, Buffer.alloc(512))
  assert.match(
    (await importFrom(file)).outcome,
    /^0 plants read/,
    'an empty one and a cleared one hold nothing',
  )
  for (const [ending, sql] of [
    ['-wal', 'PRAGMA wal_checkpoint(TRUNCATE)'],
    ['-journal', 'SELECT count(*) FROM plants'],
  ] as const) {
    writeFileSync(`${file}${ending}`, 'x')
    for (const path of [file, link]) {
      const message =
        `${file}${ending} holds changes that are not in ${path} yet: ` +
        `with what writes to it stopped, run sqlite3 ${path} '${sql}'`
      assert.equal((await importFrom(path)).outcome, message)
    }
    writeFileSync(`${file}${ending}`, '')
  }
})

test('import: no regular file, or one that is too large, is refused unread', async (t) => {
  const folder = await temporaryDirectory()
  execFileSync('mkfifo', [`${folder}/fifo`])
  const socket = createServer().listen(`${folder}/socket`)
  t.after(() => socket.close())
  await once(socket, 'listening')
  for (const path of [folder, `${folder}/fifo`, '/dev/zero']) {
    assert.equal((await importFrom(path)).outcome, `${path} is not a regular file`)
  }
  assert.match((await importFrom(`${folder}/socket`)).outcome, /is not a regular file|ENXIO/)
  assert.match((await importFrom(`${folder}/gone`)).outcome, /no such file .*\/gone/)
  writeFileSync(`${folder}/large`, '')
  truncateSync(`${folder}/large`, 2 ** 31)
  assert.equal(
    (await importFrom(`${folder}/large`)).outcome,
    `${folder}/large is 2147483648 bytes long, and at most 2147483647 can be read`,
  )
})

test('import: a file that changes while it is read is refused', async () => {
  const rows = Array.from({ length: 500 }, (_, id) => `('a', ${id}, '${'x'.repeat(10_000)}', NULL)`)
  const file = await fileOf(database(`${TABLE} INSERT INTO plants VALUES ${rows.join()}`))
  const openTarget = async (): Promise<PlantStore> => {
    // After the file was read once, and before its rows are.
    const bytes = readFileSync(file)
    writeFileSync(file, bytes.fill('y', bytes.length / 2))
    return openStore(`${await temporaryDirectory()}/data`)
  }
  await assert.rejects(
    importStore(openTarget, file),
    /plants.db is not as it was read .* at byte \d+: .* else writes to the file; before that, /,
  )
})

test('import: a snapshot that was changed comes in, and a line says that it was', async () => {
  const data = `${await temporaryDirectory()}/data`
  const store = await openStore(data)
  await store.create('alice', { id: 1n, name: 'Fern' })
  await store.close()
  const bytes = filesLeftByKill(data).get('plants.sqlite') ?? assert.fail()
  bytes.write('Tree', bytes.indexOf('Fern'))
  const file = await fileOf(bytes)
  const { lines, outcome, plantsOf } = await importFrom(file)
  assert.equal(outcome, `1 plant read from ${file}; all of them are in the store`)
  assert.deepEqual(lines, [
    `${file} was changed after plant-store wrote it, by an edit or by a failing disk: ` +
      'the plants are imported as they are now',
  ])
  assert.deepEqual(await plantsOf('alice'), [{ name: 'Tree' }])
})

test('import: the own snapshot changes nothing, a partial one is reported', async () => {
  const files = await killedAfter(plantsTo(3n), { compactBytes: 1 })
  const file = await fileOf(files.get('plants.sqlite') ?? Buffer.alloc(0))
  const { lines, outcome } = await importFrom(file)
  assert.match(outcome, /^[123] plants? read from /)
  assert.deepEqual(lines, [
    `${file} was made while a service ran, and may lack what its journals hold: ` +
      '"plant-store export" makes a file that has everything',
  ])
  const data = `${await temporaryDirectory()}/data`
  const store = await openStore(data)
  for (const each of plantsTo(3n)) await store.create('alice', each)
  await store.close()
  const before = readFileSync(`${data}/plants.sqlite`)
  const again = await importFrom(`${data}/plants.sqlite`, data)
  assert.equal(
    again.outcome,
    `3 plants read from ${data}/plants.sqlite; all of them are in the store`,
  )
  assert.deepEqual(again.lines, [])
  assert.deepEqual(filesLeftByKill(data).get('plants.sqlite')?.length, before.length)
})

test('import: a disk that fails while the file is opened is named as that', async () => {
  const bytes = database(`${TABLE} INSERT INTO plants VALUES ('a', 1, 'Oak', NULL)`)
  const { memory } = memoryFile()
  memory.writeNow(bytes, 0)
  const file = { ...memory, readNow: () => assert.fail('EIO') }
  const pages = new PageFile('a.db', file, bytes.length)
  await assert.rejects(openRows(pages), { message: 'EIO' })
})
