import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { test, type TestContext } from 'node:test'
import type { Row } from '../../../dist/store/sqljs/disk/journal-format.js'
import { StoreCorrupt } from '../../../dist/store/sqljs/disk/journal-format.js'
import { readSnapshot, type Snapshot } from '../../../dist/store/sqljs/disk/snapshot.js'
import { exportToFile } from '../../../dist/store/sqljs/inspect.js'
import { plant } from '../../contract/store.contract.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { seeded } from '../../support/random.ts'
import { THOROUGH } from '../../support/scale.ts'
import { fileOf, writeStore } from '../../support/store-files.ts'
import { BIT_PATTERNS, corruptAt, directoryOf, filesOf, filesWith, list } from './fixtures.ts'
import { openStore, withoutStacks } from './fixtures.ts'

const FILE = '/data/plants.sqlite'
const TRAILER_BYTES = 64

/** The snapshot that a clean stop leaves after three writes. */
async function snapshot(): Promise<Buffer> {
  const directory = `${await temporaryDirectory()}/data`
  const store = await openStore(directory)
  await store.create('alice', plant(1n, 'Oak', 'old'))
  await store.create('alice', plant(-(2n ** 63n), '\ufeffa\u0000b'))
  await store.create('bob', plant(1n, ''))
  await store.close()
  const bytes = (await filesOf(directory)).get('plants.sqlite')
  assert.ok(bytes)
  return bytes
}

/** One of more pages than are read at a time. */
async function largeSnapshot(): Promise<Buffer> {
  const row: Row = ['alice', '1', 'x'.repeat(40_000)]
  return readFileSync(await writeStore(await temporaryDirectory(), [row]))
}

async function read(bytes: Uint8Array): Promise<Snapshot> {
  return readSnapshot(FILE, await fileOf(bytes))
}

function sealed(database: Uint8Array, version: number, sequence: bigint): Buffer {
  const trailer = Buffer.alloc(TRAILER_BYTES - 32)
  trailer.write('plant-store snap', 'latin1')
  trailer.writeUInt32BE(version, 16)
  trailer.writeBigUInt64BE(sequence, 24)
  const sha = createHash('sha256').update(database).update(trailer).digest()
  return Buffer.concat([database, trailer, sha])
}

test('snapshot: a SQLite file with whole pages, a meta table and a trailer', async () => {
  const bytes = await snapshot()
  const database = bytes.subarray(0, -TRAILER_BYTES)
  assert.equal(database.toString('latin1', 0, 16), 'SQLite format 3\0')
  assert.equal(database.length % 4096, 0)
  assert.deepEqual(bytes, sealed(database, 4, 3n))
  const { pages, position, ...found } = await read(bytes)
  assert.equal(pages.lengthBytes, bytes.length)
  const { id, sequence, checksum } = position
  assert.equal(sequence, 3)
  assert.ok(id > 0 && id < 2 ** 48 && checksum > 0)
  assert.deepEqual(found, {
    format: 4,
    trailerAt: database.length,
    complete: false,
    sha: bytes.toString('hex', bytes.length - 32),
  })
})

test('snapshot: what is copied from it is what was verified', async () => {
  const bytes = await largeSnapshot()
  const directory = await directoryOf(new Map([['plants.sqlite', bytes]]))
  const target = `${await temporaryDirectory()}/export.db`
  for (const page of [5, 9]) {
    let reads = 0
    const files = filesWith((file) => ({
      readNow(into, at) {
        const length = file.readNow(into, at)
        const flipped = page * 4096 + 100 - at
        // The first time, all of the file is verified.
        if (flipped >= 0 && flipped < length && ++reads > 1)
          into[flipped] = (into[flipped] ?? 0) ^ 1
        return length
      },
    }))
    const message = /^plants.sqlite is not as it was when it was verified: the disk fails, or some/
    await assert.rejects(exportToFile(directory, target, files), { message })
    assert.equal(reads, 2)
  }
  assert.equal(await exportToFile(directory, target), 1)
})

test('snapshot: a disk that reads less at a time, or fails, is not taken for damage', async () => {
  const directory = await directoryOf(new Map([['plants.sqlite', await largeSnapshot()]]))
  const slow = filesWith((file) => ({
    readNow: (into, at) => file.readNow(into.subarray(0, 1000), at),
  }))
  const store = await openStore(directory, { files: slow })
  assert.equal((await list(store)).length, 1)
  await store.close()
  for (const failing of [1, 2, 3]) {
    let reads = 0
    const broken = filesWith((file) => ({
      readNow: (into, at) => (++reads < failing ? file.readNow(into, at) : assert.fail('EIO')),
    }))
    await assert.rejects(openStore(directory, { files: broken }), { message: 'EIO' })
    assert.ok(reads >= failing)
  }
})

/** The short form tries all bytes of the trailer, and some others. */
function places(t: TestContext, bytes: Buffer): readonly number[] {
  const { random } = seeded(t)
  const isTrailer = (at: number): boolean => at >= bytes.length - TRAILER_BYTES
  return [...bytes.keys()].filter((at) => THOROUGH || isTrailer(at) || random() < 0.01)
}

test('snapshot: any byte flipped is damage; the message says how to import it', async (t) => {
  withoutStacks(t)
  const bytes = await snapshot()
  const damage = corruptAt(FILE, bytes.length - TRAILER_BYTES, /run "plant-store import" on a copy/)
  let flips = 0
  for (const at of places(t, bytes)) {
    // Every byte in one way, or in all ways.
    for (const pattern of THOROUGH ? BIT_PATTERNS : [BIT_PATTERNS[flips % 5] ?? 1]) {
      const was = bytes[at] ?? 0
      bytes[at] = was ^ pattern
      flips += 1
      await assert.rejects(read(bytes), damage)
      bytes[at] = was
    }
  }
  await read(bytes)
  t.diagnostic(`${flips} flips`)
})

test('snapshot: cut at any byte it is damaged, and so it is with a byte more', async (t) => {
  withoutStacks(t)
  const bytes = await snapshot()
  for (const length of places(t, bytes))
    await assert.rejects(read(bytes.subarray(0, length)), StoreCorrupt)
  await assert.rejects(read(Buffer.concat([bytes, Buffer.alloc(1)])), StoreCorrupt)
})

test('snapshot: another version is named', async () => {
  const database = (await snapshot()).subarray(0, -TRAILER_BYTES)
  const version = /it has version 5, and this .* reads versions 1, 2, 3, 4; use the release that w/
  const damage = corruptAt(FILE, database.length + 16, version)
  await assert.rejects(read(sealed(database, 5, 3n)), damage)
})
