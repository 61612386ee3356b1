import assert from 'node:assert/strict'
import { test as unlimited } from 'node:test'
import { PlantDatabase } from '../../../dist/store/sqljs/memory/database.js'
import type { Row } from '../../../dist/store/sqljs/disk/journal-format.js'
import { loadSqlite } from '../../../dist/store/sqljs/sqlite/sqlite.js'
import { THOROUGH } from '../../support/scale.ts'
import { databaseOf, sourceOf } from '../../support/store-files.ts'

/** Node's types leave it to those of the DOM. */
declare const WebAssembly: {
  readonly Memory: {
    readonly prototype: { grow(this: { readonly buffer: ArrayBuffer }, pages: number): number }
  }
}

const MIB = 1024 * 1024
const LIMIT_MIB = 32

/** A test in which growing fails above the limit, as it does without memory. */
function test(title: string, run: () => Promise<void>): void {
  void unlimited(title, (t) => {
    const { prototype } = WebAssembly.Memory
    const { grow } = prototype
    t.mock.method(prototype, 'grow', function (this: { buffer: ArrayBuffer }, pages: number) {
      if (this.buffer.byteLength + pages * 65_536 > LIMIT_MIB * MIB)
        throw new RangeError('no more memory')
      return grow.call(this, pages)
    })
    return run()
  })
}

/** A database with this many MiB of plants. Only `close` frees SQLite's memory. */
async function filled(mib: number): Promise<PlantDatabase> {
  const database = await PlantDatabase.serving()
  for (let id = 0; database.usedPages * 4096 < mib * MIB; id++)
    database.insert([['filler', String(id), 'n'.repeat(15_000)]])
  return database
}

interface Allocator {
  readonly _malloc: (bytes: number) => number
  readonly _free: (place: number) => void
}

/** Takes all memory except one piece of this many bytes; the returned function frees it. */
async function leaveOnly(bytes: number): Promise<() => void> {
  // What sql.js has compiled in, and the service does not use.
  const { _malloc: take, _free: free } = (await loadSqlite()) as unknown as Allocator
  const left = bytes === 0 ? 0 : take(bytes)
  const taken: number[] = []
  for (let size = 4 * MIB; size >= 16; size /= 2) {
    for (let place = take(size); place !== 0; place = take(size)) taken.push(place)
  }
  if (left !== 0) free(left)
  return () => taken.forEach((place) => free(place))
}

test('memory: a long plant needs no memory to be found new', async () => {
  const database = await filled(1)
  const freeAll = await leaveOnly(100_000)
  try {
    assert.equal(database.existing(['alice', '7', 'n'.repeat(MIB)]), undefined)
  } finally {
    freeAll()
    database.close()
  }
})

test('memory: texts that JSON makes six times as long take little extra memory', async () => {
  const database = await filled(1)
  const text = '\u0001'.repeat(256)
  database.insert(Array.from({ length: 1000 }, (_, id): Row => ['alice', String(id), text, text]))
  const freeAll = await leaveOnly(2 * MIB)
  try {
    assert.equal(database.lists.chunk('alice', undefined, 1000, 99 * 1024).count, 32)
  } finally {
    freeAll()
    database.close()
  }
})

async function asVersion2(current: Uint8Array): Promise<Uint8Array> {
  const { Database } = await loadSqlite()
  const old = new Database(Buffer.from(current))
  old.run(`
    ALTER TABLE plants RENAME TO newer;
    CREATE TABLE plants (owner TEXT NOT NULL, id INTEGER NOT NULL, sequence INTEGER NOT NULL,
      name TEXT NOT NULL, tag TEXT, PRIMARY KEY (owner, id)) WITHOUT ROWID;
    INSERT INTO plants SELECT owner, id, 1, name, tag FROM newer; DROP TABLE newer; VACUUM`)
  const file = old.export()
  old.close()
  return file
}

test('memory: a start holds the plants of a snapshot once, of each version', async () => {
  const [name, plants] = ['n'.repeat(15_000), 1200]
  const rows = Array.from({ length: plants }, (_, id): Row => ['alice', String(id), name])
  const current = await databaseOf(rows)
  // The tables of version 1 are those of 3.
  const files: [Uint8Array, number][] = [[current, 3]]
  if (THOROUGH) files.push([await asVersion2(current), 2])
  for (const [file, format] of files) {
    assert.ok(file.length > (LIMIT_MIB / 2) * MIB)
    const served = await PlantDatabase.serving(await sourceOf(file, format))
    assert.equal(served.countVerified(), plants)
    assert.equal(served.existing(['alice', '7', name]), 'same')
    served.close()
  }
})
