import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { NewPlant } from '../../../dist/plants/plant.js'
import { type PlantChunk, StoreFull } from '../../../dist/plants/store.js'
import { PlantDatabase } from '../../../dist/store/sqljs/memory/database.js'
import type { Row } from '../../../dist/store/sqljs/disk/journal-format.js'
import { checkDirectory } from '../../../dist/store/sqljs/inspect.js'
import { ALL, ODD_TEXTS, plant } from '../../contract/store.contract.ts'
import { simulatedFiles } from '../../faults/simulated-disk.ts'
import { seeded } from '../../support/random.ts'
import { someOf } from '../../support/scale.ts'
import { databaseOf, sourceOf } from '../../support/store-files.ts'
import { contentsOf, IN_MEMORY, list, memoryDisk, openStore, plantsTo } from './fixtures.ts'

function rowOf(owner: string, id: string, name: string, tag?: string): Row {
  return tag === undefined ? [owner, id, name] : [owner, id, name, tag]
}

test('database: a chunk ends at its rows, at its bytes, or with the last plant', async () => {
  const database = await PlantDatabase.serving()
  // As JSON they have 15, 24 and 12 bytes.
  const stored = [{ name: 'xxxx' }, { name: 'xx', tag: 'xx' }, { name: 'x' }]
  database.insert([
    ['a', '1', 'xxxx'],
    ['a', '2', 'xx', 'xx'],
    ['a', '3', 'x'],
    ['b', '2', 'y'],
  ])
  for (const [rows, bytes, expected, next] of [
    [10, 100, 3, undefined],
    [3, 100, 3, undefined],
    [2, 100, 2, 2n],
    [10, 1, 1, 1n],
    [10, 38, 1, 1n],
    [10, 39, 2, 2n],
    [2, 39, 2, 2n],
    [10, 51, 3, undefined],
    [0, 100, 0, undefined],
  ] as const) {
    const chunk = database.lists.chunk('a', undefined, rows, bytes)
    assert.equal(chunk.json, JSON.stringify(stored.slice(0, expected)))
    assert.deepEqual([chunk.count, chunk.next], [expected, next])
  }
  database.close()
})

test('database: a chunk is one long plant, or is as short as it may be', async () => {
  const database = await PlantDatabase.serving()
  const names = [10, 70_000, 10, 300, 30_000, 30_000, 30_000, 300].map((length, id) =>
    `${id}`.padEnd(length, 'x'),
  )
  database.insert(names.map((name, id): Row => ['a', String(id), name]))
  const lists = database.lists.list('a', ALL)
  const chunks: PlantChunk[] = []
  for (let step = lists.next(); !step.done; step = lists.next()) chunks.push(step.value)
  assert.deepEqual(
    chunks.map((chunk) => [chunk.count, chunk.next]),
    [
      [1, 0n],
      [1, 1n],
      [4, 5n],
      [2, undefined],
    ],
  )
  for (const { json, count } of chunks) assert.ok(count === 1 || json.length <= 60 * 1024 + 100)
  assert.deepEqual(
    chunks.flatMap(({ json }) => JSON.parse(json) as unknown[]),
    names.map((name) => ({ name })),
  )
  database.close()
})

test('database: a list is the JSON of its plants, by SQLite or by JavaScript', async (t) => {
  const database = await PlantDatabase.serving()
  const everyUnit = Array.from({ length: 0x10000 }, (_, unit) => String.fromCharCode(unit)).filter(
    (unit) => unit.isWellFormed(),
  )
  const borders = ['x'.repeat(256), 'x'.repeat(257), 'é'.repeat(128), 'é'.repeat(129)]
  const texts = [...ODD_TEXTS, '{"name":"x"}', ...borders]
  for (let at = 0; at < everyUnit.length; at += 64)
    texts.push(everyUnit.slice(at, at + 64).join(''))
  const plants = texts.flatMap((text) => [
    { name: text },
    { name: 'n', tag: text },
    { name: text, tag: text },
  ])
  database.insert(plants.map(({ name, tag }, id) => rowOf('a', String(id), name, tag)))
  const bounds = [
    [7, 2 ** 30],
    [1, 2 ** 30],
    [5000, 2 ** 30],
    [100, 1000],
  ] as const
  for (const [maxRows, maxBytes] of someOf(seeded(t).random, bounds, 4)) {
    const chunks: string[] = []
    for (let after: bigint | undefined = -1n; after !== undefined; ) {
      const chunk: PlantChunk = database.lists.chunk('a', after, maxRows, maxBytes)
      chunks.push(chunk.json.slice(1, -1))
      after = chunk.next
    }
    assert.ok(`[${chunks.join()}]` === JSON.stringify(plants), `${maxRows} and ${maxBytes} bytes`)
  }
  database.close()
})

