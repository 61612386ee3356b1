import assert from 'node:assert/strict'
import { test } from 'node:test'
import { StoreFull } from '../../../dist/plants/store.js'
import { PlantDatabase, type Row } from '../../../dist/store/sqljs/database.js'
import { ALL_IDS, type Chunk } from '../../../dist/store/sqljs/list.js'
import { checkStore } from '../../../dist/cli/check.js'
import { plant } from '../../contract/store.contract.ts'
import { seeded } from '../../support/random.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { sampled } from '../../support/scale.ts'
import { databaseOf, insertAs, sourceOf } from '../../support/store-files.ts'
import { filesOf, list, openStore } from './fixtures.ts'

const NOW = 1
const LATER = 2

test('database: a chunk ends at its rows, at its bytes, or with the last plant', async () => {
  const database = await PlantDatabase.serving()
  // As JSON they have 15, 24 and 12 bytes.
  const stored = [{ name: 'xxxx' }, { name: 'xx', tag: 'xx' }, { name: 'x' }]
  insertAs(
    database,
    [
      ['a', '1', 'xxxx'],
      ['a', '2', 'xx', 'xx'],
      ['a', '3', 'x'],
      ['b', '2', 'y'],
    ],
    NOW,
  )
  const read = (rows: number, bytes: number): readonly [number, bigint | undefined] => {
    const { json, plants, cutAt } = database.lists.chunk(
      { owner: 'a', ...ALL_IDS, asOf: NOW },
      rows,
      bytes,
    )
    assert.equal(json, JSON.stringify(stored.slice(0, plants)))
    return [plants, cutAt]
  }
  assert.deepEqual(read(10, 100), [3, undefined])
  assert.deepEqual(read(3, 100), [3, undefined])
  assert.deepEqual(read(2, 100), [2, 2n])
  assert.deepEqual(read(10, 1), [1, 1n])
  assert.deepEqual(read(10, 15), [1, 1n])
  assert.deepEqual(read(10, 16), [2, 2n])
  assert.deepEqual(read(10, 40), [3, undefined])
  database.close()
})

