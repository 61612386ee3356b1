import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import type { Plant } from '../../../dist/plants/plant.js'
import { headLines, NOWHERE } from '../../../dist/store/sqljs/disk/journal-format.js'
import { READABLE_JOURNALS } from '../../../dist/store/sqljs/disk/journal-format.js'
import { FORMAT_VERSION, READABLE_VERSIONS } from '../../../dist/store/sqljs/disk/snapshot.js'
import { checkDirectory, exportToFile } from '../../../dist/store/sqljs/inspect.js'
import { loadSqlite } from '../../../dist/store/sqljs/sqlite/sqlite.js'
import { ROOT } from '../../support/release.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { plant } from '../../contract/store.contract.ts'
import { fixture, list, openStore } from './fixtures.ts'

/**
 * What the fixtures hold: a snapshot that is not complete by itself, and the journal after it. Each
 * was written once, by its version.
 */
function plantsOf(version: number): Readonly<Record<string, readonly Plant[]>> {
  const names = ['in the journal', 'last', 'highest'].map((name) => ({ name }))
  const together = `in the same ${version === 1 ? 'group' : 'batch'}`
  return {
    alice: [{ name: 'lowest', tag: '' }, { name: 'x'.repeat(5000) }, ...names],
    bob: [
      { name: '\u0000 "quoted" \\ \n 🌱', tag: '\ufeffmarked' },
      { name: together, tag: 't' },
    ],
    'ünïcode owner': [{ name: 'beyond 2^53', tag: 'exact' }],
  }
}

/** What the import of 1.0.0 asks of a file. */
const READ_BY_1_0_0 = 'SELECT owner, id, name, tag FROM plants ORDER BY owner, id'
const EXACT_IDS = `SELECT owner, CAST(id AS TEXT), name, tag FROM (${READ_BY_1_0_0})`

/**
 * What test/fixtures/version-1-padding holds: closed journals with and without a line, the last one
 * with one, and padding after each line, as a kill left them.
 */
const PADDED: readonly Plant[] = [
  { name: 'plant 1' },
  { name: 'plant 2' },
  { name: '\u0000', tag: 'a zero, escaped' },
]

test('versions: journals of version 1 with padding are read, written, read again', async () => {
  const directory = await fixture('version-1-padding')
  assert.match(await checkDirectory(directory), /3 plants in no snapshot and 5 journals/)
  const store = await openStore(directory)
  assert.deepEqual(await list(store), PADDED)
  assert.equal(await store.create('alice', plant(4n)), 'stored')
  await store.close()
  assert.match(await checkDirectory(directory), /4 plants in a snapshot and 1 journal/)
})

for (const version of [1, 2, 3, 4]) {
  test(`versions: a snapshot of version ${version} and its journal are usable`, async () => {
    const directory = await fixture(`version-${version}`)
    assert.match(await checkDirectory(directory), /8 plants in a snapshot and 1 journal/)
    const store = await openStore(directory)
    const plants = plantsOf(version)
    for (const [owner, expected] of Object.entries(plants))
      assert.deepEqual(await list(store, owner), expected)
    for (const id of [2n ** 53n + 1n, 2n ** 53n])
      assert.equal(await store.create('ünïcode owner', plant(id, 'beyond 2^53', 'exact')), 'stored')
    assert.equal(await store.create('bob', plant(7n, 'another')), 'conflict')
    await store.close()
    assert.match(await checkDirectory(directory), /9 plants in a snapshot and 1 journal/)
    // Now it has the version that is written.
    const snapshot = await readFile(`${directory}/plants.sqlite`)
    assert.equal(snapshot.readUInt32BE(snapshot.length - 64 + 16), 4)
    const { Database } = await loadSqlite()
    const statement = new Database(snapshot.subarray(0, -64)).prepare('SELECT * FROM plants')
    assert.ok(statement.step())
    assert.equal(statement.get().length, 4)
    const again = await openStore(directory)
    for (const owner of ['alice', 'bob']) assert.deepEqual(await list(again, owner), plants[owner])
    await again.close()
  })

  test(`versions: from version ${version}, an earlier release can import it`, async () => {
    const { Database } = await loadSqlite()
    const data = await fixture(`version-${version}`)
    const store = await openStore(data)
    await store.create('zoe', plant(2n ** 63n - 1n, 'created since', ''))
    await store.close()
    const file = join(await temporaryDirectory(), 'export.sqlite')
    assert.equal(await exportToFile(data, file), 9)
    for (const path of [file, join(data, 'plants.sqlite')]) {
      const database = new Database(await readFile(path))
      const statement = database.prepare(EXACT_IDS)
      const rows: unknown[] = []
      while (statement.step()) rows.push(statement.get())
      assert.equal(rows.length, 9)
      assert.deepEqual(rows[7], ['zoe', String(2n ** 63n - 1n), 'created since', ''])
      database.close()
    }
  })
}

test('versions: the table of releases says what this one writes and reads', async () => {
  const text = await readFile(join(ROOT, 'scripts/deploy/README.md'), 'utf8')
  // The newest release is first.
  const row = text.split('\n').find((line) => /^\| \d+\.\d+\.\d+ \|/.test(line)) ?? assert.fail()
  const [, journal] = headLines(NOWHERE).toString().split(' ')
  assert.deepEqual(row.split('|').slice(2, 6), [
    ` ${FORMAT_VERSION} `,
    ` ${READABLE_VERSIONS.join(', ')} `,
    ` ${journal} `,
    ` ${READABLE_JOURNALS.join(', ')} `,
  ])
})
