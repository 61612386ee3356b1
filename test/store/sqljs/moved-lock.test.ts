import assert from 'node:assert/strict'
import { mkdirSync, readdirSync, renameSync, writeFileSync } from 'node:fs'
import fs from 'node:fs/promises'
import { syncBuiltinESMExports } from 'node:module'
import { test } from 'node:test'
import { DirectoryLocked, lockDirectory, LockLost } from '../../../dist/store/sqljs/lock.js'
import { temporaryDirectory } from '../../support/directories.ts'

/** A lock lists the directory to find the highest, again after it asked, then for its own. */
for (const listing of [1, 2, 3]) {
  test(`moved: after listing ${listing} of a lock: the other holder keeps its own`, async (t) => {
    const root = await temporaryDirectory()
    const [path, live] = [`${root}/data`, `${root}/live`]
    for (const directory of [path, live]) mkdirSync(directory)
    writeFileSync(`${path}/lock-3`, '')
    const holder = await lockDirectory(live)
    t.after(() => holder.release())
    const { readdir } = fs
    let listings = 0
    const moving = async (directory: string): Promise<string[]> => {
      const names = await readdir(directory)
      if (++listings === listing) {
        renameSync(path, `${root}/away`)
        renameSync(live, path)
      }
      return names
    }
    // The lock calls no other form.
    fs.readdir = moving as typeof readdir
    syncBuiltinESMExports()
    try {
      await assert.rejects(lockDirectory(path), LockLost)
    } finally {
      fs.readdir = readdir
      syncBuiltinESMExports()
    }
    assert.deepEqual(readdirSync(path), ['lock-1'])
    await assert.rejects(lockDirectory(path), DirectoryLocked)
  })
}

test('moved: while a lock is released: another holder keeps its own', async (t) => {
  const root = await temporaryDirectory()
  const [path, live] = [`${root}/data`, `${root}/live`]
  for (const directory of [path, live]) mkdirSync(directory)
  const lock = await lockDirectory(path)
  const holder = await lockDirectory(live)
  t.after(() => holder.release())
  const { writeFile } = fs
  fs.writeFile = async (...given: Parameters<typeof writeFile>) => {
    renameSync(path, `${root}/away`)
    renameSync(live, path)
    return writeFile(...given)
  }
  syncBuiltinESMExports()
  try {
    await lock.release()
  } finally {
    fs.writeFile = writeFile
    syncBuiltinESMExports()
  }
  assert.deepEqual(readdirSync(path), ['lock-1'])
  await assert.rejects(lockDirectory(path), DirectoryLocked)
  const again = await lockDirectory(`${root}/away`)
  await again.release()
})
