import assert from 'node:assert/strict'
import { mkdirSync, readFileSync, readdirSync, renameSync, writeFileSync } from 'node:fs'
import { test } from 'node:test'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { compact } from '../../../dist/store/sqljs/compaction.js'
import { type Files, nodeFiles } from '../../../dist/store/sqljs/files.js'
import { lockDirectory } from '../../../dist/store/sqljs/lock.js'
import type { SqljsStore } from '../../../dist/store/sqljs/store.js'
import { plant } from '../../contract/store.contract.ts'
import { temporaryDirectory } from '../../support/directories.ts'
import { until } from '../../support/time.ts'
import { directoryOf, killedAfter, list, type LogLine, openStore } from './fixtures.ts'

const LINUX = process.platform === 'linux'
const skip = LINUX ? false : 'only Linux has paths that begin with an open directory'

/** Real files, with something around each call of them. */
function filesWith(around: <T>(path: string, call: () => Promise<T>) => Promise<T>): Files {
  return {
    makeDirectory: (path) => around(path, () => nodeFiles.makeDirectory(path)),
    list: (path) => around(path, () => nodeFiles.list(path)),
    read: (path) => around(path, () => nodeFiles.read(path)),
    readStart: (path, length) => around(path, () => nodeFiles.readStart(path, length)),
    rename: (from, to) => around(to, () => nodeFiles.rename(from, to)),
    remove: (path) => around(path, () => nodeFiles.remove(path)),
    syncDirectory: (path) => around(path, () => nodeFiles.syncDirectory(path)),
    open: (path, mode) =>
      around(path, async () => {
        const file = await nodeFiles.open(path, mode)
        return {
          ...file,
          write: (bytes, at) => around(path, () => file.write(bytes, at)),
          sync: () => around(path, () => file.sync()),
          truncate: (length) => around(path, () => file.truncate(length)),
          close: () => around(path, () => file.close()),
        }
      }),
  }
}

/** Another store's directory, in which each name is taken that a store may use. */
async function othersDirectory(): Promise<string> {
  const path = `${await temporaryDirectory()}/other`
  mkdirSync(path)
  const names = ['plants.sqlite', ...[1, 2, 3, 4, 5].map((n) => `journal-0000000${n}.log`)]
  for (const name of names)
    for (const ending of ['', '.tmp']) writeFileSync(`${path}/${name}${ending}`, `other ${name}`)
  return path
}

function contentsOf(path: string): readonly (readonly [name: string, text: string])[] {
  const names = readdirSync(path).toSorted()
  const files = names.filter((name) => !name.startsWith('lock-'))
  return files.map((name) => [name, readFileSync(`${path}/${name}`, 'latin1')])
}

/** Opens a store, writes, has the journal rewritten and compacted, and closes. */
async function life(path: string, files: Files, lines: LogLine[]): Promise<readonly bigint[]> {
  const acknowledged: bigint[] = []
  const create = async (store: SqljsStore, id: bigint): Promise<void> => {
    try {
      await store.create('alice', plant(id))
      acknowledged.push(id)
    } catch (error) {
      assert.ok(error instanceof StoreUnavailable, String(error))
    }
  }
  let writes = 0
  const failing: Files = {
    ...files,
    async open(name, mode) {
      const file = await files.open(name, mode)
      if (mode !== 'durable') return file
      // The second line of the journal is in doubt, so the journal is rewritten.
      const write: typeof file.write = (bytes, at) =>
        ++writes === 2 ? Promise.reject(new Error('EIO')) : file.write(bytes, at)
      return { ...file, write }
    },
  }
  const options = {
    lock: lockDirectory,
    files: failing,
    compact: (job: Parameters<typeof compact>[1]) => compact(files, job),
    compactBytes: 300,
    retryMs: { write: 1, compaction: 1 },
  }
  const store = await openStore(path, options, lines)
  for (const id of [11n, 12n, 13n, 14n]) {
    await create(store, id)
    await until('the journal is rewritten, or never will be', () => {
      const reason = store.unavailableReason()
      return reason === undefined || reason.includes('not the lock')
    })
  }
  const done = /^(compacted|the journals could not|plants cannot)/
  await until('a compaction ends', () => lines.some(({ message }) => done.test(message)))
  await store.close()
  return acknowledged
}

for (const stays of [true, false]) {
  const how = stays ? 'for good' : 'and back after it'
  test(`moved: before any call, ${how}: leads nowhere else, loses nothing`, { skip }, async (t) => {
    const left = await killedAfter([plant(1n), plant(2n)])
    const other = await othersDirectory()
    const holder = await lockDirectory(other)
    t.after(() => holder.release())
    const before = contentsOf(other)
    let hasMoved = true
    let moves = 0
    for (; hasMoved; moves++) {
      const path = await directoryOf(left)
      const parents = [path, path.slice(0, path.lastIndexOf('/'))]
      let isAway = false
      const swap = (): void => {
        renameSync(isAway ? path : other, `${path}.next`)
        renameSync(isAway ? `${path}.away` : path, isAway ? path : `${path}.away`)
        renameSync(`${path}.next`, isAway ? other : path)
        isAway = !isAway
      }
      let calls = 0
      const files = filesWith(async (at, call) => {
        // Without a swap, only what makes the directory, and makes its name durable, names it.
        assert.ok(/^\/proc\/self\/fd\/\d+(\/|$)/.test(at) || parents.some((p) => p.startsWith(at)))
        if (calls++ !== moves) return call()
        swap()
        try {
          return await call()
        } finally {
          if (!stays) swap()
        }
      })
      const acknowledged = await life(path, files, []).catch((error: unknown) => {
        assert.ok(stays || calls <= 2, String(error))
        return []
      })
      hasMoved = calls > moves
      if (isAway) swap()
      assert.deepEqual(contentsOf(other), before, `call ${moves}`)
      const again = await openStore(path)
      const names = (await list(again)).map(({ name }) => name)
      for (const id of [1n, 2n, ...acknowledged])
        assert.ok(names.includes(plant(id).name), `call ${moves}: plant ${id}`)
      await again.close()
    }
    t.diagnostic(`${moves} calls`)
    assert.ok(moves > 30)
  })
}
