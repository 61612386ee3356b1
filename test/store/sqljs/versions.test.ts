import assert from 'node:assert/strict'
import { cp, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import type { Plant } from '../../../dist/plants/plant.js'
import { readMeta } from '../../../dist/store/sqljs/database.js'
import { checkStore } from '../../../dist/cli/check.js'
import { ROOT } from '../../support/release.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { list, openStore } from './fixtures.ts'

/**
 * What the fixtures hold: a snapshot that is not complete by itself, and the journal after it. Each
 * was written once, by its version.
 */
const PLANTS: Readonly<Record<string, readonly Plant[]>> = {
  alice: [
    { name: 'lowest', tag: '' },
    { name: 'x'.repeat(5000) },
    { name: 'in the journal' },
    { name: 'last' },
    { name: 'highest' },
  ],
  bob: [
    { name: '\u0000 "quoted" \\ \n 🌱', tag: '\ufeffmarked' },
    { name: 'in the same group', tag: 't' },
  ],
  'ünïcode owner': [{ name: 'beyond 2^53', tag: 'exact' }],
}

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
  const directory = await temporaryDirectory()
  await cp(join(ROOT, 'test/fixtures/version-1-padding'), directory, {
    recursive: true,
  })
  assert.match(await checkStore(directory), /3 plants in no snapshot and 5 journals/)
  const store = await openStore(directory)
  assert.deepEqual(await list(store), PADDED)
  assert.equal(await store.create('alice', { id: 4n, name: 'another' }), 'stored')
  await store.close()
  assert.match(await checkStore(directory), /4 plants in a snapshot and 0 journals/)
})

for (const version of [1, 2]) {
  test(`versions: a snapshot of version ${version} and its journal are usable`, async () => {
    const directory = await temporaryDirectory()
    await cp(join(ROOT, `test/fixtures/version-${version}`), directory, { recursive: true })
    assert.match(await checkStore(directory), /8 plants in a snapshot and 1 journal/)
    const store = await openStore(directory)
    const plants =
      version === 1
        ? PLANTS
        : { ...PLANTS, bob: [PLANTS['bob']?.[0], { name: 'in the same batch', tag: 't' }] }
    for (const [owner, expected] of Object.entries(plants))
      assert.deepEqual(await list(store, owner), expected)
    assert.equal(
      await store.create('ünïcode owner', {
        id: 2n ** 53n + 1n,
        name: 'beyond 2^53',
        tag: 'exact',
      }),
      'stored',
    )
    assert.equal(
      await store.create('ünïcode owner', { id: 2n ** 53n, name: 'beyond 2^53', tag: 'exact' }),
      'stored',
    )
    assert.equal(await store.create('bob', { id: 7n, name: 'another' }), 'conflict')
    await store.close()
    assert.match(await checkStore(directory), /9 plants in a snapshot and 0 journals/)
    // Now it has the version that is written.
    const snapshot = await readFile(`${directory}/plants.sqlite`)
    assert.equal((await readMeta(snapshot.subarray(0, -64))).format, 2)
    const again = await openStore(directory)
    for (const [owner, expected] of Object.entries(plants)) {
      if (owner !== 'ünïcode owner') assert.deepEqual(await list(again, owner), expected)
    }
    await again.close()
  })
}
