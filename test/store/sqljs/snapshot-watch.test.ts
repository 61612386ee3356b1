import assert from 'node:assert/strict'
import { copyFileSync, readFileSync, renameSync, rmSync, statSync } from 'node:fs'
import { truncateSync, utimesSync, writeFileSync } from 'node:fs'
import { test, type TestContext } from 'node:test'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { type Files, nodeFiles } from '../../../dist/store/sqljs/disk/files.js'
import { checkDirectory } from '../../../dist/store/sqljs/inspect.js'
import { lockDirectory } from '../../../dist/store/sqljs/disk/lock.js'
import type { SqljsStoreOptions } from '../../../dist/store/sqljs/sqljs-store.js'
import { plant, shown } from '../../contract/store.contract.ts'
import { temporaryDirectory } from '../../support/directories.ts'
import { sampled } from '../../support/scale.ts'
import { stopClock, until } from '../../support/time.ts'
import { holds, list, type LogLine, openStore, plantsTo, untilCompacted } from './fixtures.ts'

const CHANGED = /plants\.sqlite was changed by another program: .*restart the service$/

/** A store with a plant in its snapshot and one in its journal, and a clock that is stopped. */
async function served(t: TestContext, options: Partial<SqljsStoreOptions> = {}) {
  const path = `${await temporaryDirectory()}/data`
  const all = { lock: lockDirectory, ...options }
  const first = await openStore(path, all)
  await first.create('alice', plant(1n))
  await first.close()
  const clock = stopClock(t)
  const lines: LogLine[] = []
  const store = await openStore(path, all, lines)
  t.after(() => store.close())
  assert.equal(await store.create('alice', plant(2n)), 'stored')
  return { path, snapshot: `${path}/plants.sqlite`, store, clock, lines }
}

/** What other programs do to the snapshot. */
const CHANGES: Readonly<Record<string, (snapshot: string) => void>> = {
  // The first bytes that `PRAGMA journal_mode=wal` writes.
  'set to WAL in its place': (snapshot) => {
    const bytes = readFileSync(snapshot)
    writeFileSync(snapshot, bytes.fill(2, 18, 20))
  },
  'replaced by an edited copy': (snapshot) => {
    writeFileSync(`${snapshot}-new`, readFileSync(snapshot).fill(7, 5000, 5001))
    renameSync(`${snapshot}-new`, snapshot)
  },
  'cut off': (snapshot) => truncateSync(snapshot, 4096),
  removed: (snapshot) => rmSync(snapshot),
}

for (const [what, change] of Object.entries(CHANGES)) {
  test(`snapshot watch: ${what}: creates stop, lists go on, a stop saves memory`, async (t) => {
    const { path, snapshot, store, clock, lines } = await served(t)
    change(snapshot)
    clock.pass(1000)
    for (const id of [2n, 3n])
      await assert.rejects(store.create('alice', plant(id)), StoreUnavailable)
    assert.match(store.unavailableReason() ?? '', CHANGED)
    assert.deepEqual(await list(store), plantsTo(2n).map(shown))
    const told = lines.filter(({ level }) => level === 'error')
    assert.equal(told.length, 1)
    assert.match(String(told[0]?.fields?.['error']), CHANGED)
    clock.restore()
    await store.close()
    assert.match(await checkDirectory(path), /is sound: 2 plants in a snapshot and 0 journals/)
    await holds(path, plantsTo(2n).map(shown))
  })
}

for (const [what, change] of sampled(Object.entries(CHANGES), 2)) {
  test(`snapshot watch: ${what}: a stop alone notices it, and readiness does`, async (t) => {
    const stopped = await served(t)
    change(stopped.snapshot)
    await stopped.store.close()
    await holds(stopped.path, plantsTo(2n).map(shown))
    const { snapshot, store, clock } = await served(t)
    change(snapshot)
    clock.pass(1000)
    await until('readiness tells', () => CHANGED.test(store.unavailableReason() ?? ''))
  })

  test(`snapshot watch: ${what}: no compaction runs, and none removes a journal`, async (t) => {
    const options = { compactBytes: 3000, retryMs: 1 }
    const { path, snapshot, store, clock } = await served(t, options)
    change(snapshot)
    // Within the second the create is stored, and a compaction is due.
    assert.equal(await store.create('alice', plant(3n, 'x'.repeat(5000))), 'stored')
    await until('it is noticed', () => CHANGED.test(store.unavailableReason() ?? ''))
    clock.restore()
    await store.close()
    await holds(path, [...plantsTo(2n).map(shown), { name: 'x'.repeat(5000) }])
  })
}

