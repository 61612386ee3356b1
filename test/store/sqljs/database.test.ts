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
  database.insert([['a', '1', 'xxxx'], ['a', '2', 'xx', 'xx'], ['a', '3', 'x'], ['b', '2', 'y']])
  const page = (plants: number, chars: number, skip: readonly bigint[] = []): readonly [number, bigint | undefined] => {
    const { plants: found, cutAt } = database.page('a', ...ALL, plants, chars, new Set(skip))
    return [found.length, cutAt]
  }
  assert.deepEqual(page(10, 100), [3, undefined])
  assert.deepEqual(page(3, 100), [3, undefined])
  assert.deepEqual(page(2, 100), [2, 2n])
  assert.deepEqual(page(10, 1), [1, 1n])
  assert.deepEqual(page(10, 5), [2, 2n])
  assert.deepEqual(page(10, 9), [3, undefined])
  assert.deepEqual(page(2, 100, [1n]), [2, undefined])
  assert.deepEqual(page(1, 100, [2n]), [1, 1n])
  assert.deepEqual(page(2, 100, [3n]), [2, undefined])
  assert.deepEqual(page(10, 100, [1n, 2n, 3n]), [0, undefined])
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
