import assert from 'node:assert/strict'
import { link, readdir, readFile, readlink, stat, writeFile } from 'node:fs/promises'
import { test } from 'node:test'
import { compact } from '../../../dist/store/sqljs/compaction.js'
import { blockingFiles, type Files, freeInPieces } from '../../../dist/store/sqljs/files.js'
import { nodeFiles } from '../../../dist/store/sqljs/files.js'
import { plant } from '../../contract/store.contract.ts'
import { systemError } from '../../faults/simulated-disk.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { list, openStore } from './fixtures.ts'

const PIECE_BYTES = 1000
const FILE_BYTES = 4500
const KINDS = { nodeFiles, blockingFiles }

/** Real files, freed in small pieces. Notes each call that frees them; one of them can fail. */
function noting(files: Files, calls: string[], failing = ''): Files {
  const note = (call: string): void => {
    calls.push(call)
    if (call.split(' ')[0] === failing) throw systemError('EIO', call)
  }
  return {
    ...files,
    freedBytes: PIECE_BYTES,
    async open(path, mode) {
      note('open')
      const file = await files.open(path, mode)
      return {
        ...file,
        sync: async () => (note('sync'), file.sync()),
        truncate: async (lengthBytes) => (
          note(`truncate ${lengthBytes}`),
          file.truncate(lengthBytes)
        ),
        unlinkedBytes: async () => (note('unlinkedBytes'), file.unlinkedBytes()),
        close: async () => {
          await file.close()
          note('close')
        },
      }
    },
    remove: async (path) => (note('remove'), files.remove(path)),
  }
}

async function largeFile(): Promise<string> {
  const path = `${await temporaryDirectory()}/large`
  await writeFile(path, Buffer.alloc(FILE_BYTES, 'x'))
  return path
}

for (const [kind, files] of Object.entries(KINDS)) {
  test(`${kind}: a file without a name is freed in pieces, at least one at the end`, async () => {
    const path = await largeFile()
    const calls: string[] = []
    const noted = noting(files, calls)
    await freeInPieces(noted, path, () => noted.remove(path))
    const pieces = ['truncate 3500', 'sync', 'truncate 2500', 'sync', 'truncate 1500', 'sync']
    assert.deepEqual(calls, ['open', 'remove', 'unlinkedBytes', ...pieces, 'close'])
    await assert.rejects(stat(path), { code: 'ENOENT' })
  })

  test(`${kind}: a file that has another name keeps every byte`, async () => {
    const path = await largeFile()
    await link(path, `${path}-too`)
    const calls: string[] = []
    const noted = noting(files, calls)
    await freeInPieces(noted, path, () => noted.remove(path))
    assert.deepEqual(calls, ['open', 'remove', 'unlinkedBytes', 'close'])
    assert.equal(await readFile(`${path}-too`, 'utf8'), 'x'.repeat(FILE_BYTES))
  })
}

test('a file is removed, too, if it cannot be freed in pieces', async () => {
  for (const failing of ['open', 'unlinkedBytes', 'truncate', 'sync', 'close']) {
    const path = await largeFile()
    const calls: string[] = []
    const files = noting(nodeFiles, calls, failing)
    await freeInPieces(files, path, () => files.remove(path))
    assert.ok(calls.some((call) => call.startsWith(failing)))
    await assert.rejects(stat(path), { code: 'ENOENT' }, failing)
    assert.deepEqual(await deletedAndOpen(path), [], failing)
  }
})

test('a file that keeps its name keeps every byte', async () => {
  const path = await largeFile()
  const calls: string[] = []
  const files = noting(nodeFiles, calls, 'remove')
  await assert.rejects(
    freeInPieces(files, path, () => files.remove(path)),
    { code: 'EIO' },
  )
  assert.deepEqual(calls, ['open', 'remove', 'close'])
  assert.equal((await stat(path)).size, FILE_BYTES)
})

test('a compaction frees the old snapshot and journal in pieces, but no hard link', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const calls: string[] = []
  const files = noting(nodeFiles, calls)
  const options = { files, compact: compact.bind(undefined, files), compactBytes: 2 ** 20 }
  const name = 'n'.repeat(20_000)
  const first = await openStore(directory, options)
  await first.create('alice', plant(1n, name))
  await first.close()
  assert.equal(calls.filter((call) => call.startsWith('truncate')).length, 19, 'the journal')

  const snapshot = `${directory}/plants.sqlite`
  const before = await readFile(snapshot)
  await link(snapshot, `${directory}/copy`)
  const second = await openStore(directory, options)
  await second.create('alice', plant(2n))
  await second.close()
  assert.deepEqual(await readFile(`${directory}/copy`), before)

  calls.length = 0
  const third = await openStore(directory, options)
  await third.create('alice', plant(3n))
  await third.close()
  const pieces = Math.floor(before.length / PIECE_BYTES) - 1
  assert.equal(calls.filter((call) => call.startsWith('truncate')).length, pieces, 'the snapshot')
  assert.deepEqual(await deletedAndOpen(directory), [])

  const last = await openStore(directory, options)
  assert.equal((await list(last)).length, 3)
  await last.close()
})

/** Files under a path that have no name any more, and that this process holds. Linux only. */
async function deletedAndOpen(path: string): Promise<readonly string[]> {
  if (process.platform !== 'linux') return []
  const found: string[] = []
  for (const descriptor of await readdir('/proc/self/fd')) {
    const target = await readlink(`/proc/self/fd/${descriptor}`).catch(() => '')
    if (target.startsWith(path) && target.endsWith(' (deleted)')) found.push(target)
  }
  return found
}
