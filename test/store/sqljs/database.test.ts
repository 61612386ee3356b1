import assert from 'node:assert/strict'
import { test } from 'node:test'
import { StoreFull } from '../../../dist/plants/store.js'
import { PlantDatabase } from '../../../dist/store/sqljs/database.js'
import { checkStore } from '../../../dist/store/sqljs/tools.js'
import { plant } from '../../contract/store.contract.ts'
import { seeded } from '../../support/random.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { sampled } from '../../support/scale.ts'
import { filesOf, list, openStore } from './fixtures.ts'

const ALL = [-(2n ** 63n), 2n ** 63n - 1n] as const

test('database: a page ends at its number of plants, at its length of text, or with the last plant', async () => {
  const database = await PlantDatabase.serving()
  // As JSON they have 15, 24 and 12 bytes.
  const stored = [{ name: 'xxxx' }, { name: 'xx', tag: 'xx' }, { name: 'x' }]
  database.insert([['a', '1', 'xxxx'], ['a', '2', 'xx', 'xx'], ['a', '3', 'x'], ['b', '2', 'y']])
  const page = (plants: number, bytes: number, skip: readonly bigint[] = []): readonly [number, bigint | undefined] => {
    const { json, isFull, cutAt } = database.page('a', ...ALL, plants, bytes, new Set(skip))
    const { length } = JSON.parse(json.toString()) as unknown[]
    assert.equal(json.toString(), JSON.stringify(stored.filter((_, i) => !skip.includes(BigInt(i + 1))).slice(0, length)))
    assert.equal(isFull, length === plants && cutAt !== undefined)
    return [length, cutAt]
  }
  assert.deepEqual(page(10, 100), [3, undefined])
  assert.deepEqual(page(3, 100), [3, undefined])
  assert.deepEqual(page(2, 100), [2, 2n])
  assert.deepEqual(page(10, 1), [1, 1n])
  assert.deepEqual(page(10, 15), [1, 1n])
  assert.deepEqual(page(10, 16), [2, 2n])
  assert.deepEqual(page(10, 40), [3, undefined])
  assert.deepEqual(page(2, 100, [1n]), [2, undefined])
  assert.deepEqual(page(1, 100, [2n]), [1, 1n])
  assert.deepEqual(page(2, 100, [3n]), [2, undefined])
  assert.deepEqual(page(10, 100, [1n, 2n, 3n]), [0, undefined])
  database.close()
})

test('database: a list is the JSON of its plants, whoever makes the text of it: SQLite of short ones, else JavaScript', async () => {
  const database = await PlantDatabase.serving()
  const everyUnit = Array.from({ length: 0x10000 }, (_, unit) => String.fromCharCode(unit)).filter((unit) => unit.isWellFormed?.() ?? !/[\ud800-\udfff]/.test(unit))
  const texts = ['', '\ufeff', '\ufeff\ufeffx', '\u0000', 'a\u0000b', '\u{1f331}', '"\\/', '{"name":"x"}', 'null', '[1]', 'x'.repeat(256), 'x'.repeat(257), 'é'.repeat(128), 'é'.repeat(129)]
  for (let at = 0; at < everyUnit.length; at += 64) texts.push(everyUnit.slice(at, at + 64).join(''))
  const plants = texts.flatMap((text) => [{ name: text }, { name: 'n', tag: text }, { name: text, tag: text }])
  database.insert(plants.map(({ name, tag }, id) => (tag === undefined ? ['a', String(id), name] : ['a', String(id), name, tag])))
  const read = (skip: ReadonlySet<bigint>, maxPlants: number, maxBytes: number): string => {
    const pieces: string[] = []
    for (let from: bigint | undefined = 0n; from !== undefined; ) {
      const { json, cutAt } = database.page('a', from, ALL[1], maxPlants, maxBytes, skip)
      pieces.push(json.toString().slice(1, -1))
      from = cutAt === undefined ? undefined : cutAt + 1n
    }
    return `[${pieces.join()}]`
  }
  const right = JSON.stringify(plants)
  for (const maxPlants of [1, 7, 5000]) {
    assert.equal(read(new Set(), maxPlants, 2 ** 30), right, `by ${maxPlants}`)
    assert.equal(read(new Set([-1n]), maxPlants, 2 ** 30), right, `row by row, by ${maxPlants}`)
  }
  assert.equal(read(new Set(), 100, 1000), right)
  database.close()
})

test('database: a page of any number of plants says where it ends and why', async () => {
  const database = await PlantDatabase.serving()
  const plants = Array.from({ length: 300 }, (_, id) => ({ name: `n${id}` }))
  database.insert(plants.map(({ name }, id) => ['a', String(id), name]))
  for (const maxPlants of [1, 99, 100, 101, 199, 200, 201, 299, 300, 301, 1000]) {
    for (const skip of [new Set<bigint>(), new Set([-1n])]) {
      const { json, isFull, cutAt } = database.page('a', ...ALL, maxPlants, 2 ** 30, skip)
      const isCut = maxPlants < plants.length
      assert.deepEqual([json.toString(), isFull, cutAt], [JSON.stringify(plants.slice(0, maxPlants)), isCut, isCut ? BigInt(maxPlants - 1) : undefined], `${maxPlants} plants`)
    }
  }
  database.close()
})

test('database: the plant so many places behind an id is found, or none', async () => {
  const database = await PlantDatabase.serving()
  database.insert([['a', '-5', ''], ['a', '7', ''], ['a', '9', ''], ['b', '8', '']])
  assert.equal(database.idAt('a', ALL[0], 0), -5n)
  assert.equal(database.idAt('a', ALL[0], 2), 9n)
  assert.equal(database.idAt('a', 8n, 0), 9n)
  assert.equal(database.idAt('a', ALL[0], 3), undefined)
  assert.equal(database.idAt('c', ALL[0], 0), undefined)
  database.close()
})

test('database: what serves holds what a file held, and a file what was built', async () => {
  const building = await PlantDatabase.building()
  building.insert([['a', '9223372036854775807', '\ufeff\u0000', '']])
  const bytes = building.toFile({ sequence: 7, complete: false })
  building.close()
  const serving = await PlantDatabase.serving(Buffer.from(bytes))
  assert.deepEqual(serving.find('a', '9223372036854775807'), { name: '\ufeff\u0000', tag: '' })
  assert.equal(serving.find('a', '9223372036854775806'), undefined)
  serving.close()
  const again = await PlantDatabase.building(Buffer.from(bytes))
  assert.equal(again.check(), 1)
  again.close()
})

test('room: a store of any size of plants is full within its limit, answers what it holds, and never refuses what it holds already', async (t) => {
  const { random } = seeded(t)
  const maxDataBytes = 2 ** 20
  for (const maxChars of sampled([10, 1000, 5000, 60_000], 2)) {
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
    assert.equal(store.trouble(), undefined)
    assert.equal((await list(store)).length, stored.length)
    const [name = ''] = stored
    assert.equal(await store.create('alice', plant(BigInt(name.split(' ')[0] ?? ''), name)), 'stored')
    assert.equal(await store.create('alice', plant(BigInt(name.split(' ')[0] ?? ''), 'other')), 'conflict')
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
