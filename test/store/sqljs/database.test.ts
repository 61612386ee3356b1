import assert from 'node:assert/strict'
import { test } from 'node:test'
import { StoreFull } from '../../../dist/plants/store.js'
import { PlantDatabase } from '../../../dist/store/sqljs/database.js'
import type { Row } from '../../../dist/store/sqljs/journal-format.js'
import type { PlantChunk } from '../../../dist/plants/store.js'
import { checkStore } from '../../../dist/cli/check.js'
import { plant } from '../../contract/store.contract.ts'
import { seeded } from '../../support/random.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { sampled } from '../../support/scale.ts'
import { databaseOf, sourceOf } from '../../support/store-files.ts'
import { filesOf, list, openStore } from './fixtures.ts'

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
  const read = (rows: number, bytes: number): readonly [number, bigint | undefined] => {
    const { json, count, cutAt } = database.lists.chunk('a', undefined, rows, bytes)
    assert.equal(json, JSON.stringify(stored.slice(0, count)))
    return [count, cutAt]
  }
  assert.deepEqual(read(10, 100), [3, undefined])
  assert.deepEqual(read(3, 100), [3, undefined])
  assert.deepEqual(read(2, 100), [2, 2n])
  assert.deepEqual(read(10, 1), [1, 1n])
  assert.deepEqual(read(10, 38), [1, 1n])
  assert.deepEqual(read(10, 39), [2, 2n])
  assert.deepEqual(read(2, 39), [2, 2n])
  assert.deepEqual(read(10, 51), [3, undefined])
  assert.deepEqual(read(0, 100), [0, undefined])
  database.close()
})