test('database: a view hides rows of later sequences, and reads a bounded number', async () => {
  const database = await PlantDatabase.serving()
  const long = 'x'.repeat(1000)
  // Every third row is old. Short texts are written by SQLite, long ones row by row.
  const rows = Array.from(
    { length: 1200 },
    (_, id): Row => ['a', String(id), id % 7 === 0 ? `${id} ${long}` : String(id)],
  )
  insertAs(
    database,
    rows.filter((_, id) => id % 3 === 0),
    NOW,
  )
  insertAs(
    database,
    rows.filter((_, id) => id % 3 !== 0),
    LATER,
  )
  for (const asOf of [0, NOW, LATER]) {
    const visible = rows
      .filter((_, id) => asOf === LATER || (asOf === NOW && id % 3 === 0))
      .map(([, , name]) => ({ name }))
    for (const maxRows of [1, 99, 100, 250, 5000]) {
      const found: unknown[] = []
      let from: bigint | undefined = ALL_IDS.from
      for (let chunks = 1; from !== undefined; chunks++) {
        const { json, plants, cutAt }: Chunk = database.lists.chunk(
          { owner: 'a', from, to: ALL_IDS.to, asOf },
          maxRows,
          2 ** 30,
        )
        const some = JSON.parse(json) as unknown[]
        assert.equal(some.length, plants)
        if (cutAt !== undefined) assert.equal(cutAt, BigInt(chunks * maxRows - 1))
        found.push(...some)
        from = cutAt === undefined ? undefined : cutAt + 1n
      }
      assert.deepEqual(found, visible, `as of ${asOf}, by ${maxRows}`)
    }
    for (const plants of [1, 2, 200, 400, 401, 1200, 1201]) {
      let [at, left]: [bigint | undefined, number] = [-1n, plants]
      while (at !== undefined && left > 0)
        ({ at, left } = database.lists.skip(
          { owner: 'a', from: at + 1n, to: ALL_IDS.to, asOf },
          left,
          700,
        ))
      assert.equal(
        at,
        visible.length >= plants
          ? BigInt(visible[plants - 1]?.name.split(' ')[0] ?? '')
          : undefined,
        `${plants} as of ${asOf}`,
      )
      assert.equal(left, Math.max(0, plants - visible.length))
    }
    const isEmpty = (to: bigint): boolean =>
      database.lists.skip({ owner: 'a', from: 1n, to, asOf }, 1, 10).left === 1
    assert.deepEqual([isEmpty(2n), isEmpty(3n)], [asOf !== LATER, asOf < NOW])
  }
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
  insertAs(
    database,
    plants.map(({ name, tag }, id) =>
      tag === undefined ? ['a', String(id), name] : ['a', String(id), name, tag],
    ),
    NOW,
  )
  for (const [maxRows, maxBytes] of [
    [1, 2 ** 30],
    [7, 2 ** 30],
    [5000, 2 ** 30],
    [100, 1000],
  ] as const) {
    const chunks: string[] = []
    for (let from: bigint | undefined = 0n; from !== undefined; ) {
      const { json, cutAt }: Chunk = database.lists.chunk(
        { owner: 'a', from, to: ALL_IDS.to, asOf: NOW },
        maxRows,
        maxBytes,
      )
      chunks.push(json.slice(1, -1))
      from = cutAt === undefined ? undefined : cutAt + 1n
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
    insertAs(database, [tag === undefined ? [owner, '7', name] : [owner, '7', name, tag]], NOW)
    // Each against all: 24,336 pairs would take seconds.
    for (const other of rows.filter((_, i) => i === at || (i + at) % 11 === 0)) {
      const [, , otherName, otherTag] = other
      const row: Row =
        otherTag === undefined ? [owner, '7', otherName] : [owner, '7', otherName, otherTag]
      const isSame = other === stored
      assert.deepEqual(database.existing(row), { isSame, sequence: NOW })
      assert.equal(database.add(row, LATER), false)
    }
    assert.equal(database.existing([owner, '8', name]), undefined)
  }
  assert.equal(database.existing(['no owner', '7', 'a']), undefined)
  assert.equal(database.count, rows.length)
  database.close()
})

test('database: a plant that is removed leaves its id free, and all others are kept', async () => {
  const database = await PlantDatabase.serving()
  const rows = Array.from({ length: 500 }, (_, id): Row => ['a', String(id), `plant ${id}`])
  for (const row of rows) assert.ok(database.add(row, NOW))
  const [odd, even] = [1, 0].map((rest) => rows.filter(([, id]) => Number(id) % 2 === rest))
  database.remove(odd ?? [])
  for (const row of odd ?? []) assert.equal(database.existing(row), undefined)
  for (const row of even ?? [])
    assert.deepEqual(database.existing(row), { isSame: true, sequence: NOW })
  assert.throws(() => database.remove(odd ?? []), /could not be removed/)
  assert.throws(() => insertAs(database, even ?? [], LATER), /the same id/)
  assert.ok(database.add(['a', '1', 'another plant'], LATER))
  database.close()
})

test('database: a served database has what a file held', async () => {
  const row: Row = ['a', '9223372036854775807', '\ufeff\u0000', '']
  const bytes = await databaseOf([row], { sequence: 7, complete: false })
  const serving = await PlantDatabase.serving(await sourceOf(bytes))
  assert.deepEqual(serving.existing(row), { isSame: true, sequence: 7 })
  assert.equal(serving.existing(['a', '9223372036854775806', '\ufeff\u0000', '']), undefined)
  assert.equal(
    serving.lists.chunk({ owner: 'a', ...ALL_IDS, asOf: 7 }, 10, 100).json,
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
