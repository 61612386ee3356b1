import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from 'sql.js'
import { memoryFile } from '../../../dist/cli/export.js'
import type { File } from '../../../dist/store/sqljs/disk/files.js'
import { PageFile } from '../../../dist/store/sqljs/disk/page-file.js'
import { loadSqlite, valueOf } from '../../../dist/store/sqljs/sqlite/sqlite.js'
import { seeded } from '../../support/random.ts'
import { stopClock } from '../../support/time.ts'

const PAGE = 4096

/** Such pages, each of one byte. */
function pagesOf(...values: number[]): Buffer {
  return Buffer.concat(values.map((value) => Buffer.alloc(PAGE, value)))
}

test('page file: pages are written in any order, and read as they were written last', async (t) => {
  const { random } = seeded(t)
  const { memory, bytes } = memoryFile()
  const pages = new PageFile('a.sqlite', memory)
  const model: number[] = []
  for (let i = 0; i < 1000; i++) {
    const at = Math.floor(random() * 40)
    if (random() < 0.5) {
      model[at] = i % 256
      pages.write(pagesOf(i % 256), at * PAGE)
    } else if (at < model.length) {
      assert.deepEqual(pages.read(at * PAGE, (at + 1) * PAGE), pagesOf(model[at] ?? 0))
    }
    assert.equal(pages.lengthBytes, model.length * PAGE)
  }
  assert.deepEqual(Buffer.from(bytes), pagesOf(...Array.from(model, (value) => value ?? 0)))
})

test('page file: a file that is shorter, takes nothing, or syncs nothing is an error', async () => {
  const { memory } = memoryFile()
  memory.writeNow(pagesOf(1, 2), 0)
  const pages = new PageFile('a.sqlite', memory, 2 * PAGE)
  await memory.truncate(PAGE)
  assert.throws(() => pages.read(PAGE, PAGE + 1), { message: `a.sqlite has no byte ${PAGE}` })
  const full = new PageFile('a.sqlite', { ...memory, writeNow: () => 0 })
  const message = 'the file system took no bytes of a.sqlite'
  assert.throws(() => full.write(pagesOf(1), 0), { message })
  const unsynced = new PageFile('a.sqlite', { ...memory, syncNow: () => assert.fail('EIO') })
  assert.throws(() => unsynced.write(Buffer.alloc(2 ** 20), 0), { message: 'EIO' })
})

test('page file: a short write goes on where it ended, and each MiB is synced', async () => {
  const { memory, bytes } = memoryFile()
  let syncs = 0
  const file: File = {
    ...memory,
    writeNow: (from, at) => memory.writeNow(from.subarray(0, 1000), at),
    syncNow: () => void syncs++,
  }
  const pages = new PageFile('a.sqlite', file)
  const values = Array.from({ length: 600 }, (_, i) => i % 256)
  for (const [at, value] of values.entries()) pages.write(pagesOf(value), at * PAGE)
  assert.deepEqual(Buffer.from(bytes), pagesOf(...values))
  assert.equal(syncs, Math.floor((600 * PAGE) / 2 ** 20))
})

test('page file: SQLite sees a failure as an error, and writes nothing after it', async () => {
  const library = await loadSqlite()
  const empty = new library.Database()
  empty.run('CREATE TABLE t (x)')
  const template = empty.export()
  empty.close()
  for (const failing of ['readNow', 'writeNow'] as const) {
    let [calls, failAt] = [0, Infinity]
    const { memory } = memoryFile()
    memory.writeNow(template, 0)
    const call: File['writeNow'] = (bytes, at) => {
      if (++calls === failAt) throw new Error('EIO')
      return memory[failing](bytes, at)
    }
    const pages = new PageFile('a.sqlite', { ...memory, [failing]: call }, template.length)
    const fill = 'INSERT INTO t SELECT hex(randomblob(3000)) FROM pragma_function_list LIMIT 50'
    const work = (db: Database): void => {
      db.run(`PRAGMA journal_mode = OFF; PRAGMA cache_size = 10; ${fill}`)
      failAt = calls + 3
      const untilFailure = (): unknown => {
        for (;;) {
          db.run(fill)
          valueOf(db, 'SELECT sum(length(x)) FROM t')
        }
      }
      assert.throws(untilFailure)
      assert.throws(() => db.run(fill))
      assert.throws(() => db.run('PRAGMA integrity_check; INSERT INTO t VALUES (1)'))
      assert.equal(calls, failAt)
    }
    // As if SQLite did not notice.
    await assert.rejects(pages.opened(work), { message: 'EIO' })
    // SQLite cannot open it again.
    await assert.rejects(pages.opened(String), { message: 'EIO' })
  }
})

test('page file: reading all of it yields, so that other work goes on', async (t) => {
  const { memory } = memoryFile()
  memory.writeNow(Buffer.alloc(60 * PAGE), 0)
  const clock = stopClock(t)
  const readNow: File['readNow'] = (bytes, at) => {
    clock.pass(20)
    return memory.readNow(bytes, at)
  }
  const pages = new PageFile('a.sqlite', { ...memory, readNow }, 60 * PAGE)
  let [ticks, isDone] = [0, false]
  const count = (): void => {
    ticks++
    if (!isDone) setImmediate(count)
  }
  setImmediate(count)
  for await (const block of pages.blocks()) assert.ok(block.length > 0)
  isDone = true
  // It takes 300 ms, and yields each 50.
  assert.ok(ticks >= 4, `${ticks} ticks`)
})
