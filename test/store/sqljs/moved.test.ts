import assert from 'node:assert/strict'
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, symlinkSync } from 'node:fs'
import { writeFileSync } from 'node:fs'
import { type TestContext, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { NewPlant } from '../../../dist/plants/plant.js'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { type Compact, compact as makeSnapshot } from '../../../dist/store/sqljs/compaction.js'
import { compactInWorker } from '../../../dist/store/sqljs/compaction-thread.js'
import { type File, type Files, nodeFiles } from '../../../dist/store/sqljs/disk/files.js'
import { DirectoryLocked, lockDirectory } from '../../../dist/store/sqljs/disk/lock.js'
import type { SqljsStoreOptions } from '../../../dist/store/sqljs/sqljs-store.js'
import { temporaryDirectory } from '../../support/directories.ts'
import { gate, stopClock, until } from '../../support/time.ts'
import { plant, shown } from '../../contract/store.contract.ts'
import { filesWith, holds, list, type LogLine, notNow, openStore, plantsTo } from './fixtures.ts'

/** Makes the path of a running store lead to another directory, or takes its lock away. */
type Move = (path: string) => void

const MOVES = {
  'a removed lock': (path) => rmSync(`${path}/lock-1`),
  'a renamed directory': (path) => {
    renameSync(path, `${path}.old`)
    mkdirSync(path)
  },
  'a changed link': (path) => {
    rmSync(path)
    mkdirSync(`${path}.new`)
    symlinkSync(`${path}.new`, path)
  },
} satisfies Readonly<Record<string, Move>>

const NOT_HELD = /lock-1 is not the lock of this process/

/**
 * The store of the first directory, with what it logged, and the store of the directory that the
 * path leads to now.
 */
async function moved(
  t: TestContext,
  move: Move,
  options: Partial<SqljsStoreOptions> = {},
  ...plants: readonly NewPlant[]
) {
  const path = `${await temporaryDirectory()}/data`
  mkdirSync(`${path}.first`)
  if (move === MOVES['a changed link']) symlinkSync(`${path}.first`, path)
  const lines: LogLine[] = []
  const common = { lock: lockDirectory, compact: compactInWorker }
  const first = await openStore(path, { ...common, ...options }, lines)
  t.after(() => first.close())
  for (const each of plants) await first.create('alice', each)
  move(path)
  const second = await openStore(path, common)
  t.after(() => second.close())
  return { first, lines, second, path }
}

/** The files of plants, and what they hold. */
function contentsOf(path: string): readonly (readonly [name: string, text: string])[] {
  const names = readdirSync(path).filter((name) => !name.startsWith('lock-'))
  return names.toSorted().map((name) => [name, readFileSync(`${path}/${name}`, 'latin1')])
}

for (const [what, move] of Object.entries(MOVES)) {
  test(`moved: ${what}: a stop leaves the files of the other store`, async (t) => {
    const { first, second, path } = await moved(t, move)
    await second.create('alice', plant(1n))
    const before = contentsOf(path)
    await first.close()
    assert.deepEqual(contentsOf(path), before)
    await assert.rejects(lockDirectory(path), DirectoryLocked)
    await second.create('alice', plant(2n))
    await second.close()
    await holds(path, plantsTo(2n).map(shown))
  })

  test(`moved: ${what}: after a second, creates are refused`, async (t) => {
    const clock = stopClock(t)
    const { first, second, path } = await moved(t, move)
    const before = contentsOf(path)
    clock.pass(1000)
    for (const id of [1n, 2n])
      await assert.rejects(first.create('alice', plant(id, 'Fern')), StoreUnavailable)
    assert.match(first.unavailableReason() ?? '', NOT_HELD)
    assert.deepEqual(await list(first), [])
    await first.close()
    assert.deepEqual(contentsOf(path), before)
    await second.create('alice', plant(1n, 'Oak'))
    await second.close()
    await holds(path, [{ name: 'Oak' }])
  })
}

for (const [what, change] of Object.entries({
  removed: (path) => rmSync(path),
  'replaced by an older copy': (path) => {
    // As rsync, tar and mv restore a file: the open one has no name any more.
    writeFileSync(`${path}.copy`, readFileSync(path).subarray(0, 80))
    renameSync(`${path}.copy`, path)
  },
} satisfies Readonly<Record<string, Move>>))
  test(`moved: the journal is ${what}: creates are refused, and a stop saves memory`, async (t) => {
    const clock = stopClock(t)
    const path = `${await temporaryDirectory()}/data`
    const store = await openStore(path, { lock: lockDirectory })
    t.after(() => store.close())
    await store.create('alice', plant(1n, 'Oak'))
    change(`${path}/journal-00000001.log`)
    clock.pass(1000)
    for (const id of [2n, 3n])
      await assert.rejects(store.create('alice', plant(id)), StoreUnavailable)
    assert.deepEqual(await list(store), [{ name: 'Oak' }])
    clock.restore()
    // Memory alone still has it.
    await store.close()
    await holds(path, [{ name: 'Oak' }])
  })

test('moved: a compaction leaves the files of the other store', async (t) => {
  const clock = stopClock(t)
  const [move, options] = [MOVES['a renamed directory'], { compactBytes: 1000 }]
  const { first, lines, second, path } = await moved(t, move, options, plant(1n))
  await second.create('alice', plant(1n, 'of the second'))
  const before = contentsOf(path)
  // The clock is stopped: the journal's own check does not come first.
  assert.equal(await first.create('alice', plant(2n, 'x'.repeat(3000))), 'stored')
  const isRefused = ({ level, fields }: LogLine): boolean =>
    level === 'error' && NOT_HELD.test(String(fields?.['error']))
  await until('the log says why', () => lines.some(isRefused))
  // At once: the store knows it.
  await assert.rejects(first.create('alice', plant(31n)), StoreUnavailable)
  assert.deepEqual(contentsOf(path), before)
  assert.equal((await list(first)).length, 2)
  clock.restore()
  await first.close()
  assert.deepEqual(contentsOf(path), before)
})

test('moved: once the lock is lost, only a restart helps, also if it comes back', async (t) => {
  const clock = stopClock(t)
  const path = `${await temporaryDirectory()}/data`
  const options = { lock: lockDirectory, retryMs: 1 }
  let compactions = 0
  const counted: Compact = (job) => {
    compactions++
    return notNow(job)
  }
  const store = await openStore(path, { ...options, compact: counted, compactBytes: 1 })
  t.after(() => store.close())
  await store.create('alice', plant(1n, 'Oak'))
  renameSync(`${path}/lock-1`, `${path}/moved`)
  clock.pass(1000)
  await assert.rejects(store.create('alice', plant(2n)), StoreUnavailable)
  const tried = compactions
  const other = await openStore(path, options)
  await other.create('alice', plant(3n, 'Ash'))
  renameSync(`${path}/moved`, `${path}/lock-1`)
  // Some retries.
  await sleep(50)
  await assert.rejects(store.create('alice', plant(4n)), StoreUnavailable)
  assert.match(store.unavailableReason() ?? '', NOT_HELD)
  await store.close()
  assert.equal(compactions, tried)
  await other.close()
  await holds(path, [{ name: 'Oak' }, { name: 'Ash' }])
})

test('moved: a start that finds no snapshot where it has seen one fails', async () => {
  const path = `${await temporaryDirectory()}/data`
  const first = await openStore(path)
  await first.create('alice', plant(1n, 'Oak'))
  await first.close()
  const before = contentsOf(path)
  const away = async <T>(use: () => Promise<T>): Promise<T> => {
    renameSync(path, `${path}.moved`)
    try {
      return await use()
    } finally {
      renameSync(`${path}.moved`, path)
    }
  }
  const open: Files['open'] = (name, mode) => away(() => nodeFiles.open(name, mode))
  await assert.rejects(openStore(path, { files: { ...nodeFiles, open } }), /ENOENT/)
  assert.deepEqual(contentsOf(path), before)
  await holds(path, [{ name: 'Oak' }])
})

/** Files that move the path away when the journal is opened for the `nth` time. */
function movingFiles(path: string, nth: number, failures: number): Files {
  let opened = 0
  return filesWith((file, mode) => {
    if (mode !== 'durable') return {}
    if (++opened === nth) renameSync(path, `${path}.moved`)
    const write: File['write'] = (bytes, at) =>
      failures-- > 0 ? Promise.reject(new Error('EIO')) : file.write(bytes, at)
    return { write }
  })
}

for (const [when, nth, failures] of [
  ['a start opens the journal', 1, 0],
  ['the journal is rewritten', 2, 1],
] as const)
  test(`moved: a path that changes while ${when} gets no create`, async (t) => {
    const path = `${await temporaryDirectory()}/data`
    const options = { lock: lockDirectory, retryMs: 1 }
    const store = await openStore(path, { ...options, files: movingFiles(path, nth, failures) })
    t.after(() => store.close())
    if (failures > 0) {
      await assert.rejects(store.create('alice', plant(1n)), StoreUnavailable)
      await until('the journal is rewritten', () => store.unavailableReason() === undefined)
    }
    await assert.rejects(store.create('alice', plant(2n)), StoreUnavailable)
    assert.match(store.unavailableReason() ?? '', NOT_HELD)
    await store.close()
    await holds(`${path}.moved`, [])
  })

test('moved: a compaction that is under way puts nothing in place', async (t) => {
  const path = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  const compact: Compact = async (job) => {
    const compacted = await makeSnapshot(nodeFiles, job)
    renameSync(path, `${path}.old`)
    mkdirSync(path)
    return compacted
  }
  const first = await openStore(path, { lock: lockDirectory, compact, compactBytes: 1 }, lines)
  t.after(() => first.close())
  const snapshot = readFileSync(`${path}/plants.sqlite`)
  await first.create('alice', plant(1n, 'Fern'))
  await until('the log says why', () =>
    lines.some(({ fields }) => NOT_HELD.test(String(fields?.['error']))),
  )
  await first.close()
  assert.deepEqual(readdirSync(path), [])
  assert.deepEqual(readFileSync(`${path}.old/plants.sqlite`), snapshot)
  await holds(`${path}.old`, [{ name: 'Fern' }])
})

test('moved: a compaction that is under way touches no file of the next store', async (t) => {
  const path = `${await temporaryDirectory()}/data`
  const [isAsked, isMoved, isMade] = [gate(), gate(), gate()]
  const first = await openStore(path, {
    lock: lockDirectory,
    compactBytes: 1,
    async compact(job) {
      isAsked.open()
      await isMoved.opened
      // As its thread does that has checked the lock before: it works by path.
      const late = makeSnapshot(nodeFiles, { ...job, lock: undefined })
      return late.finally(isMade.open)
    },
  })
  t.after(() => first.close())
  await first.create('alice', plant(1n, 'of the first'))
  await isAsked.opened
  renameSync(path, `${path}.old`)
  mkdirSync(path)
  const second = await openStore(path, {
    lock: lockDirectory,
    compactBytes: 1,
    async compact(job) {
      const made = await makeSnapshot(nodeFiles, job)
      // Both are for its first compaction.
      isMoved.open()
      await isMade.opened
      return made
    },
  })
  t.after(() => second.close())
  for (const id of [1n, 2n, 3n]) await second.create('alice', plant(id, `of the second, ${id}`))
  await second.close()
  const names = [1, 2, 3].map((id) => ({ name: `of the second, ${id}` }))
  await holds(path, names)
})