for (const [what, keep] of Object.entries({
  'new times': (snapshot) => utimesSync(snapshot, 1, 1),
  'a new inode': (snapshot) => {
    copyFileSync(snapshot, `${snapshot}-copy`)
    renameSync(`${snapshot}-copy`, snapshot)
  },
} satisfies Readonly<Record<string, (snapshot: string) => void>>))
  test(`snapshot watch: ${what} with the same bytes are no change`, async (t) => {
    const { path, snapshot, store, clock } = await served(t)
    keep(snapshot)
    clock.pass(1000)
    assert.equal(await store.create('alice', plant(3n)), 'stored')
    assert.equal(store.unavailableReason(), undefined)
    clock.restore()
    await store.close()
    await holds(path, plantsTo(3n).map(shown))
  })

test('snapshot watch: once its bytes are back, creates go on', async (t) => {
  const { snapshot, store, clock, lines } = await served(t)
  const bytes = readFileSync(snapshot)
  writeFileSync(snapshot, 'other')
  clock.pass(1000)
  await assert.rejects(store.create('alice', plant(3n)), StoreUnavailable)
  writeFileSync(snapshot, bytes)
  await until('creates go on', () => store.unavailableReason() === undefined)
  assert.equal(await store.create('alice', plant(3n)), 'stored')
  assert.equal(lines.at(-1)?.message, 'plants can be written again')
})

test('snapshot watch: a file that replaces its own at the rename is noticed', async (t) => {
  let other: Buffer | undefined
  const files: Files = {
    ...nodeFiles,
    async rename(from, to) {
      await nodeFiles.rename(from, to)
      if (!other || !to.endsWith('plants.sqlite')) return
      writeFileSync(`${to}-new`, other)
      renameSync(`${to}-new`, to)
      other = undefined
    },
  }
  const { path, snapshot, store, clock, lines } = await served(t, { files, compactBytes: 3000 })
  other = readFileSync(snapshot)
  assert.equal(await store.create('alice', plant(3n, 'x'.repeat(5000))), 'stored')
  await untilCompacted(lines)
  assert.equal(other, undefined)
  clock.pass(1000)
  await assert.rejects(store.create('alice', plant(4n)), StoreUnavailable)
  assert.match(store.unavailableReason() ?? '', CHANGED)
  clock.restore()
  await store.close()
  await holds(path, [...plantsTo(2n).map(shown), { name: 'x'.repeat(5000) }])
})

/** Damage that changes neither inode, nor length, nor time. */
function rot(file: string, at: number): void {
  const { atime, mtime } = statSync(file)
  const bytes = readFileSync(file)
  writeFileSync(file, bytes.fill(bytes.readUInt8(at) ^ 1, at, at + 1))
  utimesSync(file, atime, mtime)
}

test('snapshot watch: a stop saves what no file has', async (t) => {
  for (const name of ['plants.sqlite', 'journal-00000002.log']) {
    const { path, store } = await served(t)
    rot(`${path}/${name}`, name === 'plants.sqlite' ? 5000 : 100)
    await store.close()
    // Damage inside a journal is not noticed, and memory needs none of it.
    const left = name === 'plants.sqlite' ? '0 journals' : '1 journal'
    assert.match(await checkDirectory(path), new RegExp(`2 plants in a snapshot and ${left}`))
    await holds(path, plantsTo(2n).map(shown))
  }
})

test('snapshot watch: the snapshots of its own compactions are no change', async (t) => {
  const { path, store, clock, lines } = await served(t, { compactBytes: 1 })
  for (let id = 3n; id < 9n; id++) {
    clock.pass(1000)
    assert.equal(await store.create('alice', plant(id)), 'stored')
  }
  await until('it is compacted', () => lines.some(({ message }) => message === 'compacted'))
  assert.ok(lines.every(({ level }) => level === 'info'))
  clock.restore()
  await store.close()
  await holds(path, plantsTo(8n).map(shown))
})
