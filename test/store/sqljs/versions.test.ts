import assert from 'node:assert/strict'
import { cp } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { test } from 'node:test'
import type { Plant } from '../../../dist/plants/plant.js'
import { checkStore } from '../../../dist/store/sqljs/tools.js'
import { temporaryDirectory } from '../../support/service.ts'
import { list, openStore } from './fixtures.ts'

/** What test/fixtures/version-1 holds: a snapshot that is not complete by itself, and the journal behind it. Written once, and never again. */
const PLANTS: Readonly<Record<string, readonly Plant[]>> = {
  alice: [{ name: 'lowest', tag: '' }, { name: 'x'.repeat(5000) }, { name: 'in the journal' }, { name: 'last' }, { name: 'highest' }],
  bob: [{ name: '\u0000 "quoted" \\ \n 🌱', tag: '\ufeffmarked' }, { name: 'in the same group', tag: 't' }],
  'ünïcode owner': [{ name: 'beyond 2^53', tag: 'exact' }],
}

/** What test/fixtures/version-1-reserve holds: closed journals with and without a line, the last one with one, and a reserve behind each line, as a kill left them. */
const RESERVED: readonly Plant[] = [{ name: 'plant 1' }, { name: 'plant 2' }, { name: '\u0000', tag: 'a zero, escaped' }]

test('versions: journals of version 1 with a reserve are read, written to, and read again', async () => {
  const directory = await temporaryDirectory()
  await cp(fileURLToPath(new URL('../../fixtures/version-1-reserve', import.meta.url)), directory, { recursive: true })
  assert.match(await checkStore(directory), /3 plants in no snapshot and 5 journals/)
  const store = await openStore(directory)
  assert.deepEqual(await list(store), RESERVED)
  assert.equal(await store.create('alice', { id: 4n, name: 'another' }), 'stored')
  await store.close()
  assert.match(await checkStore(directory), /4 plants in a snapshot and 0 journals/)
})

test('versions: a directory of journal version 1 and snapshot version 1 is read, written to, and read again', async () => {
  const directory = await temporaryDirectory()
  await cp(fileURLToPath(new URL('../../fixtures/version-1', import.meta.url)), directory, { recursive: true })
  assert.match(await checkStore(directory), /8 plants in a snapshot and 1 journal/)
  const store = await openStore(directory)
  for (const [owner, plants] of Object.entries(PLANTS)) assert.deepEqual(await list(store, owner), plants)
  assert.equal(await store.create('ünïcode owner', { id: 2n ** 53n + 1n, name: 'beyond 2^53', tag: 'exact' }), 'stored')
  assert.equal(await store.create('ünïcode owner', { id: 2n ** 53n, name: 'beyond 2^53', tag: 'exact' }), 'stored')
  assert.equal(await store.create('bob', { id: 7n, name: 'another' }), 'conflict')
  await store.close()
  assert.match(await checkStore(directory), /9 plants in a snapshot and 0 journals/)
})