test('database: a plant is compared with the one of its id, byte for byte', async (t) => {
  const database = await PlantDatabase.serving()
  const texts = [...ODD_TEXTS.slice(0, 12), 'x'.repeat(9000), `${'x'.repeat(8999)}y`]
  const tags = [undefined, ...texts]
  const contents = texts.flatMap((name) => tags.map((tag) => [name, tag] as const))
  for (const [at, stored] of someOf(seeded(t).random, contents.entries(), 4)) {
    const owner = `owner ${at}`
    database.insert([rowOf(owner, '7', ...stored)])
    // Each against all would take seconds.
    for (const other of contents.filter((_, i) => i === at || (i + at) % 11 === 0)) {
      const row = rowOf(owner, '7', ...other)
      assert.equal(database.existing(row), other === stored ? 'same' : 'other')
      assert.throws(() => database.insert([row]), /UNIQUE/)
    }
    assert.equal(database.existing(rowOf(owner, '8', ...stored)), undefined)
  }
  assert.equal(database.existing(['no owner', '7', 'a']), undefined)
  database.close()
})

test('database: bytes that are no database are refused, and the next ones are read', async () => {
  for (const bytes of [Buffer.alloc(8192, 'x'), Buffer.from('SQLite format 3\0')])
    await assert.rejects(PlantDatabase.serving(await sourceOf(bytes)), {
      message: 'SQLite could not copy the pages of a snapshot: result code 26',
    })
  const sound = await databaseOf([['alice', '1', 'Oak']])
  const served = await PlantDatabase.serving(await sourceOf(sound))
  assert.equal(served.count, 1)
  served.close()
})

test('room: a full store stays within its limit, and answers for what it holds', async (t) => {
  const { random } = seeded(t)
  for (const maxChars of someOf(random, [10, 1000, 5000, 60_000], 4)) {
    // Few characters need many plants.
    const maxDataBytes = maxChars < 100 ? 2 ** 17 : 2 ** 20
    const files = simulatedFiles(memoryDisk(new Map()))
    const store = await openStore(IN_MEMORY, { files, maxDataBytes, compactBytes: 2 ** 30 })
    const stored: NewPlant[] = []
    let refused = 0
    for (let first = 0n; refused === 0; first += 100n) {
      const plants = plantsTo(first + 99n, first).map(({ id }) =>
        plant(id, `${id} `.padEnd(1 + Math.floor(random() * maxChars), 'é')),
      )
      const create = async (each: NewPlant): Promise<void> => {
        try {
          assert.equal(await store.create('alice', each), 'stored')
          stored.push(each)
        } catch (error) {
          assert.ok(error instanceof StoreFull, String(error))
          refused += 1
        }
      }
      await Promise.all(plants.map(create))
    }
    assert.equal(store.unavailableReason(), undefined)
    assert.equal((await list(store)).length, stored.length)
    const [kept = assert.fail()] = stored
    assert.equal(await store.create('alice', kept), 'stored')
    assert.equal(await store.create('alice', { ...kept, name: 'other' }), 'conflict')
    await store.close()
    const bytes = (await contentsOf(files, `${IN_MEMORY}/plants.sqlite`)).length
    // A page or two of the file are not in memory: its meta table, and the trailer.
    assert.ok(bytes <= maxDataBytes + 3 * 4096, `${bytes} bytes with names up to ${maxChars}`)
    assert.ok(bytes >= maxDataBytes * 0.85, `only ${bytes} bytes with names up to ${maxChars}`)
    const smaller = await openStore(IN_MEMORY, { files, maxDataBytes: 2 ** 16 })
    assert.equal((await list(smaller)).length, stored.length)
    await assert.rejects(smaller.create('alice', plant(-1n)), StoreFull)
    await smaller.close()
    await checkDirectory(IN_MEMORY, files)
  }
})
