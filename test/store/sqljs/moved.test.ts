import assert from 'node:assert/strict'
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, symlinkSync } from 'node:fs'
import { type TestContext, test } from 'node:test'
import { compactFiles } from '../../../dist/store/sqljs/settings.js'
import { lockDirectory } from '../../../dist/store/sqljs/lock.js'
import type { SqljsStore } from '../../../dist/store/sqljs/store.js'
import { temporaryDirectory } from '../../support/directories.ts'
import { until } from '../../support/time.ts'
import { list, type LogLine, openStore } from './fixtures.ts'

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

/** Names, and what the files of plants hold. */
function contentsOf(path: string): readonly (readonly [name: string, text: string])[] {
  const textOf = (name: string): string => readFileSync(`${path}/${name}`, 'latin1')
  return readdirSync(path)
    .toSorted()
    .map((name) => [name, name.startsWith('lock-') ? '' : textOf(name)])
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
    assert.deepEqual(
      (await list(again)).map(({ name }) => name),
      ['p1', 'p2', 'p3', 'p4'],
    )
  })

  test(`moved: ${what}: a compaction leaves the files of the other store`, async (t) => {
    const { first, lines, second, path } = await moved(t, move, 1000)
    await second.create('alice', { id: 1n, name: 'of the second' })
    const before = contentsOf(path)
    for (let id = 1n; id <= 30n; id++) await first.create('alice', { id, name: 'x'.repeat(100) })
    const refused = (): boolean =>
      lines.some(
        ({ level, fields }) =>
          level === 'error' && /not the lock of this process/.test(String(fields?.['error'])),
      )
    await until('the log says why', refused)
    assert.deepEqual(contentsOf(path), before)
    assert.equal((await list(first)).length, 30)
    await first.close()
    assert.deepEqual(contentsOf(path), before)
  })
}