test('database: a chunk is one long plant, or is as short as it may be', async () => {
  const database = await PlantDatabase.serving()
  const names = [10, 70_000, 10, 300, 30_000, 30_000, 30_000, 300].map((length, id) =>
    `${id}`.padEnd(length, 'x'),
  )
  database.insert(names.map((name, id): Row => ['a', String(id), name]))
  const list = database.lists.list('a', { after: undefined, limit: undefined })
  const chunks: PlantChunk[] = []
  for (let step = list.next(); !step.done; step = list.next()) chunks.push(step.value)
  assert.deepEqual(
    chunks.map(({ count, cutAt }) => [count, cutAt]),
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

test('database: a list is the JSON of its plants, written by SQLite or by JavaScript', async () => {
  const database = await PlantDatabase.serving()
  const everyUnit = Array.from({ length: 0x10000 }, (_, unit) => String.fromCharCode(unit)).filter(
    (unit) => unit.isWellFormed(),
  )
  const texts = [
    '',
    '\ufeff',
    '\ufeff\ufeffx',
    '\u0000',
    'a\u0000b',
    '\u{1f331}',
    '"\\/',
    '{"name":"x"}',
    'null',
    '[1]',
    'x'.repeat(256),
    'x'.repeat(257),
    'é'.repeat(128),
    'é'.repeat(129),
  ]
  for (let at = 0; at < everyUnit.length; at += 64)
    texts.push(everyUnit.slice(at, at + 64).join(''))
  const plants = texts.flatMap((text) => [
    { name: text },
    { name: 'n', tag: text },
    { name: text, tag: text },
  ])
  database.insert(
    plants.map(({ name, tag }, id) =>
      tag === undefined ? ['a', String(id), name] : ['a', String(id), name, tag],
    ),
  )
  for (const [maxRows, maxBytes] of [
    [1, 2 ** 30],
    [7, 2 ** 30],
    [5000, 2 ** 30],
    [100, 1000],
  ] as const) {
    const chunks: string[] = []
    for (let after: bigint | undefined = -1n; after !== undefined; ) {
      const chunk: PlantChunk = database.lists.chunk('a', after, maxRows, maxBytes)
      chunks.push(chunk.json.slice(1, -1))
      after = chunk.cutAt
    }
    assert.equal(
      `[${chunks.join()}]`,
      JSON.stringify(plants),
      `by ${maxRows} and ${maxBytes} bytes`,
    )
  }
  database.close()
})

test('database: a plant is compared with the one of its id, byte for byte', async () => {
  const database = await PlantDatabase.serving()
  const texts = [
    '',
    'a',
    'A',
    'a\u0000',
    '\u0000',
    'é',
    'e\u0301',
    '\ufeffa',
    '1',
    '1.0',
    'x'.repeat(9000),
    `${'x'.repeat(8999)}y`,
  ]
  const tags = [undefined, ...texts]
  const rows = texts.flatMap((name) =>
    tags.map((tag): Row => (tag === undefined ? ['a', '7', name] : ['a', '7', name, tag])),
  )
  for (const [at, stored] of rows.entries()) {
    const [, , name, tag] = stored
    const owner = `owner ${at}`
    database.insert([tag === undefined ? [owner, '7', name] : [owner, '7', name, tag]])
    // Each against all: 24,336 pairs would take seconds.
    for (const other of rows.filter((_, i) => i === at || (i + at) % 11 === 0)) {
      const [, , otherName, otherTag] = other
      const row: Row =
        otherTag === undefined ? [owner, '7', otherName] : [owner, '7', otherName, otherTag]
      assert.equal(database.existing(row), other === stored ? 'same' : 'other')
      assert.throws(() => database.insert([row]), /UNIQUE/)
    }
    assert.equal(database.existing([owner, '8', name]), undefined)
  }
  assert.equal(database.existing(['no owner', '7', 'a']), undefined)
  assert.equal(database.count, rows.length)
  database.close()
})

test('database: a served database has what a file held', async () => {
  const row: Row = ['a', '9223372036854775807', '\ufeff\u0000', '']
  const bytes = await databaseOf([row])
  const serving = await PlantDatabase.serving(await sourceOf(bytes))
  assert.equal(serving.existing(row), 'same')
  assert.equal(serving.existing(['a', '9223372036854775806', '\ufeff\u0000', '']), undefined)
  assert.equal(
    serving.lists.chunk('a', undefined, 10).json,
    JSON.stringify([{ name: '\ufeff\u0000', tag: '' }]),
  )
  assert.equal(serving.check(), 1)
  serving.close()
})

test('database: bytes that are no database are refused, and the next ones are read', async () => {
  for (const bytes of [Buffer.alloc(8192, 'x'), Buffer.from('SQLite format 3\0')])
    await assert.rejects(PlantDatabase.serving(await sourceOf(bytes)), {
      message: 'SQLite could not copy the pages of a snapshot: result code 26',
    })
  const served = await PlantDatabase.serving(
    await sourceOf(await databaseOf([['alice', '1', 'Oak']])),
  )
  assert.equal(served.count, 1)
  served.close()
})

test('room: a full store stays within its limit, and answers for what it holds', async (t) => {
  const { random } = seeded(t)
  for (const maxChars of sampled([10, 1000, 5000, 60_000], 2)) {
    // Few characters need many plants.
    const maxDataBytes = maxChars < 100 ? 2 ** 18 : 2 ** 20
    const directory = `${await temporaryDirectory()}/data`
    const store = await openStore(directory, { maxDataBytes, compactBytes: 2 ** 30 })
    const stored: string[] = []
    let refused = 0
    for (let id = 0n; refused === 0; id += 100n) {
      await Promise.all(
        Array.from({ length: 100 }, async (_, i) => {
          const name = `${id + BigInt(i)} `.padEnd(1 + Math.floor(random() * maxChars), 'é')
          try {
            assert.equal(await store.create('alice', plant(id + BigInt(i), name)), 'stored')
            stored.push(name)
          } catch (error) {
            assert.ok(error instanceof StoreFull, String(error))
            refused += 1
          }
        }),
      )
    }
    assert.equal(store.unavailableReason(), undefined)
    assert.equal((await list(store)).length, stored.length)
    const [name = ''] = stored
    assert.equal(
      await store.create('alice', plant(BigInt(name.split(' ')[0] ?? ''), name)),
      'stored',
    )
    assert.equal(
      await store.create('alice', plant(BigInt(name.split(' ')[0] ?? ''), 'other')),
      'conflict',
    )
    await store.close()
    const bytes = (await filesOf(directory)).get('plants.sqlite')?.length ?? 0
    // A page or two of the file are not in memory: its meta table, and the trailer.
    assert.ok(bytes <= maxDataBytes + 3 * 4096, `${bytes} bytes with names up to ${maxChars}`)
    assert.ok(bytes >= maxDataBytes * 0.85, `only ${bytes} bytes with names up to ${maxChars}`)
    const smaller = await openStore(directory, { maxDataBytes: 2 ** 16 })
    assert.equal((await list(smaller)).length, stored.length)
    await assert.rejects(smaller.create('alice', plant(-1n)), StoreFull)
    await smaller.close()
    await checkStore(directory)
  }
})
