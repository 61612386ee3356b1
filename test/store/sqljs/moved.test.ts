import assert from 'node:assert/strict'
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, symlinkSync } from 'node:fs'
import { type TestContext, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import type { Compact } from '../../../dist/store/sqljs/compaction.js'
import { type Files, nodeFiles } from '../../../dist/store/sqljs/files.js'
import { compactFiles } from '../../../dist/store/sqljs/settings.js'
import { lockDirectory, LockLost } from '../../../dist/store/sqljs/lock.js'
import type { SqljsStore } from '../../../dist/store/sqljs/store.js'
import { temporaryDirectory } from '../../support/directories.ts'
import { until } from '../../support/time.ts'
import { firstSnapshotOnly, list, type LogLine, openStore } from './fixtures.ts'

/** Makes the path of a running store lead to another directory, or takes its lock away. */
type Move = (path: string) => void

const MOVES: Readonly<Record<string, Move>> = {
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
}

const NOT_HELD = /lock-1 is not the lock of this process/
const LONGER_THAN_A_CHECK_MS = 1100

interface Moved {
  /** The store of the first directory, with what it logged. */
  readonly first: SqljsStore
  readonly lines: readonly LogLine[]
  /** The store of the directory that the path leads to now. */
  readonly second: SqljsStore
  readonly path: string
}

async function moved(t: TestContext, move: Move, compactBytes: number): Promise<Moved> {
  const path = `${await temporaryDirectory()}/data`
  mkdirSync(`${path}.first`)
  if (move === MOVES['a changed link']) symlinkSync(`${path}.first`, path)
  const lines: LogLine[] = []
  const options = { lock: lockDirectory, compact: compactFiles }
  const first = await openStore(path, { ...options, compactBytes }, lines)
  t.after(() => first.close())
  move(path)
  const second = await openStore(path, options)
  t.after(() => second.close())
  return { first, lines, second, path }
}

function namesOf(plants: readonly { readonly name: string }[]): readonly string[] {
  return plants.map(({ name }) => name)
}

/** The files of plants, and what they hold. */
function contentsOf(path: string): readonly (readonly [name: string, text: string])[] {
  const names = readdirSync(path).filter((name) => !name.startsWith('lock-'))
  return names.toSorted().map((name) => [name, readFileSync(`${path}/${name}`, 'latin1')])
}

for (const [what, move] of Object.entries(MOVES)) {
  test(`moved: ${what}: a stop leaves the files of the other store`, async (t) => {
    const { first, second, path } = await moved(t, move, 1e9)
    for (const id of [1n, 2n, 3n]) await second.create('alice', { id, name: `p${id}` })
    const before = contentsOf(path)
    await first.close()
    assert.deepEqual(contentsOf(path), before)
    await assert.rejects(lockDirectory(path), /is in use by process/)
    await second.create('alice', { id: 4n, name: 'p4' })
    await second.close()
    const again = await openStore(path)
    t.after(() => again.close())
    assert.deepEqual(namesOf(await list(again)), ['p1', 'p2', 'p3', 'p4'])
  })

  test(`moved: ${what}: a compaction leaves the files of the other store`, async (t) => {
    const { first, lines, second, path } = await moved(t, move, 1000)
    await second.create('alice', { id: 1n, name: 'of the second' })
    const before = contentsOf(path)
    let created = 0
    for (let id = 1n; id <= 30n; id++) {
      // On a slow machine the journal's own check may come first.
      const refusal = (error: unknown): void => assert.match(String(error), NOT_HELD)
      await first.create('alice', { id, name: 'x'.repeat(100) }).then(() => created++, refusal)
    }
    const refused = (): boolean =>
      lines.some(
        ({ level, fields }) => level === 'error' && NOT_HELD.test(String(fields?.['error'])),
      )
    await until('the log says why', refused)
    // At once: the store knows it.
    await assert.rejects(first.create('alice', { id: 31n, name: 'Fern' }), StoreUnavailable)
    assert.deepEqual(contentsOf(path), before)
    assert.equal((await list(first)).length, created)
    await first.close()
    assert.deepEqual(contentsOf(path), before)
  })
}

for (const [what, move] of Object.entries(MOVES)) {
  test(`moved: ${what}: after a second, creates are refused`, async (t) => {
    const { first, second, path } = await moved(t, move, 1e9)
    const before = contentsOf(path)
    await sleep(LONGER_THAN_A_CHECK_MS)
    for (const id of [1n, 2n])
      await assert.rejects(first.create('alice', { id, name: 'Fern' }), StoreUnavailable)
    assert.match(first.unavailableReason() ?? '', NOT_HELD)
    assert.deepEqual(await list(first), [])
    await first.close()
    assert.deepEqual(contentsOf(path), before)
    await second.create('alice', { id: 1n, name: 'Oak' })
    await second.close()
    const again = await openStore(path)
    t.after(() => again.close())
    assert.deepEqual(namesOf(await list(again)), ['Oak'])
  })
}

test('moved: once the lock is lost, only a restart helps, also if it comes back', async (t) => {
  const path = `${await temporaryDirectory()}/data`
  const options = { lock: lockDirectory, retryMs: { write: 1, compaction: 1 } }
  let compactions = 0
  const compact: Compact = (job) => {
    compactions++
    return firstSnapshotOnly(job)
  }
  const store = await openStore(path, { ...options, compact, compactBytes: 1 })
  t.after(() => store.close())
  await store.create('alice', { id: 1n, name: 'Oak' })
  renameSync(`${path}/lock-1`, `${path}/moved`)
  await sleep(LONGER_THAN_A_CHECK_MS)
  const tried = compactions
  await assert.rejects(store.create('alice', { id: 2n, name: 'Elm' }), StoreUnavailable)
  const other = await openStore(path, options)
  await other.create('alice', { id: 3n, name: 'Ash' })
  renameSync(`${path}/moved`, `${path}/lock-1`)
  // Some retries.
  await sleep(50)
  await assert.rejects(store.create('alice', { id: 4n, name: 'Yew' }), StoreUnavailable)
  assert.match(store.unavailableReason() ?? '', NOT_HELD)
  await store.close()
  assert.equal(compactions, tried)
  await other.close()
  const again = await openStore(path)
  t.after(() => again.close())
  assert.deepEqual(namesOf(await list(again)), ['Oak', 'Ash'])
})

test('moved: a start that finds no snapshot where it has seen one fails', async (t) => {
  const path = `${await temporaryDirectory()}/data`
  const first = await openStore(path)
  await first.create('alice', { id: 1n, name: 'Oak' })
  await first.close()
  const before = contentsOf(path)
  assert.deepEqual(
    before.map(([name]) => name),
    ['journal-00000002.log', 'plants.sqlite'],
  )
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
  const again = await openStore(path)
  t.after(() => again.close())
  assert.deepEqual(namesOf(await list(again)), ['Oak'])
})

/** Files that move the path away when the journal is opened for the `nth` time. */
function movingFiles(path: string, nth: number): Files {
  let opened = 0
  return {
    ...nodeFiles,
    async open(name, mode) {
      const file = await nodeFiles.open(name, mode)
      if (mode === 'durable' && ++opened === nth) renameSync(path, `${path}.moved`)
      return file
    },
  }
}

test('moved: a path that changes while a start opens the journal: the start fails', async (t) => {
  const path = `${await temporaryDirectory()}/data`
  const files = movingFiles(path, 1)
  await assert.rejects(openStore(path, { lock: lockDirectory, files }), LockLost)
  const again = await openStore(`${path}.moved`)
  t.after(() => again.close())
  assert.deepEqual(await list(again), [])
})

test('moved: a path that changes while the journal is rewritten gets no create', async (t) => {
  const path = `${await temporaryDirectory()}/data`
  const moving = movingFiles(path, 2)
  let failures = 1
  const open: Files['open'] = async (name, mode) => {
    const file = await moving.open(name, mode)
    const write: typeof file.write = (bytes, at) =>
      mode === 'durable' && failures-- > 0
        ? Promise.reject(new Error('EIO'))
        : file.write(bytes, at)
    return { ...file, write }
  }
  const options = { lock: lockDirectory, retryMs: { write: 1, compaction: 1 } }
  const store = await openStore(path, { ...options, files: { ...moving, open } })
  t.after(() => store.close())
  await assert.rejects(store.create('alice', { id: 1n, name: 'Oak' }), StoreUnavailable)
  await until('the journal is rewritten', () => store.unavailableReason() === undefined)
  await assert.rejects(store.create('alice', { id: 2n, name: 'Elm' }), StoreUnavailable)
  await store.close()
  const again = await openStore(`${path}.moved`)
  t.after(() => again.close())
  assert.deepEqual(await list(again), [])
})

test('moved: a compaction that is under way puts nothing in place', async (t) => {
  const path = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  const compact: Compact = async (job, signal) => {
    const compacted = await compactFiles(job, signal)
    if (job.sequence === 0) return compacted
    renameSync(path, `${path}.old`)
    mkdirSync(path)
    return compacted
  }
  const first = await openStore(path, { lock: lockDirectory, compact, compactBytes: 1 }, lines)
  t.after(() => first.close())
  const snapshot = readFileSync(`${path}/plants.sqlite`)
  await first.create('alice', { id: 1n, name: 'Fern' })
  await until('the log says why', () =>
    lines.some(({ fields }) => NOT_HELD.test(String(fields?.['error']))),
  )
  await first.close()
  assert.deepEqual(readdirSync(path), [])
  assert.deepEqual(readFileSync(`${path}.old/plants.sqlite`), snapshot)
  const again = await openStore(`${path}.old`)
  t.after(() => again.close())
  assert.deepEqual(namesOf(await list(again)), ['Fern'])
})
